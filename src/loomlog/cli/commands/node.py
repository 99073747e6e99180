"""`loom node …`: the storage nodes of a cluster, and operations on them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from loomlog.cli.console import changes
from loomlog.cli.console.changes import WaitProgress
from loomlog.cli.console.command import Invocation, command, connected_sync
from loomlog.cli.console.options import CLUSTER, Cluster, Json, Node, Yes
from loomlog.cli.console.output import (
    console,
    copied,
    nodes_view,
    print_json,
    print_outage,
    rebuild_table,
    size,
)
from loomlog.errors import NotFound

if TYPE_CHECKING:
    from loomlog import Change, ClusterStatus
    from loomlog.types import NodeId
    from loomlog.wire.info import NodeInfo, StreamInfo

app = typer.Typer(help="List, drain, replace, remove and clean up storage nodes.")


OneVolume = Annotated[
    str,
    typer.Option("--volume", metavar="DIR", help="Volume of the node; default: the whole node."),
]


@app.command("list")
def list_all(cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """List all storage nodes."""
    with connected_sync(cluster) as client:
        nodes = client.status().nodes
    if as_json:
        print_json([asdict(node) for node in nodes])
    elif nodes:
        console().print(nodes_view(nodes))
    else:
        print("no nodes yet: start one with `vsn start`")


@app.command()
def check(
    nodes: Annotated[
        list[int] | None, typer.Argument(metavar="NODE...", min=1, help="Nodes to be stopped.")
    ] = None,
    location: Annotated[
        str, typer.Option(metavar="NAME", help="Check all nodes of a location, e.g. rack=a.")
    ] = "",
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Show what stopping nodes would interrupt; without arguments, what absent nodes interrupt now.

    The exit code is 1 if appends or reads of a log would stop."""
    with connected_sync(cluster) as client:
        outage = client.check_nodes(*(nodes or ()), location=location)
    if as_json:
        print_json(asdict(outage) | {"stops": outage.stops})
    else:
        print_outage(outage)
    if outage.stops:
        raise typer.Exit(1)


@command(app)
def drain(node: Node, volume: OneVolume = "", yes: Yes = False, *, how: Invocation) -> None:
    """Move all data off a node or one of its volumes, and place no new data there."""
    with connected_sync(how.cluster) as client:
        if volume:
            change = client.drain_volume(node, volume)
            before = change.replicas_left

            def look() -> WaitProgress:
                again = client.drain_volume(node, volume)
                return _volume_emptied(again, client.status(), node, before)

            changes.say_and_wait(change, how, look)
            if how.wait and not how.as_json:
                print(
                    f"volume {volume} is empty: start the vsn of node {node} without it, then run "
                    f"`loom node replace {node} --volume {volume}`"
                )
            return
        changes.confirm(lambda: _drain_question(client.status(), node), yes=yes)
        before = _node(client.status(), node).replicas
        change = client.drain_node(node)
        changes.say_and_wait(change, how, lambda: _emptied(client.status(), node, before))
        if how.wait and not how.as_json:
            print(f"node {node} is empty: stop its vsn, then run `loom node remove {node}`")


@app.command()
def undrain(
    node: Node, volume: OneVolume = "", cluster: Cluster = CLUSTER, as_json: Json = False
) -> None:
    """Use a drained node, or a volume of it, again."""
    with connected_sync(cluster) as client:
        change = client.undrain_volume(node, volume) if volume else client.undrain_node(node)
        changes.say(change, as_json=as_json)


@app.command()
def remove(
    node: Node,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also remove a dead node that is not empty; its data is lost."
        ),
    ] = False,
    yes: Yes = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Remove an empty node from the cluster."""
    with connected_sync(cluster) as client:
        changes.confirm(lambda: _remove_question(client.status(), node, force=force), yes=yes)
        changes.say(client.remove_node(node, force), as_json=as_json)


@app.command()
def replace(
    node: Node,
    volume: OneVolume = "",
    yes: Yes = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Replace a node or volume whose data is lost by an empty one."""
    with connected_sync(cluster) as client:
        if volume:
            question = f"Give up volume {volume} of node {node}? It is refused from then on."
            changes.confirm(lambda: question, yes=yes)
            changes.say(client.replace_volume(node, volume), as_json=as_json)
            return
        changes.confirm(lambda: _replace_question(client.status(), node), yes=yes)
        changes.say(client.replace_node(node), as_json=as_json)


@app.command()
def cleanup(
    node: Node, yes: Yes = False, cluster: Cluster = CLUSTER, as_json: Json = False
) -> None:
    """Delete a node's data of streams of which it is not a replica."""
    with connected_sync(cluster) as client:
        changes.confirm(lambda: _cleanup_question(client.status(), node), yes=yes)
        changes.say(client.cleanup_node(node), as_json=as_json)


@app.command("mark-unrecoverable")
def mark_unrecoverable(
    node: Node, yes: Yes = False, cluster: Cluster = CLUSTER, as_json: Json = False
) -> None:
    """Give up the data of an absent node: entries without another copy are lost."""
    with connected_sync(cluster) as client:
        changes.confirm(lambda: _unrecoverable_question(client.status(), node), yes=yes)
        changes.say(client.mark_unrecoverable(node), as_json=as_json)


@app.command("rebuild-status")
def rebuild_status(cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Show the progress of rebuilding copies of lost or drained nodes."""
    with connected_sync(cluster) as client:
        rebuilds = client.status().rebuilds
    if as_json:
        print_json([asdict(each) for each in rebuilds])
    elif rebuilds:
        console().print(rebuild_table(rebuilds))
    else:
        print("nothing is being rebuilt")


# ---- questions before a change


def _drain_question(status: ClusterStatus, node: NodeId) -> str | None:
    """Return a question if the drain cannot finish."""
    _node(status, node)
    others = _others(status, node)
    widest = max((_copies(status, stream) for stream in _streams_on(status, node)), default=0)
    if others >= widest:
        return None
    return (
        f"Node {node} holds streams with {widest} replicas and {others} other nodes could take "
        "them: some stay where they are until there are more nodes. Drain it anyway?"
    )


def _remove_question(status: ClusterStatus, node: NodeId, *, force: bool) -> str:
    info = _node(status, node)
    absent = "dead" if info.held_back is None else "held back"
    lives = "alive" if info.alive else absent
    lost = (
        " Its replicas count as lost and are rebuilt on other nodes."
        if force and info.replicas
        else ""
    )
    return f"Forget node {node}, which is {lives} and holds {info.replicas} replicas?{lost}"


def _replace_question(status: ClusterStatus, node: NodeId) -> str:
    replicas = _node(status, node).replicas
    only = [str(s.id) for s in _streams_on(status, node) if len(s.replicas) == 1]
    lost = f" It has the only replica of stream {', '.join(only)}, which is lost." if only else ""
    return (
        f"Let a node with empty volumes take the number {node}? The {replicas} replicas that "
        f"node {node} has count as lost from then on, and its old volumes are refused.{lost}"
    )


def _unrecoverable_question(status: ClusterStatus, node: NodeId) -> str:
    replicas = _node(status, node).replicas
    return (
        f"Give up the copies of {replicas} segments and streams that node {node} has? Entries that "
        "have no other copy are reported as lost from then on."
    )


def _cleanup_question(status: ClusterStatus, node: NodeId) -> str | None:
    """Return a question if there is something to delete."""
    info = _node(status, node)
    if not info.unknown_streams:
        return None
    streams = ", ".join(map(str, info.unknown_streams))
    return f"Delete the data of stream {streams} on node {node} permanently?"


# ---- waiting


def _emptied(status: ClusterStatus, node: NodeId, before: int) -> WaitProgress:
    """Return the number of replicas that have moved away; partial copies count as fractions."""
    info, streams = _node(status, node), _streams_on(status, node)
    left = info.replicas
    sequenced = sum(stream.sequencer == node for stream in streams) if _others(status, node) else 0
    if not left and not sequenced:
        return WaitProgress(True, 1.0, "empty: it may be stopped")
    rebuilt = sum(each.part_done for each in status.rebuilds if each.node == node)
    moved = max(0, before - left) + sum(map(copied, streams)) + rebuilt
    reasons = [*(stream.condition for stream in streams), *info.conditions]
    waiting = next((f": {reason}" for reason in reasons if reason), "")
    sequencers = f" and {sequenced} sequencers" if sequenced else ""
    stored = "" if info.stored_bytes is None else f" ({size(info.stored_bytes)})"
    text = f"{left} replicas{stored}{sequencers} left on node {node}{waiting}"
    return WaitProgress(False, min(1.0, moved / max(before, left, 1)), text)


def _volume_emptied(
    change: Change, status: ClusterStatus, node: NodeId, before: int
) -> WaitProgress:
    """Return the number of replicas that have moved away; partial rebuilds count as fractions."""
    left = change.replicas_left
    if not left:
        return WaitProgress(True, 1.0, "empty: the node can be started without it")
    rebuilds = [each for each in status.rebuilds if each.node == node]
    moved = max(0, before - left) + sum(each.part_done for each in rebuilds)
    streams = _streams_on(status, node)
    reasons = [*(each.waiting for each in rebuilds), *(stream.condition for stream in streams)]
    waiting = next((f": {reason}" for reason in reasons if reason), "")
    text = f"{left} replicas left on the volume{waiting}"
    return WaitProgress(False, min(1.0, moved / max(before, left, 1)), text)


def _others(status: ClusterStatus, node: NodeId) -> int:
    """Return how many other nodes could take the replicas of a node."""
    return sum(n.alive and not n.draining for n in status.nodes if n.id != node)


def _node(status: ClusterStatus, number: NodeId) -> NodeInfo:
    for node in status.nodes:
        if node.id == number:
            return node
    raise NotFound(f"there is no node {number}: `loom node list` shows them")


def _streams_on(status: ClusterStatus, node: NodeId) -> list[StreamInfo]:
    return [
        stream
        for log in status.logs
        for stream in log.streams
        if any(replica.node == node for replica in stream.replicas)
    ]


def _copies(status: ClusterStatus, stream: StreamInfo) -> int:
    """Return how many nodes have each of its entries; the stream itself may be on more."""
    segments = (segment for log in status.logs for segment in log.segments)
    wanted = next(segment.replicas for segment in segments if segment.id == stream.segment)
    return min(wanted, len(stream.replicas))
