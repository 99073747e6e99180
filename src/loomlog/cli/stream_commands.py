"""`loom stream …`: names, options and help; the work is in streams.py."""

from __future__ import annotations

from typing import Annotated

import typer

from loomlog.cli.invocation import Invocation, waitable
from loomlog.cli.options import CLUSTER, Cluster, Json, LogName, Stream, Yes

app = typer.Typer(help="List, seal, add, move and check log streams.")


@app.command("list")
def list_streams(
    log: Annotated[str | None, typer.Option(metavar="LOG", help="Only of this log.")] = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """List all log streams."""
    from loomlog.cli import event_loop, streams

    event_loop.run(streams.list_all(cluster, log, as_json=as_json))


@app.command()
@waitable
def seal(how: Invocation, stream: Stream) -> None:
    """Let a stream take no more appends until it is unsealed; it stays readable."""
    from loomlog.cli import event_loop, streams

    event_loop.run(streams.seal(how, stream))


@app.command()
@waitable
def unseal(how: Invocation, stream: Stream) -> None:
    """Let a stream run again."""
    from loomlog.cli import event_loop, streams

    event_loop.run(streams.unseal(how, stream))


@app.command()
@waitable
def add(how: Invocation, log: LogName) -> None:
    """Give a log one more stream; the log does not stop."""
    from loomlog.cli import event_loop, streams

    event_loop.run(streams.add(how, log))


@app.command()
@waitable
def move(
    how: Invocation,
    stream: Stream,
    from_node: Annotated[
        int, typer.Option("--from", min=1, metavar="NODE", help="Whose replica moves.")
    ],
    to_node: Annotated[
        int | None,
        typer.Option("--to", min=1, metavar="NODE", show_default="the best node", help="Where to."),
    ] = None,
) -> None:
    """Move a replica of a stream to another node."""
    from loomlog.cli import event_loop, streams

    event_loop.run(streams.move(how, stream, from_node, to_node))


@app.command()
def unregister(
    stream: Stream,
    node: Annotated[int, typer.Option(min=1, metavar="NODE", help="Whose replica leaves.")],
    yes: Yes = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Take a replica out of a stream; its data stays on the node's disk."""
    from loomlog.cli import confirm, event_loop, streams

    question = f"Take the replica on node {node} out of stream {stream}? It then has one less."
    confirm.ask(lambda: question, yes=yes)
    event_loop.run(streams.unregister(cluster, stream, node, as_json=as_json))


@app.command("add-replica")
@waitable
def add_replica(
    how: Invocation,
    stream: Stream,
    node: Annotated[
        int | None, typer.Option(min=1, metavar="NODE", show_default="the best node", help="On it.")
    ] = None,
) -> None:
    """Give a stream one more replica."""
    from loomlog.cli import event_loop, streams

    event_loop.run(streams.add_replica(how, stream, node))


@app.command()
@waitable
def scrub(how: Invocation, stream: Stream) -> None:
    """Check all that is stored of a stream; what is corrupt is repaired from other replicas."""
    from loomlog.cli import event_loop, streams

    event_loop.run(streams.scrub(how, stream))
