"""`loom stream …`: names, options and help; the work is in streams.py."""

from __future__ import annotations

from typing import Annotated

import typer

from loomlog.cli.options import CLUSTER, Cluster, Json, LogName, Stream, Wait, WaitMax, Yes

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
def seal(
    stream: Stream,
    wait: Wait = False,
    timeout: WaitMax = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Let a stream take no more appends until it is unsealed; it stays readable."""
    from loomlog.cli import event_loop, streams

    event_loop.run(streams.seal(cluster, stream, wait=wait, timeout_s=timeout, as_json=as_json))


@app.command()
def unseal(
    stream: Stream,
    wait: Wait = False,
    timeout: WaitMax = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Let a stream run again."""
    from loomlog.cli import event_loop, streams

    event_loop.run(streams.unseal(cluster, stream, wait=wait, timeout_s=timeout, as_json=as_json))


@app.command()
def add(
    log: LogName,
    wait: Wait = False,
    timeout: WaitMax = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Give a log one more stream; the log does not stop."""
    from loomlog.cli import event_loop, streams

    event_loop.run(streams.add(cluster, log, wait=wait, timeout_s=timeout, as_json=as_json))


@app.command()
def move(
    stream: Stream,
    from_node: Annotated[
        int, typer.Option("--from", min=1, metavar="NODE", help="Whose replica moves.")
    ],
    to_node: Annotated[
        int | None,
        typer.Option("--to", min=1, metavar="NODE", show_default="the best node", help="Where to."),
    ] = None,
    wait: Wait = False,
    timeout: WaitMax = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Move a replica of a stream to another node."""
    from loomlog.cli import event_loop, streams

    event_loop.run(
        streams.move(
            cluster, stream, from_node, to_node, wait=wait, timeout_s=timeout, as_json=as_json
        )
    )


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
def add_replica(
    stream: Stream,
    node: Annotated[
        int | None, typer.Option(min=1, metavar="NODE", show_default="the best node", help="On it.")
    ] = None,
    wait: Wait = False,
    timeout: WaitMax = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Give a stream one more replica."""
    from loomlog.cli import event_loop, streams

    event_loop.run(
        streams.add_replica(cluster, stream, node, wait=wait, timeout_s=timeout, as_json=as_json)
    )


@app.command()
def scrub(
    stream: Stream,
    wait: Wait = False,
    timeout: WaitMax = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Check all that is stored of a stream; what is corrupt is repaired from other replicas."""
    from loomlog.cli import event_loop, streams

    event_loop.run(streams.scrub(cluster, stream, wait=wait, timeout_s=timeout, as_json=as_json))
