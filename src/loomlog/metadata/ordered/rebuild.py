"""The last resort when every round log is lost: rebuild the rounds from what the nodes know.

core.ordered.rebuild decides what can be known; this module asks the nodes. Nothing is written
before everything is certain; then first the nodes given up, if an operator asked for it, and last,
elsewhere, the rounds: no metadata repository starts before those exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from loomlog.core.chained.chain import POSITION_MAX
from loomlog.core.ordered.evidence import Doubt, StreamEvidence, Witness
from loomlog.core.ordered.rebuild import Elsewhere, commits_after, rebuild
from loomlog.core.ordered.rounds import Round
from loomlog.errors import Corrupt, LoomError, NotFound
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import (
    ClusterRecord,
    CountersRecord,
    LogRecord,
    StreamRecord,
    decode,
    encode,
)
from loomlog.metadata.offline.collector import Collector, ReplicaAnswer
from loomlog.metadata.store.contract import MetaStore
from loomlog.metadata.store.memory import MemoryStore
from loomlog.protocol_names import ORDERED
from loomlog.types import Glsn, NodeId, StreamId, SyncMode

EPOCHS_ABOVE: Final = 1000  # epochs that absent nodes and clients may know of
_NO_COMMITS: Final = (1 << 64) - 1  # a high watermark above all
_ASKED_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class LogFinding:
    """The findings about a log."""

    name: str
    tail: Glsn | None  # None: its newest segment has no rounds; its nodes know its end
    doubts: tuple[Doubt, ...]
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings about a cluster."""

    logs: tuple[LogFinding, ...]
    absent: dict[NodeId, tuple[StreamId, ...]]  # did not come, and the streams that wait for them
    given_up: dict[NodeId, tuple[StreamId, ...]]  # did not have to register
    outdated: str  # why the metadata is too old to use; empty: it is not
    epoch: int  # above those of all leaders

    @property
    def certain(self) -> bool:
        return not (self.absent or self.outdated or any(log.doubts for log in self.logs))

    @property
    def records(self) -> list[bytes]:
        """Return the records of the new round log."""
        return [round_.encode() for log in self.logs for round_ in log.rounds]


class Rebuilding:
    """Asks nodes about lost rounds. Created by `rebuilding`."""

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
        """Wait for all nodes that hold replicas, except those in `without`, and ask them. Nodes
        that do not come in time are absent."""
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
        ends_elsewhere = any(place.last == POSITION_MAX for place in elsewhere)
        tail = None if ends_elsewhere else found.high_watermark
        return LogFinding(log.name, tail, found.doubts, found.rounds)

    async def _evidence(self, log: LogRecord, after: dict[StreamId, Glsn]) -> list[StreamEvidence]:
        streams = [self._catalog.streams[stream_id] for stream_id in log.streams]
        return await asyncio.gather(*(self._stream(s, after[s.stream_id]) for s in streams))

    async def _stream(self, stream: StreamRecord, after: Glsn) -> StreamEvidence:
        answers = await asyncio.gather(
            *(self._witness(node, stream, after) for node in stream.replicas)
        )
        witnesses = {n: w for n, w in zip(stream.replicas, answers, strict=True) if w is not None}
        return StreamEvidence(
            stream.stream_id, stream.replicas, stream.epoch, stream.sealed, witnesses
        )

    async def _witness(self, node: NodeId, stream: StreamRecord, after: Glsn) -> Witness | None:
        """Ask a replica; None if it is away, lost its data, is damaged, or is of another stream."""
        try:
            async with self._room:
                answer: ReplicaAnswer = await self._collector.ask(node, stream.stream_id, after)
        except LoomError:
            return None
        if answer.report.damaged or answer.stamp != stream.stamp:
            return None
        caller = self._collector.callers.get(node)
        synced = caller is not None and caller.sync_mode == SyncMode.ALWAYS
        return Witness(answer.report, answer.ran_epoch, synced, answer.commits)


@asynccontextmanager
async def rebuilding(store: MetaStore, listen: str) -> AsyncIterator[Rebuilding]:
    """Take the place of the metadata repository during the block. The store is only read."""
    items = await store.list("")
    if "cluster" not in items:
        raise NotFound("there is no metadata of a cluster: without it nothing can be rebuilt")
    cluster = decode(ClusterRecord, "cluster", items["cluster"].value)
    counters = items.get("counters")
    last = decode(CountersRecord, "counters", counters.value) if counters else CountersRecord()
    copy = MemoryStore()  # a start finishes what a crash interrupted: here only in the copy
    for key, item in items.items():
        await copy.compare_and_swap(key, 0, item.value)
    catalog = await Catalog.load(copy, cluster.cluster_id, no_secret)
    collector = Collector(cluster, catalog.nodes)
    await collector.start(listen)
    try:
        yield Rebuilding(catalog, last.stream_id, collector)
    finally:
        await collector.close()


async def give_up(store: MetaStore, nodes: Collection[NodeId]) -> None:
    """Seal the streams of these nodes and continue without them; spares take their places."""
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
    """Return the positions of segments that are trimmed or have no rounds."""
    segments = log.layout.segments
    found = [Elsewhere(1, segments[0].start - 1)]
    found += [
        Elsewhere(segment.start, POSITION_MAX if segment.end is None else segment.end)
        for segment in segments
        if segment.settings.protocol != ORDERED
    ]
    return [place for place in found if place.first <= place.last]


def no_secret() -> str:
    raise Corrupt("the cluster has no record")
