"""The last resort: every round log is lost, and the rounds are rebuilt from what the nodes know.

What can be known is decided in core.ordered.rebuild; here the nodes are asked. Nothing is written
before everything is certain; then first what gives up nodes, if an operator said so, and at last,
elsewhere, the rounds: until those are there no metadata repository starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from loomlog.core.chained.block import POSITION_MAX
from loomlog.core.ordered.evidence import Doubt, StreamEvidence, Witness
from loomlog.core.ordered.rebuild import Elsewhere, commits_after, rebuild
from loomlog.core.ordered.rounds import Round
from loomlog.errors import Corrupt, LoomError, NotFound
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.collecting import Collector, Told
from loomlog.metadata.memory import MemoryStore
from loomlog.metadata.records import (
    ClusterRecord,
    CountersRecord,
    LogRecord,
    StreamRecord,
    decode,
    encode,
)
from loomlog.metadata.store import MetaStore
from loomlog.types import Glsn, NodeId, StreamId, SyncMode

EPOCHS_ABOVE: Final = 1000  # what nodes and clients may have heard of, and those that came tell not
_NO_COMMITS: Final = (1 << 64) - 1  # a high watermark above all
_ASKED_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class LogFinding:
    """What is known of a log."""

    name: str
    high_watermark: Glsn
    doubts: tuple[Doubt, ...]
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of a cluster."""

    logs: tuple[LogFinding, ...]
    absent: dict[NodeId, tuple[StreamId, ...]]  # who did not come, and what waits for it
    given_up: dict[NodeId, tuple[StreamId, ...]]  # who did not have to
    outdated: str  # why the metadata is too old to go on with; empty: it is not
    epoch: int  # above all that anybody may have led in

    @property
    def certain(self) -> bool:
        return not (self.absent or self.outdated or any(log.doubts for log in self.logs))

    @property
    def records(self) -> list[bytes]:
        """The round log."""
        return [round_.encode() for log in self.logs for round_ in log.rounds]


class Rebuilding:
    """Made by `rebuilding`."""

    def __init__(self, catalog: Catalog, last_stream: StreamId, collector: Collector) -> None:
        self._catalog = catalog
        self._last_stream = last_stream
        self._collector = collector
        self._room = asyncio.Semaphore(_ASKED_AT_ONCE)

    @property
    def address(self) -> str:
        return self._collector.address

    def check_nodes(self, nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            self._catalog.node(node)

    async def examine(
        self,
        *,
        without: Collection[NodeId],
        timeout_s: float,
        waiting: Callable[[list[NodeId]], None],
    ) -> Findings:
        """Wait for all nodes that hold replicas, but those `without` which it shall go on, and ask
        them. Whoever is not there in time is absent."""
        streams_of = self._streams_of()
        wanted = [node for node in streams_of if node not in without]
        await self._collector.wait_for(wanted, timeout_s, waiting)
        logs = [await self._examine(log) for log in self._catalog.logs.values()]
        callers = self._collector.callers
        return Findings(
            tuple(logs),
            absent={node: streams_of[node] for node in wanted if node not in callers},
            given_up={n: s for n, s in streams_of.items() if n in without and n not in callers},
            outdated=self._outdated(),
            epoch=EPOCHS_ABOVE + max((c.leader_epoch for c in callers.values()), default=0),
        )

    def _streams_of(self) -> dict[NodeId, tuple[StreamId, ...]]:
        found: dict[NodeId, tuple[StreamId, ...]] = {}
        for stream in self._catalog.streams.values():
            for node in stream.replicas:
                found[node] = (*found.get(node, ()), stream.stream_id)
        return dict(sorted(found.items()))

    def _outdated(self) -> str:
        for caller in self._collector.callers.values():
            newest = max(caller.streams, default=0)
            if newest > self._last_stream:
                return (
                    f"node {caller.node_id} holds stream {newest}, but the metadata ends with "
                    f"stream {self._last_stream}: it is older than the nodes, restore a newer copy"
                )
        return ""

    # ---- a log

    async def _examine(self, log: LogRecord) -> LogFinding:
        after = dict.fromkeys(log.streams, _NO_COMMITS)
        elsewhere = _elsewhere(log)
        after = commits_after(await self._evidence(log, after), elsewhere)
        found = rebuild(log.log_id, log.trimmed, await self._evidence(log, after), elsewhere)
        return LogFinding(log.name, found.high_watermark, found.doubts, found.rounds)

    async def _evidence(self, log: LogRecord, after: dict[StreamId, Glsn]) -> list[StreamEvidence]:
        streams = [self._catalog.streams[stream_id] for stream_id in log.streams]
        return await asyncio.gather(*(self._stream(s, after[s.stream_id]) for s in streams))

    async def _stream(self, stream: StreamRecord, after: Glsn) -> StreamEvidence:
        answers = await asyncio.gather(
            *(self._witness(node, stream.stream_id, after) for node in stream.replicas)
        )
        witnesses = {n: w for n, w in zip(stream.replicas, answers, strict=True) if w is not None}
        return StreamEvidence(
            stream.stream_id, stream.replicas, stream.epoch, stream.sealed, witnesses
        )

    async def _witness(self, node: NodeId, stream_id: StreamId, after: Glsn) -> Witness | None:
        """None: it is away, has lost its replica, or what it has is damaged."""
        try:
            async with self._room:
                told: Told = await self._collector.ask(node, stream_id, after)
        except LoomError:
            return None
        if told.report.damaged:
            return None
        caller = self._collector.callers.get(node)
        synced = caller is not None and caller.sync_mode == SyncMode.ALWAYS
        return Witness(told.report, told.ran_epoch, synced, told.commits)


@asynccontextmanager
async def rebuilding(store: MetaStore, listen: str) -> AsyncIterator[Rebuilding]:
    """Take the place of the metadata repository until the end of the block. The store is only
    read."""
    items = await store.list("")
    if "cluster" not in items:
        raise NotFound("there is no metadata of a cluster: without it nothing can be rebuilt")
    cluster = decode(ClusterRecord, "cluster", items["cluster"].value)
    counters = items.get("counters")
    last = decode(CountersRecord, "counters", counters.value) if counters else CountersRecord()
    copy = MemoryStore()  # a start finishes what a crash interrupted: here only in the copy
    for key, item in items.items():
        await copy.compare_and_swap(key, 0, item.value)
    catalog = await Catalog.load(copy, cluster.cluster_id, _no_secret)
    collector = Collector(cluster, catalog.nodes)
    await collector.start(listen)
    try:
        yield Rebuilding(catalog, last.stream_id, collector)
    finally:
        await collector.close()


async def give_up(store: MetaStore, nodes: Collection[NodeId]) -> None:
    """Streams go on without these replicas, sealed first; spares take their places."""
    for key, item in (await store.list("stream/")).items():
        stream = decode(StreamRecord, key, item.value)
        gone = [node for node in stream.replicas if node in nodes]
        if gone:
            changed = replace(
                stream,
                replicas=tuple(node for node in stream.replicas if node not in nodes),
                epoch=stream.epoch + 1,
                sealed=True,
                left=tuple(dict.fromkeys((*stream.left, *gone))),
            )
            await store.compare_and_swap(key, item.version, encode(changed))


def _elsewhere(log: LogRecord) -> list[Elsewhere]:
    """Positions of segments that are trimmed, and of those that have no rounds."""
    segments = log.chain.segments
    found = [Elsewhere(1, segments[0].start - 1)]
    found += [
        Elsewhere(segment.start, POSITION_MAX if segment.end is None else segment.end)
        for segment in segments
        if segment.settings.protocol != "ordered"
    ]
    return [place for place in found if place.first <= place.last]


def _no_secret() -> str:
    raise Corrupt("the cluster has no record")
