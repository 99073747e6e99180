"""The records of streams of protocol `ordered`, and of what nodes hold of them.

A stream's record exists before any node gets an order for the stream. A stream is abandoned when
its log or its segment is gone, or when its creation was cancelled. Its record then lists the nodes
that may still have data of it, and is deleted when none is left. If the stream had entries, the
record stays as long as its segment, because a rebuild of the rounds needs their number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from loomlog.core.ordered.stream_record import StreamRecord
from loomlog.errors import Busy, NotFound
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.loglet_records import LogletRecords
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.store.contract import MetaStore
from loomlog.types import Glsn, LogId, NodeId, StreamId

PREFIX = "stream/"  # of the keys of records


class StreamRecords(LogletRecords[StreamRecord]):
    """The streams of all logs. Created by `load`."""

    prefix: ClassVar[str] = PREFIX
    kind = StreamRecord

    def __init__(self, store: MetaStore, catalog: Catalog) -> None:
        super().__init__(store, catalog)
        self.streams: dict[StreamId, StreamRecord] = {}  # without abandoned ones
        self.abandoned: dict[StreamId, StreamRecord] = {}  # their data on nodes is deleted
        self.filling: set[StreamId] = set()  # streams that a node is joining
        # Those of `streams` of which a node may have data; ordered sets.
        self._held_by: defaultdict[NodeId, dict[StreamId, None]] = defaultdict(dict)

    def number_of(self, record: StreamRecord) -> StreamId:
        return record.stream_id

    # ---- queries

    def stream(self, stream_id: StreamId) -> StreamRecord:
        stream = self.streams.get(stream_id)
        if stream is None:
            raise NotFound(f"there is no stream {stream_id}: look at `loom stream list`")
        return stream

    def of_log(self, log_id: LogId) -> list[StreamRecord]:
        """Return the streams of a log that are not abandoned, in order."""
        found = (s for s in super().of_log(log_id) if s.stream_id in self.streams)
        return sorted(found, key=lambda stream: stream.stream_id)

    def of_segment(self, log: LogRecord, loglet: LogId) -> list[StreamRecord]:
        return [stream for stream in self.of_log(log.log_id) if stream.loglet == loglet]

    def sets_of(self, record: StreamRecord) -> list[tuple[NodeId, ...]]:
        return [] if self._is_abandoned(record) else [record.replicas]

    def _is_abandoned(self, record: StreamRecord) -> bool:
        return record.taken_back or self.catalog.segment_of(record) is None

    def counts(self, stream: StreamRecord) -> bool:
        """Return whether an abandoned stream had entries of an existing segment."""
        return stream.entries_gone > 0 and self.catalog.segment_of(stream) is not None

    def entries_gone(self, log_id: LogId) -> int:
        """Return the number of entries of streams that were removed from the segments of a log."""
        return sum(s.entries_gone for s in self._abandoned_of(log_id) if self.counts(s))

    def on_node(self, node: NodeId) -> list[StreamRecord]:
        """Return the streams with a replica on a node, including those being created."""
        return [stream for stream in self.held_by(node) if node in stream.filled]

    def held_by(self, node: NodeId) -> list[StreamRecord]:
        """Return the streams that are not abandoned and of which a node may have data."""
        return [self.streams[stream_id] for stream_id in self._held_by.get(node, ())]

    def logs_on(self, node: NodeId) -> list[LogId]:
        """Return the logs with a replica on a node."""
        return [*dict.fromkeys(stream.log_id for stream in self.on_node(node))]

    def wanted_replicas(self, stream: StreamRecord) -> int:
        segment = self.catalog.segment_of(stream)
        wanted = segment.settings.replicas if segment else len(stream.replicas)
        return stream.wanted_replicas or wanted

    def takes_appends(self, stream: StreamRecord) -> bool:
        """Return whether the segment of a stream is active, and not being switched."""
        log = self.catalog.log_of(stream)
        return log is None or log.layout.takes_appends(stream.loglet)

    def trimmed(self, stream: StreamRecord) -> Glsn:
        """Return the position up to which the log of a stream is trimmed."""
        log = self.catalog.log_of(stream)
        return log.trimmed if log else 0

    def leaving(self, stream: StreamRecord) -> NodeId | None:
        """Return the replica to be replaced next at an operator's request."""
        if stream.leaving in stream.replicas:
            return stream.leaving
        nodes = self.catalog.nodes
        return next((n for n in stream.replicas if n in nodes and nodes[n].draining), None)

    # ---- changes

    async def add_streams(
        self,
        log: LogRecord,
        loglet: LogId,
        placement: Sequence[tuple[NodeId, ...]],
        *,
        relief: bool = False,
    ) -> list[StreamRecord]:
        """Add sealed streams on the given nodes to a segment of a log."""
        numbers = await self.catalog.new_streams(len(placement))
        streams = [
            StreamRecord(
                stream_id,
                log.log_id,
                loglet,
                nodes,
                epoch=1,
                sealed=True,
                sealed_at=1,  # it has no entries
                stamp=self.catalog.new_stamp(),
                births=tuple((node, self.catalog.new_stamp()) for node in nodes),
                relief=relief,
            )
            for stream_id, nodes in zip(numbers, placement, strict=True)
        ]
        for stream in streams:
            await self.add(stream)
        return streams

    async def update(self, stream_id: StreamId, **changes: Any) -> StreamRecord:
        return await self.change(stream_id, lambda stream: replace(stream, **changes))

    async def wish(self, stream_id: StreamId, joining: NodeId | None = None, **more: Any) -> None:
        """Store the replicas that a stream should have; raise Busy if the record changed since it
        was read."""
        known = self.stream(stream_id)

        def wished(stream: StreamRecord) -> StreamRecord:
            if stream.placement != known.placement:
                raise Busy(f"the replicas of stream {stream_id} have just changed: try again")
            if joining is not None:
                stream = stream.join(joining, self.catalog.new_stamp())
            return replace(stream, **more)

        await self.change(stream_id, wished)

    async def swap_replicas(
        self,
        stream_id: StreamId,
        replicas: tuple[NodeId, ...],
        dropping: Collection[NodeId],
        births: Mapping[NodeId, int],
    ) -> None:
        """Replace the replicas. Clear `joining` if that node is now a replica, and `leaving` if it
        is not. A replica that an operator removed without a successor is unregistered. `births` are
        those of newcomers, which may have joined with existing data."""
        await self.change(stream_id, lambda s: s.with_replicas(replicas, tuple(dropping), births))

    # ---- indexes

    def log_deleted(self, log_id: LogId) -> list[StreamId]:
        """Abandon the streams of a deleted log; return those to be removed."""
        for stream in self.of_log(log_id):
            self._changed(stream, stream)
        return self.without_segment(log_id)

    def without_segment(self, log_id: LogId) -> list[StreamId]:
        """Return the abandoned streams of a log whose segments are gone."""
        abandoned = self._abandoned_of(log_id)
        return [s.stream_id for s in abandoned if self.catalog.segment_of(s) is None]

    def _abandoned_of(self, log_id: LogId) -> list[StreamRecord]:
        return [s for s in super().of_log(log_id) if s.stream_id in self.abandoned]

    def _show(self, record: StreamRecord) -> None:
        super()._show(record)
        if self._is_abandoned(record):
            self.abandoned[record.stream_id] = record
            return
        self.streams[record.stream_id] = record
        self._count(record, 1)
        for node in record.holders:
            self._held_by[node][record.stream_id] = None
        if record.joining is not None:
            self.filling.add(record.stream_id)

    def _hide(self, record: StreamRecord) -> None:
        super()._hide(record)
        self.filling.discard(record.stream_id)
        if self.abandoned.pop(record.stream_id, None) is None:
            shown = self.streams.pop(record.stream_id)
            self._count(shown, -1)
            for node in shown.holders:
                del self._held_by[node][record.stream_id]

    def _changed(self, before: StreamRecord, after: StreamRecord) -> None:
        self._hide(before)
        self._show(after)

    def _count(self, record: StreamRecord, by: int) -> None:
        for node in record.filled:
            self.catalog.load_of[node] += by

    def _gone(self, number: int) -> NotFound:
        return NotFound(f"stream {number} was deleted")
