"""Rebuild the rounds of streams from what their replicas know (metadata/offline/rebuild.py).

core.ordered.rebuild decides what is certain; this module asks the nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from loomlog.core.ordered.evidence import StreamEvidence, Witness
from loomlog.core.ordered.rebuild import (
    Elsewhere,
    Rebuilt,
    commits_after,
    rebuild,
    trimmed_and_gone,
)
from loomlog.core.ordered.stream_record import StreamRecord
from loomlog.errors import LoomError
from loomlog.limits import POSITION_MAX
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import CountersRecord, LogRecord, decode, encode
from loomlog.metadata.offline.collector import Collector, ReplicaAnswer
from loomlog.metadata.offline.outdated import Past
from loomlog.metadata.offline.rebuild import Findings, LogFinding, RoundRebuild
from loomlog.metadata.ordered.records import PREFIX, StreamRecords
from loomlog.metadata.store.contract import MetaStore
from loomlog.protocol_names import ORDERED
from loomlog.types import Glsn, NodeId, StreamId, SyncMode

EPOCHS_ABOVE: Final = 1000  # epochs that absent nodes and clients may know of
_NO_COMMITS: Final = (1 << 64) - 1  # a high watermark above all others
_ASKED_AT_ONCE: Final = 64


class OrderedRebuild(RoundRebuild):
    """Rebuilds rounds from the replicas of streams."""

    def __init__(
        self, records: StreamRecords, last_stream: StreamId, collector: Collector, past: Past
    ) -> None:
        super().__init__(records.catalog, collector, past)
        self._records = records
        self._last_stream = last_stream
        self._outdated: Collection[NodeId] = ()
        self._room = asyncio.Semaphore(_ASKED_AT_ONCE)

    @classmethod
    async def load(
        cls, store: MetaStore, catalog: Catalog, collector: Collector, past: Past
    ) -> OrderedRebuild:
        item = await store.get("counters")
        last = decode(CountersRecord, "counters", item.value) if item else CountersRecord()
        records = await StreamRecords.load(store, catalog)
        return cls(records, last.stream_id, collector, past)

    async def examine(
        self,
        *,
        without: Collection[NodeId],
        was_away: Collection[NodeId] = (),
        timeout_s: float,
        waiting: Callable[[list[NodeId]], None],
    ) -> Findings:
        streams_of = self._streams_of()
        wanted = [node for node in streams_of if node not in without]
        await self._collector.wait_for(wanted, timeout_s, waiting)
        callers = self._collector.callers
        self._outdated = self._past.outdated(callers, was_away)
        logs = [await self._examine(log) for log in self._catalog.logs.values()]
        return Findings(
            tuple(logs),
            absent={node: streams_of[node] for node in wanted if node not in callers},
            given_up={n: s for n, s in streams_of.items() if n in without and n not in callers},
            outdated=self._newer_stream(),
            epoch=EPOCHS_ABOVE + max((c.leader_epoch for c in callers.values()), default=0),
        )

    def _streams_of(self) -> dict[NodeId, tuple[StreamId, ...]]:
        found: dict[NodeId, tuple[StreamId, ...]] = {}
        for stream in self._records.streams.values():
            for node in stream.replicas:
                found[node] = (*found.get(node, ()), stream.stream_id)
        return dict(sorted(found.items()))

    def _newer_stream(self) -> str:
        """Return what shows that the metadata is too old; "" if nothing does."""
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
        streams, elsewhere = self._records.of_log(log.log_id), _elsewhere(log)
        gone = self._records.entries_gone(log.log_id)
        after = dict.fromkeys((stream.stream_id for stream in streams), _NO_COMMITS)
        after = commits_after(await self._evidence(streams, after), elsewhere, gone)
        evidence = await self._evidence(streams, after)
        found = rebuild(log.log_id, log.trimmed, evidence, elsewhere, gone)
        if found.doubts and log.trimmed:
            found = await self._without_removed(log, streams, after) or found
        ends_elsewhere = any(place.last == POSITION_MAX for place in elsewhere)
        tail = None if ends_elsewhere else found.high_watermark
        rounds = tuple(round_.encode() for round_ in found.rounds)
        return LogFinding(log.name, tail, found.doubts, rounds)

    async def _without_removed(
        self, log: LogRecord, streams: Iterable[StreamRecord], after: Mapping[StreamId, Glsn]
    ) -> Rebuilt | None:
        """Rebuild a log of which streams may have been removed that the metadata does not know;
        None if doubts remain."""
        further = {stream: min(glsn, log.trimmed) for stream, glsn in after.items()}
        evidence, elsewhere = await self._evidence(streams, further), _elsewhere(log)
        gone = trimmed_and_gone(log.trimmed, evidence, elsewhere)
        found = rebuild(log.log_id, log.trimmed, evidence, elsewhere, gone)
        return None if found.doubts else found

    async def _evidence(
        self, streams: Iterable[StreamRecord], after: dict[StreamId, Glsn]
    ) -> list[StreamEvidence]:
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
        """Ask a replica; None if it is away, lost its data, is damaged, or belongs to another
        stream."""
        try:
            async with self._room:
                answer: ReplicaAnswer = await self._collector.ask(node, stream.stream_id, after)
        except LoomError:
            return None
        if answer.report.damaged or answer.stamp != stream.stamp:
            return None
        caller = self._collector.callers.get(node)
        synced = caller is not None and caller.sync_mode == SyncMode.ALWAYS
        outdated = node in self._outdated
        return Witness(answer.report, answer.ran_epoch, synced, answer.commits, outdated)

    @staticmethod
    async def give_up(store: MetaStore, nodes: Collection[NodeId]) -> None:
        """Seal the streams of these nodes and continue without them; spares take their places."""
        for key, item in (await store.list(PREFIX)).items():
            stream = decode(StreamRecord, key, item.value)
            changed = stream.give_up(nodes)
            if changed != stream:
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
