"""`loom acl …`: permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from loomlog.cli.console import changes
from loomlog.cli.console.command import connected_sync
from loomlog.cli.console.options import CLUSTER, Cluster, Json, Yes
from loomlog.cli.console.output import console, new_table, plain, print_json, say
from loomlog.core.permissions import AUDIT_LOG, ROLES, Grant, Verb, is_role
from loomlog.errors import AlreadyExists, InvalidArgument

if TYPE_CHECKING:
    from loomlog import BlockingCluster
    from loomlog.client.access import AccessInfo

AUDIT_RETENTION: Final = "90d"

app = typer.Typer(help="Permissions: grants of verbs and roles for patterns of names.")

Subject = Annotated[
    str,
    typer.Argument(metavar="WHO", help="Name of a client, anonymous, '*' for all, or role:NAME."),
]
What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help=f"A verb, VERB:NAMES, a role ({', '.join(ROLES)}), or a custom role:NAME.",
    ),
]
Pattern = Annotated[
    str,
    typer.Argument(
        metavar="NAMES", help="Pattern of logs, registers or pipelines, such as orders.*"
    ),
]


@app.command("list")
def list_all(cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """List all grants."""
    with connected_sync(cluster) as client:
        access = client.access()
    if as_json:
        print_json(_fields(access))
        return
    table = new_table("who", "may", "names")
    for grant in access.rules.grants:
        table.add_row(plain(grant.subject), plain(grant.what), plain(grant.pattern))
    if access.rules.grants:
        console().print(table)
    else:
        print("no grants: only certificates of operators, and tokens, have permissions")
    if not access.rules.enforced:
        print("permissions are not enforced: everything is allowed until `loom acl enable`")


@app.command()
def grant(
    who: Subject,
    what: What,
    names: Pattern = "*",
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Grant a verb or a role. Grants to role:NAME apply to all subjects of that role."""
    what, names = _parts(what, names)
    with connected_sync(cluster) as client:
        access = client.grant(Grant(who, what, names))
    text = f"{who} may {what}:{names}"
    if is_role(what):
        has = any(each.subject == what for each in access.rules.grants)
        text = f"{who} has {what}" + ("" if has else f"; {what} has no grants yet")
    say(_fields(access), f"{text}{_behind(access)}", as_json=as_json)


@app.command()
def revoke(
    who: Subject,
    what: What,
    names: Pattern = "*",
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Remove a grant, as shown by `loom acl list`."""
    what, names = _parts(what, names)
    with connected_sync(cluster) as client:
        access = client.revoke(Grant(who, what, names))
    lost = what if is_role(what) else f"{what}:{names}"
    say(_fields(access), f"{who} has lost {lost}{_behind(access)}", as_json=as_json)


@app.command()
def remove(
    who: Subject, yes: Yes = False, cluster: Cluster = CLUSTER, as_json: Json = False
) -> None:
    """Remove all grants of a subject; if it is a role, also its assignments."""
    changes.confirm_at_terminal(f"Remove all grants of {who}?", yes=yes)
    with connected_sync(cluster) as client:
        access = client.remove_subject(who)
    say(_fields(access), f"{who} no longer has any grants{_behind(access)}", as_json=as_json)


@app.command()
def check(
    who: Subject,
    verb: Annotated[Verb, typer.Argument(metavar="VERB", help="What they would do.")],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the log, register or pipeline.")
    ] = "",
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Check whether grants allow a request; exit code 1 if they do not."""
    with connected_sync(cluster) as client:
        access = client.access()
    by = access.rules.reasons(who, verb, name)
    allowed = bool(by) or not access.rules.enforced
    why = "nothing is enforced" if not access.rules.enforced else ", ".join(by) or "no grant"
    fields = {"who": who, "verb": verb, "name": name, "allowed": allowed, "by": why}
    answer = "yes" if allowed else "no"
    say(fields, f"{answer}: {who} {verb} {name} ({why})", as_json=as_json)
    if not allowed:
        raise typer.Exit(1)


@app.command()
def enable(yes: Yes = False, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Enforce permissions: deny everything that is not granted, and record it in the audit log."""
    changes.confirm_at_terminal("Deny everything that is not granted from now on?", yes=yes)
    with connected_sync(cluster) as client:
        _make_audit_log(client)
        access = client.enforce_access(True)
    say(_fields(access), f"grants are enforced{_behind(access)}", as_json=as_json)


@app.command()
def disable(yes: Yes = False, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Stop enforcing permissions; grants and tokens stay."""
    changes.confirm_at_terminal("Allow everything to all who can connect?", yes=yes)
    with connected_sync(cluster) as client:
        access = client.enforce_access(False)
    say(_fields(access), f"permissions are not enforced{_behind(access)}", as_json=as_json)


def _parts(what: str, names: str) -> tuple[str, str]:
    """Split append:orders.*, the form in tokens and denials, into verb and names."""
    verb, colon, pattern = what.partition(":")
    if not colon or is_role(what):
        return what, names
    if names != "*":
        raise InvalidArgument(f"give {what}, or {verb} {names}, not both")
    return verb, pattern


def _make_audit_log(client: BlockingCluster) -> None:
    nodes = sum(node.alive for node in client.status().nodes)
    if not nodes:
        raise InvalidArgument("no storage node is alive: the audit log needs one")
    try:
        client.create_log(AUDIT_LOG, replicas=min(nodes, 3), retention=AUDIT_RETENTION)
    except AlreadyExists:
        pass


def _behind(access: AccessInfo) -> str:
    if not access.behind:
        return ""
    nodes = ", ".join(map(str, access.behind))
    return f"; not confirmed by node {nodes}, which learns of it when it registers again"


def _fields(access: AccessInfo) -> dict[str, object]:
    return {
        "enforced": access.rules.enforced,
        "version": access.version,
        "grants": [
            {
                "who": grant.subject,
                "what": grant.what,
                "names": grant.pattern,
                "permissions": list(map(str, grant.permissions)),
            }
            for grant in access.rules.grants
        ],
        "behind": list(access.behind),
    }
