"""`loom stream …`: the log streams of a cluster, and operations on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from loomlog.cli.console import changes
from loomlog.cli.console.changes import Look, WaitProgress
from loomlog.cli.console.command import Invocation, command, connected_sync
from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.options import (
    CLUSTER,
    Cluster,
    Json,
    LogName,
    Stream,
    Yes,
    read_nodes,
)
from loomlog.cli.console.output import (
    console,
    copied,
    print_json,
    print_stream,
    stream_table,
)
from loomlog.cli.console.scrub import follow_scrub
from loomlog.errors import NotFound
from loomlog.types import ReplicaState

if TYPE_CHECKING:
    from loomlog import BlockingCluster
    from loomlog.types import StreamId
    from loomlog.wire.info import StreamInfo

app = typer.Typer(help="List, describe, seal, add, remove, move, fill and check log streams.")

Arrived = Callable[["StreamInfo"], bool]


@app.command("list")
def list_all(
    log: Annotated[str | None, typer.Option(metavar="LOG", help="Only of this log.")] = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """List all log streams."""
    with connected_sync(cluster) as client:
        logs = client.logs() if log is None else [client.log(log).describe()]
    if as_json:
        print_json([{"log": info.name} | asdict(s) for info in logs for s in info.streams])
    elif logs:
        console().print(stream_table(logs))
    else:
        print("no streams yet: create a log with `loom log create NAME`")


@command(app)
def seal(stream: Stream, how: Invocation) -> None:
    """Stop appends to a stream until it is unsealed; it stays readable."""
    with connected_sync(how.cluster) as client:
        change = client.seal_stream(stream)
        changes.say_and_wait(change, how, _until(client, stream, _is_sealed))


@command(app)
def unseal(stream: Stream, how: Invocation) -> None:
    """Resume appends to a stream."""
    with connected_sync(how.cluster) as client:
        change = client.unseal_stream(stream)
        changes.say_and_wait(change, how, _until(client, stream, _is_running))


@app.command()
def describe(stream: Stream, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Show a stream and its replicas: state, epoch, watermarks, lag, path and disk of each."""
    with connected_sync(cluster) as client:
        described = client.describe_stream(stream)
    if as_json:
        print_json(asdict(described))
    else:
        print_stream(described)


@command(app)
def add(
    log: LogName,
    nodes: Annotated[
        str,
        typer.Option(
            metavar="N,N,…",
            show_default="the best nodes",
            help="Nodes of its replicas, the primary or head first; in a copyset log, nodes that "
            "store new entries, too.",
        ),
    ] = "",
    *,
    how: Invocation,
) -> None:
    """Add a stream to a log while it is in use; a chain to a chained log, or nodes to a copyset
    log."""
    with connected_sync(how.cluster) as client:
        change = client.add_stream(log, read_nodes(nodes))
        runs = None if change.stream is None else _until(client, change.stream, _is_running)
        changes.say_and_wait(change, how, runs)


@app.command()
def remove(
    stream: Stream,
    nodes: Annotated[
        str,
        typer.Option(
            metavar="N,N,…",
            show_default="the last one",
            help="In a copyset log: nodes that store no new entries any more.",
        ),
    ] = "",
    part: Annotated[
        int | None,
        typer.Option(
            min=0, show_default="the last one", help="Number of the chain, in a chained log."
        ),
    ] = None,
    yes: Yes = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Stop appends to a stream, and remove it when all its entries are trimmed; remove a chain
    from a chained log, or nodes from a copyset log."""
    what = f"stream {stream}, or its last part or node if it has several"
    if nodes or part is not None:
        what = f"{f'nodes {nodes}' if nodes else f'part {part}'} of stream {stream}"
    question = f"Remove {what}? No more appends go there; its entries stay readable."
    changes.confirm(lambda: question, yes=yes)
    with connected_sync(cluster) as client:
        change = client.remove_stream(stream, read_nodes(nodes), part)
        changes.say(change, as_json=as_json)


@command(app)
def move(
    stream: Stream,
    from_node: Annotated[
        int, typer.Option("--from", min=1, metavar="NODE", help="Whose replica moves.")
    ],
    to_node: Annotated[
        int | None,
        typer.Option("--to", min=1, metavar="NODE", show_default="the best node", help="Where to."),
    ] = None,
    part: Annotated[int, typer.Option(min=0, help="Number of the chain, in a chained log.")] = 0,
    *,
    how: Invocation,
) -> None:
    """Move a replica of a stream to another node."""
    with connected_sync(how.cluster) as client:
        before = _stream(client, stream)
        change = client.move_stream(stream, from_node, to_node, part)
        moved = _settled(before, lambda now: from_node not in now.nodes_of(part))
        changes.say_and_wait(change, how, _until(client, stream, moved))


@app.command()
def unregister(
    stream: Stream,
    node: Annotated[
        int, typer.Option(min=1, metavar="NODE", help="Node whose replica leaves the stream.")
    ],
    yes: Yes = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Remove a replica from a stream; its data stays on the node's disk."""
    question = f"Remove the replica on node {node} from stream {stream}? It then has one less."
    changes.confirm(lambda: question, yes=yes)
    with connected_sync(cluster) as client:
        changes.say(client.unregister_replica(stream, node), as_json=as_json)


@command(app)
def add_replica(
    stream: Stream,
    node: Annotated[
        int | None, typer.Option(min=1, metavar="NODE", show_default="the best node", help="On it.")
    ] = None,
    *,
    how: Invocation,
) -> None:
    """Add a replica to a stream."""
    with connected_sync(how.cluster) as client:
        before = _stream(client, stream)
        change = client.add_replica(stream, node)
        more = _settled(before, lambda now: len(now.replicas) > len(before.replicas))
        changes.say_and_wait(change, how, _until(client, stream, more))


@command(app)
def primary(
    stream: Stream,
    node: Annotated[
        int | None,
        typer.Option(min=1, metavar="NODE", help="One of its replicas; in a copyset log, any."),
    ] = None,
    part: Annotated[int, typer.Option(min=0, help="Number of the chain, in a chained log.")] = 0,
    any_node: Annotated[
        bool, typer.Option("--any", help="Take the choice back, in a copyset log.")
    ] = False,
    *,
    how: Invocation,
) -> None:
    """Choose the node that appends go to first: the primary of a stream, the head of a chain, or
    the sequencer of a copyset log."""
    if (node is None) != any_node:
        raise UsageError("give either --node NODE or --any")
    with connected_sync(how.cluster) as client:
        if node is None:
            changes.say(client.set_primary(stream, None, part), as_json=how.as_json)
            return
        before = _stream(client, stream)
        change = client.set_primary(stream, node, part)
        # No node sequences a copyset log before the first append to it.
        chosen = _settled(before, lambda now: now.primary_of(part) in (node, None))
        changes.say_and_wait(change, how, _until(client, stream, chosen))


@command(app)
def sync(
    stream: Stream,
    from_node: Annotated[
        int, typer.Option("--from", min=1, metavar="NODE", help="Node of the replica to copy from.")
    ],
    to_node: Annotated[
        int, typer.Option("--to", min=1, metavar="NODE", help="Node of the replica to fill.")
    ],
    part: Annotated[int, typer.Option(min=0, help="Number of the chain, in a chained log.")] = 0,
    *,
    how: Invocation,
) -> None:
    """Fill a replica that lacks entries from another replica."""
    with connected_sync(how.cluster) as client:
        change = client.sync_replica(stream, from_node, to_node, part)

        def look() -> WaitProgress:
            nonlocal change
            if change.finished is False:
                change = client.sync_replica(stream, from_node, to_node, part)
            if change.finished is not None:
                return WaitProgress(change.finished, float(change.finished), change.done)
            replicas = client.describe_stream(stream).replicas
            lag = next((replica.lag for replica in replicas if replica.node == to_node), None)
            text = f"node {to_node} lacks {'some' if lag is None else f'{lag:,}'} entries"
            return WaitProgress(lag == 0, float(lag == 0), text)

        changes.say_and_wait(change, how, look)


@command(app)
def scrub(stream: Stream, how: Invocation) -> None:
    """Check all stored data of a stream; repair corrupt data from other replicas."""
    with connected_sync(how.cluster) as client:
        follow_scrub(f"stream {stream}", partial(client.scrub_stream, stream), how)


# ---- waiting


def _is_sealed(stream: StreamInfo) -> bool:
    return stream.state == ReplicaState.SEALED


def _is_running(stream: StreamInfo) -> bool:
    return stream.state == ReplicaState.RUNNING


def _settled(before: StreamInfo, changed: Arrived) -> Arrived:
    """Return a test: the replicas have changed, and the stream runs again if it did before."""

    def arrived(now: StreamInfo) -> bool:
        at_rest = now.joining is None and (_is_running(now) or not _is_running(before))
        return at_rest and changed(now)

    return arrived


def _until(client: BlockingCluster, stream: StreamId, arrived: Arrived) -> Look:
    def look() -> WaitProgress:
        now = _stream(client, stream)
        if arrived(now):
            return WaitProgress(True, 1.0, now.state)
        return WaitProgress(False, copied(now), now.condition or f"stream {stream} is {now.state}")

    return look


def _stream(client: BlockingCluster, number: StreamId) -> StreamInfo:
    for log in client.logs():
        for stream in log.streams:
            if stream.id == number:
                return stream
    raise NotFound(f"there is no stream {number}: `loom stream list` shows them")
