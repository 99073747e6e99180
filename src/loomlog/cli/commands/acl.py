"""`loom acl …`: who may do what."""

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

app = typer.Typer(help="Who may do what: grants of verbs and roles for patterns of names.")

Subject = Annotated[
    str,
    typer.Argument(
        metavar="WHO", help="Name of a client, anonymous, '*' for everybody, or role:NAME."
    ),
]
What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help=f"A verb, a role ({', '.join(ROLES)}), one of yours, role:NAME, or VERB:NAMES.",
    ),
]
Pattern = Annotated[
    str, typer.Argument(metavar="NAMES", help="Of logs, registers or pipelines, as orders.*")
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
        print("nothing is enforced: everybody may do everything until `loom acl enable`")


@app.command()
def grant(
    who: Subject,
    what: What,
    names: Pattern = "*",
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Grant a verb or a role; it counts at once. What is granted to role:NAME, all have to whom
    role:NAME is granted."""
    what, names = _parts(what, names)
    with connected_sync(cluster) as client:
        access = client.grant(Grant(who, what, names))
    text = f"{who} may {what}:{names}"
    if is_role(what):
        has = any(each.subject == what for each in access.rules.grants)
        text = f"{who} has {what}" + ("" if has else f"; nothing is granted to {what} yet")
    say(_fields(access), f"{text}{_behind(access)}", as_json=as_json)


@app.command()
def revoke(
    who: Subject,
    what: What,
    names: Pattern = "*",
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Take a grant away, as `loom acl list` shows it."""
    what, names = _parts(what, names)
    with connected_sync(cluster) as client:
        access = client.revoke(Grant(who, what, names))
    lost = what if is_role(what) else f"{what}:{names}"
    say(_fields(access), f"{who} has lost {lost}{_behind(access)}", as_json=as_json)


@app.command()
def remove(
    who: Subject, yes: Yes = False, cluster: Cluster = CLUSTER, as_json: Json = False
) -> None:
    """Take all grants of a subject away; if it is a role, also from all who have it."""
    changes.confirm_at_terminal(f"Take all grants of {who} away?", yes=yes)
    with connected_sync(cluster) as client:
        access = client.remove_subject(who)
    say(_fields(access), f"{who} has no grants any more{_behind(access)}", as_json=as_json)


@app.command()
def check(
    who: Subject,
    verb: Annotated[Verb, typer.Argument(metavar="VERB", help="What they would do.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="With which log or the like.")] = "",
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Say whether grants allow a request; exit code 1 if they do not."""
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
    """Enforce the grants: deny what is not granted, and note it in the audit log."""
    changes.confirm_at_terminal("Deny from now on what is not granted?", yes=yes)
    with connected_sync(cluster) as client:
        _make_audit_log(client)
        access = client.enforce_access(True)
    say(_fields(access), f"grants are enforced{_behind(access)}", as_json=as_json)


@app.command()
def disable(yes: Yes = False, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Allow everything to everybody again; grants and tokens stay."""
    changes.confirm_at_terminal("Allow everything to everybody who connects?", yes=yes)
    with connected_sync(cluster) as client:
        access = client.enforce_access(False)
    say(_fields(access), f"nothing is enforced{_behind(access)}", as_json=as_json)


def _parts(what: str, names: str) -> tuple[str, str]:
    """Return verb and names of append:orders.*, which is how tokens and denials write it."""
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
