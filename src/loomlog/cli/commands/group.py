"""`loom group …`: consumer groups and their progress."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loomlog.cli.console import changes
from loomlog.cli.console.command import connected_sync
from loomlog.cli.console.options import CLUSTER, Cluster, Json, LogName, LogOrAll, Yes, read_start
from loomlog.cli.console.output import console, new_table, plain, print_json, say

if TYPE_CHECKING:
    from loomlog.client.groups.group import GroupInfo

app = typer.Typer(help="Consumer groups: programs that share the entries of a log.")

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]


@app.command("list")
def list_all(log: LogOrAll = None, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """List the groups of a log, or of all logs."""
    with connected_sync(cluster) as client:
        logs = [info.name for info in client.logs()] if log is None else [log]
        groups = [(name, info) for name in logs for info in client.log(name).groups().values()]
    if as_json:
        print_json([{"log": name, **_fields(info)} for name, info in groups])
        return
    if not groups:
        print(f"{log or 'the cluster'} has no groups: `loom tail LOG --group NAME` creates one")
        return
    table = new_table("log", "group", "members", "shards", "position", "behind")
    for name, info in groups:
        counts = str(len(info.members)), str(len(info.shards))
        row = (plain(name), plain(info.name), *counts, f"{info.position:,}", _behind(info.behind))
        table.add_row(*row)
    console().print(table)


@app.command()
def describe(log: LogName, name: Name, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Show the members of a group, and the position of each shard."""
    with connected_sync(cluster) as client:
        info = client.log(log).group(name).describe()
    if as_json:
        print_json({"log": log, **_fields(info)})
        return
    members = new_table("member", "name", "shards", "lease ends in")
    for member in info.members:
        ends = f"{member.left_s:.1f} s" if member.left_s else "has ended"
        members.add_row(member.id, plain(member.name), str(len(member.shards)), ends)
    names = {member.id: member.name for member in info.members}
    shards = new_table("shard", "owner", "position", "behind", "")
    for shard in info.shards:
        owner = plain(names.get(shard.owner, shard.owner or "nobody"))
        note = "moves after the next commit" if shard.moving else ""
        row = (str(shard.number), owner, f"{shard.position:,}", _behind(shard.behind), note)
        shards.add_row(*row)
    console().print(members, shards)


@app.command()
def reset(
    log: LogName,
    name: Name,
    start: Annotated[
        Any,
        typer.Option(
            "--to",
            parser=read_start,
            metavar="WHERE",
            help="First position, as 4200 or e3n17; a time, as 2026-11-16T03:00; or earliest, or "
            "latest for new entries only.",
        ),
    ],
    yes: Yes = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Move a group without members to another position."""
    changes.confirm(lambda: f"Move group {name} of {log} to {start}?", yes=yes)
    with connected_sync(cluster) as client:
        info = client.log(log).group(name).reset(start)
    text = f"group {name} of {log} continues at {info.position + 1}"
    say({"log": log, **_fields(info)}, text, as_json=as_json)


@app.command()
def delete(
    log: LogName, name: Name, yes: Yes = False, cluster: Cluster = CLUSTER, as_json: Json = False
) -> None:
    """Delete a group without members, with its positions."""
    changes.confirm(lambda: f"Delete group {name} of {log} and its positions?", yes=yes)
    with connected_sync(cluster) as client:
        client.log(log).group(name).delete()
    say({"deleted": name, "log": log}, f"deleted group {name} of {log}", as_json=as_json)


def _fields(info: GroupInfo) -> dict[str, Any]:
    return {**asdict(info), "position": info.position, "behind": info.behind}


def _behind(behind: int | None) -> str:
    return "unknown" if behind is None else f"{behind:,}"
