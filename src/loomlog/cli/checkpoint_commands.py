"""`loom checkpoint …`: names, options and help; the work is in checkpoints.py."""

from __future__ import annotations

from typing import Annotated

import typer

from loomlog.cli.options import CLUSTER, Cluster, Json, LogName
from loomlog.cli.positions import read_position_or_0

app = typer.Typer(help="Where readers are: named positions that the cluster keeps.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the checkpoint.")]


@app.command("list")
def list_all(log: LogName, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """List the checkpoints of a log."""
    from loomlog.cli import checkpoints, event_loop

    event_loop.run(checkpoints.list_all(cluster, log, as_json=as_json))


@app.command("set")
def set_to(
    log: LogName,
    name: Name,
    position: Annotated[
        int,
        typer.Argument(
            parser=read_position_or_0,
            metavar="POSITION",
            help="The last one that the reader is done with, as 4200 or e3n17; 0: none.",
        ),
    ],
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Move a checkpoint, forward or back, or make it."""
    from loomlog.cli import checkpoints, event_loop

    event_loop.run(checkpoints.set_to(cluster, log, name, position, as_json=as_json))


@app.command()
def delete(log: LogName, name: Name, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Delete a checkpoint."""
    from loomlog.cli import checkpoints, event_loop

    event_loop.run(checkpoints.delete(cluster, log, name, as_json=as_json))
