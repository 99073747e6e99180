"""`loom stream …`: the log streams of a cluster, and what an operator does with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from loomlog.cli import changes
from loomlog.cli.connection import connected
from loomlog.cli.invocation import Invocation
from loomlog.cli.output import copied, print_json, print_scrubs, print_streams
from loomlog.cli.waiting import Look, Progress, until_finished
from loomlog.errors import DataLoss, NotFound
from loomlog.types import NodeId, ReplicaState, StreamId

if TYPE_CHECKING:
    from loomlog import Cluster
    from loomlog.client.info import StreamInfo
    from loomlog.client.operator import Change

Arrived = Callable[["StreamInfo"], bool]


async def list_all(address: str, log: str | None, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        logs = await cluster.logs() if log is None else [await cluster.log(log).describe()]
    if as_json:
        print_json([{"log": info.name} | asdict(s) for info in logs for s in info.streams])
    elif logs:
        print_streams(logs)
    else:
        print("no streams yet: make a log with `loom log create NAME`")


async def seal(how: Invocation, stream: StreamId) -> None:
    async with connected(how.address) as cluster:
        change = await cluster.seal_stream(stream)
        await changes.say_and_wait(change, how, _arrived(cluster, stream, _is_sealed))


async def unseal(how: Invocation, stream: StreamId) -> None:
    async with connected(how.address) as cluster:
        change = await cluster.unseal_stream(stream)
        await changes.say_and_wait(change, how, _arrived(cluster, stream, _is_running))


async def add(how: Invocation, log: str) -> None:
    async with connected(how.address) as cluster:
        change = await cluster.add_stream(log)
        look = None
        if change.stream is not None:
            look = _arrived(cluster, change.stream, _is_running)
        await changes.say_and_wait(change, how, look)


async def add_replica(how: Invocation, stream: StreamId, node: NodeId | None) -> None:
    async with connected(how.address) as cluster:
        before = await _stream(cluster, stream)
        change = await cluster.add_replica(stream, node)
        more = _settled(before, lambda now: len(now.replicas) > len(before.replicas))
        await changes.say_and_wait(change, how, _arrived(cluster, stream, more))


async def move(
    how: Invocation, stream: StreamId, from_node: NodeId, to_node: NodeId | None
) -> None:
    async with connected(how.address) as cluster:
        before = await _stream(cluster, stream)
        change = await cluster.move_stream(stream, from_node, to_node)
        moved = _settled(before, lambda now: all(r.node != from_node for r in now.replicas))
        await changes.say_and_wait(change, how, _arrived(cluster, stream, moved))


async def unregister(address: str, stream: StreamId, node: NodeId, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        changes.say(await cluster.unregister_replica(stream, node), as_json=as_json)


async def scrub(how: Invocation, stream: StreamId) -> None:
    """DataLoss in the end if something is corrupt and no replica had it whole."""
    async with connected(how.address) as cluster:
        change = await cluster.scrub_stream(stream)
        if not how.wait:
            changes.say(change, as_json=how.as_json)
            return
        if not how.as_json:
            changes.say_begun(change)
        latest = [change]
        waited_s = await until_finished(_scrubbed(cluster, stream, latest), how.timeout_s)
    changes.say(latest[-1], as_json=how.as_json, waited_s=waited_s)
    if not how.as_json:
        print_scrubs(latest[-1].scrubs)
    _raise_what_remains(stream, latest[-1])


def _raise_what_remains(stream: StreamId, change: Change) -> None:
    for scrub in change.scrubs:
        if scrub.error:
            raise DataLoss(f"stream {stream} on node {scrub.node}: {scrub.error}")
        if left := scrub.corrupt_batches - scrub.repaired_batches:
            raise DataLoss(f"{left} batches of stream {stream} stay corrupt on node {scrub.node}")


# ---- waiting


def _is_sealed(stream: StreamInfo) -> bool:
    return stream.state == ReplicaState.SEALED


def _is_running(stream: StreamInfo) -> bool:
    return stream.state == ReplicaState.RUNNING


def _settled(before: StreamInfo, changed: Arrived) -> Arrived:
    """Its replicas have changed, and it runs again if it did before."""

    def arrived(now: StreamInfo) -> bool:
        at_rest = now.joining is None and (_is_running(now) or not _is_running(before))
        return at_rest and changed(now)

    return arrived


def _arrived(cluster: Cluster, stream: StreamId, arrived: Arrived) -> Look:
    async def look() -> Progress:
        now = await _stream(cluster, stream)
        if arrived(now):
            return Progress(True, 1.0, now.state)
        return Progress(False, copied(now), now.condition or f"stream {stream} is {now.state}")

    return look


def _scrubbed(cluster: Cluster, stream: StreamId, latest: list[Change]) -> Look:
    """Keeps the newest answer in `latest`."""

    async def look() -> Progress:
        latest[:] = [await cluster.scrub_stream(stream, tell_only=True)]
        scrubs = latest[0].scrubs
        entries = sum(scrub.entries for scrub in scrubs)
        checked = sum(scrub.checked_entries for scrub in scrubs)
        return Progress(
            finished=all(scrub.finished or scrub.error for scrub in scrubs),
            share=checked / entries if entries else 1.0,
            text=f"{checked:,} of {entries:,} entries on {len(scrubs)} nodes",
        )

    return look


async def _stream(cluster: Cluster, number: StreamId) -> StreamInfo:
    for log in await cluster.logs():
        for stream in log.streams:
            if stream.id == number:
                return stream
    raise NotFound(f"there is no stream {number}: `loom stream list` shows them")
