"""`loom node …`: the storage nodes of a cluster, and what an operator does with them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from loomlog.cli import changes
from loomlog.cli.connection import connected
from loomlog.cli.invocation import Invocation
from loomlog.cli.output import copied, print_json, print_nodes
from loomlog.cli.waiting import Look, Progress
from loomlog.errors import NotFound
from loomlog.types import NodeId

if TYPE_CHECKING:
    from loomlog import Cluster
    from loomlog.client.info import ClusterStatus, NodeInfo, StreamInfo


async def list_all(address: str, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        nodes = (await cluster.status()).nodes
    if as_json:
        print_json([asdict(node) for node in nodes])
    elif nodes:
        print_nodes(nodes)
    else:
        print("no nodes yet: start one with `vsn start`")


async def drain(how: Invocation, node: NodeId) -> None:
    async with connected(how.address) as cluster:
        before = _node(await cluster.status(), node).replicas
        change = await cluster.drain_node(node)
        await changes.say_and_wait(change, how, _emptied(cluster, node, before))


async def undrain(address: str, node: NodeId, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        changes.say(await cluster.undrain_node(node), as_json=as_json)


async def remove(address: str, node: NodeId, *, force: bool, as_json: bool) -> None:
    async with connected(address) as cluster:
        changes.say(await cluster.remove_node(node, force), as_json=as_json)


async def cleanup(address: str, node: NodeId, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        changes.say(await cluster.cleanup_node(node), as_json=as_json)


# ---- what to ask before


async def drain_question(address: str, node: NodeId) -> str | None:
    """Only a drain that cannot finish is worth a question."""
    async with connected(address) as cluster:
        status = await cluster.status()
    _node(status, node)
    others = sum(n.alive and not n.draining for n in status.nodes if n.id != node)
    widest = max((_copies(status, stream) for stream in _streams_on(status, node)), default=0)
    if others >= widest:
        return None
    return (
        f"Node {node} holds streams with {widest} replicas and {others} other nodes could take "
        "them: some stay where they are until there are more nodes. Drain it all the same?"
    )


async def remove_question(address: str, node: NodeId, *, force: bool) -> str:
    async with connected(address) as cluster:
        found = _node(await cluster.status(), node)
    lives = "alive" if found.alive else "dead"
    lost = (
        " Its replicas count as lost and are made anew on other nodes."
        if force and found.replicas
        else ""
    )
    return f"Forget node {node}, which is {lives} and holds {found.replicas} replicas?{lost}"


async def cleanup_question(address: str, node: NodeId) -> str | None:
    """Without anything to delete there is nothing to ask."""
    async with connected(address) as cluster:
        found = _node(await cluster.status(), node)
    if not found.unknown_streams:
        return None
    streams = ", ".join(map(str, found.unknown_streams))
    return f"Delete the data of stream {streams} on node {node} for good?"


# ---- waiting


def _emptied(cluster: Cluster, node: NodeId, before: int) -> Look:
    """Looks how many of its replicas have moved away; one that is being copied counts in part."""

    async def look() -> Progress:
        status = await cluster.status()
        left = [stream for stream in _streams_on(status, node) if not _stays(stream)]
        if not left:
            kept = _node(status, node).replicas
            stays = f"nothing else comes; copies of {kept} copyset segments stay there"
            return Progress(True, 1.0, stays if kept else "empty")
        moving = [stream for stream in left if stream.joining is not None]
        moved = max(0, before - len(left)) + sum(copied(stream) for stream in moving)
        waiting = next((f": {stream.condition}" for stream in left if stream.condition), "")
        text = f"{len(left)} replicas left on node {node}{waiting}"
        return Progress(False, moved / max(before, len(left)), text)

    return look


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


def _stays(stream: StreamInfo) -> bool:
    """Nobody copies elsewhere what there is of it."""
    return stream.copyset is not None and stream.copyset.closed


def _copies(status: ClusterStatus, stream: StreamInfo) -> int:
    """How many nodes have each of its entries. A stream that is not `ordered` may lie on more."""
    if stream.protocol == "ordered":
        return len(stream.replicas)
    segments = (segment for log in status.logs for segment in log.segments)
    return next(segment.replicas for segment in segments if segment.id == stream.segment)
