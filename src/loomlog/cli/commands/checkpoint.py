"""`loom checkpoint …`: readers' positions."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loomlog.cli.console.command import connected_sync
from loomlog.cli.console.options import (
    CLUSTER,
    Cluster,
    Json,
    LogName,
    LogOrAll,
    read_position_or_0,
)
from loomlog.cli.console.output import console, new_table, plain, print_json, say
from loomlog.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from loomlog.client.blocking import BlockingLog

app = typer.Typer(help="Readers' positions, stored by the cluster under a name.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the checkpoint.")]


@app.command("list")
def list_all(log: LogOrAll = None, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """List the checkpoints of a log, or of all logs."""
    with connected_sync(cluster) as client:
        logs = [info.name for info in client.logs()] if log is None else [log]
        found = [each for name in logs for each in _checkpoints(client.log(name))]
    if as_json:
        print_json(found)
        return
    if not found:
        where = f"{log or 'the cluster'} has no checkpoints"
        print(f"{where}: `loom tail {log or 'LOG'} --checkpoint NAME` creates one")
        return
    table = new_table("log", "checkpoint", "position", "behind", "changed")
    for each in found:
        behind = "unknown" if each["behind"] is None else f"{each['behind']:,}"
        changed = datetime.fromisoformat(each["changed"]).isoformat(" ", "seconds")
        names = plain(each["log"]), plain(each["name"])
        table.add_row(*names, f"{each['position']:,}", behind, changed)
    console().print(table)


def _checkpoints(log: BlockingLog) -> list[dict[str, Any]]:
    checkpoints = log.checkpoints()
    tail = _tail(log) if checkpoints else None
    return [
        {
            "log": log.name,
            "name": name,
            "position": info.position,
            "tail": tail,
            "behind": None if tail is None else max(0, tail - info.position),
            "changed": info.changed.isoformat(),
        }
        for name, info in checkpoints.items()
    ]


def _tail(log: BlockingLog) -> int | None:
    """Return the last position; None if it cannot be found now."""
    try:
        return log.tail()
    except Unavailable:
        return None


@app.command("set")
def set_to(
    log: LogName,
    name: Name,
    position: Annotated[
        int,
        typer.Argument(
            parser=read_position_or_0,
            metavar="POSITION",
            help="Last processed position, such as 4200 or e3n17; 0: none.",
        ),
    ],
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Create a checkpoint, or move it forward or back."""
    with connected_sync(cluster) as client:
        client.log(log).checkpoint(name).set(position, back=True)
    fields = {"log": log, "name": name, "position": position}
    say(fields, f"checkpoint {name} of {log} is at {position}", as_json=as_json)


@app.command()
def delete(log: LogName, name: Name, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Delete a checkpoint."""
    with connected_sync(cluster) as client:
        checkpoint = client.log(log).checkpoint(name)
        if checkpoint.get() is None:
            raise NotFound(
                f"{log} has no checkpoint {name!r}: `loom checkpoint list {log}` shows them"
            )
        checkpoint.delete()
    say({"deleted": name, "log": log}, f"deleted checkpoint {name} of {log}", as_json=as_json)
