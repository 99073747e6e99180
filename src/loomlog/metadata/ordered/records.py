"""The records of streams of protocol `ordered`, and of what nodes hold of them.

A stream's record exists before any node learns of the stream. A stream is abandoned when its log or
its segment is gone, or when it was taken back; its record then says which nodes may still have
something of it, and is deleted with the last of that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from loomlog.errors import Busy, NotFound
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.loglet_records import LogletRecords
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.store.contract import MetaStore
from loomlog.types import LogId, NodeId, StreamId

PREFIX = "stream/"  # of the keys of records


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream of a log, with its replicas and what operators want of it."""

    stream_id: StreamId
    log_id: LogId
    loglet: LogId  # of its segment
    replicas: tuple[NodeId, ...]  # the first is the primary
    epoch: int
    sealed: bool
    wanted_running: bool = True  # False: an operator sealed it
    wanted_replicas: int = 0  # 0: as many as its log says
    joining: NodeId | None = None  # is being filled, to become a replica
    leaving: NodeId | None = None  # an operator wants this replica elsewhere, or gone
    dropping: tuple[NodeId, ...] = ()  # what these hold of it is to be deleted
    left: tuple[NodeId, ...] = ()  # were replicas, and keep what they have until the log is deleted
    stamp: int = 0  # of its creation; stored with every replica, and named to delete one
    births: tuple[tuple[NodeId, int], ...] = ()  # of the replicas that were ordered, by node
    unregistered: tuple[NodeId, ...] = ()  # by an operator; what they keep is not taken up again
    taken_back: bool = False  # it never ran, or has nothing left

    @property
    def placement(self) -> tuple[tuple[NodeId, ...], NodeId | None, NodeId | None]:
        """The replicas, and which of them join and leave."""
        return self.replicas, self.joining, self.leaving

    @property
    def filled(self) -> tuple[NodeId, ...]:
        """The nodes with a replica, or with one that is being made there."""
        return self.replicas if self.joining is None else (*self.replicas, self.joining)

    @property
    def holders(self) -> tuple[NodeId, ...]:
        """All nodes that may have something of it."""
        return tuple(dict.fromkeys((*self.filled, *self.dropping, *self.left)))

    def birth_on(self, node: NodeId) -> int:
        return dict(self.births).get(node, 0)

    def with_replicas(
        self,
        replicas: tuple[NodeId, ...],
        dropping: tuple[NodeId, ...],
        births: Mapping[NodeId, int],
    ) -> StreamRecord:
        left = dict.fromkeys((*self.left, *self.replicas))
        sent_away = () if self.leaving is None else (self.leaving,)
        unregistered = {*self.unregistered, *sent_away}.difference(replicas, dropping)
        return replace(
            self,
            replicas=replicas,
            joining=None if self.joining in replicas else self.joining,
            leaving=self.leaving if self.leaving in replicas else None,
            dropping=tuple(dict.fromkeys((*self.dropping, *dropping))),
            left=tuple(n for n in left if n not in replicas and n not in dropping),
            births=tuple({**dict(self.births), **births}.items()),
            unregistered=tuple(sorted(unregistered)),
        )

    def without_dropped(self, node: NodeId) -> StreamRecord:
        return replace(self, dropping=_without((node,), self.dropping))

    def without_holders(self, nodes: Collection[NodeId]) -> StreamRecord:
        """Forget nodes that have nothing of it any more."""
        return replace(
            self,
            replicas=_without(nodes, self.replicas),
            joining=None if self.joining in nodes else self.joining,
            dropping=_without(nodes, self.dropping),
            left=_without(nodes, self.left),
            unregistered=_without(nodes, self.unregistered),
        )


class StreamRecords(LogletRecords[StreamRecord]):
    """The streams of all logs. Created by `load`."""

    prefix: ClassVar[str] = PREFIX
    kind = StreamRecord

    def __init__(self, store: MetaStore, catalog: Catalog) -> None:
        super().__init__(store, catalog)
        self.streams: dict[StreamId, StreamRecord] = {}  # without those that are abandoned
        self.abandoned: dict[StreamId, StreamRecord] = {}  # what nodes have of them is deleted
        self.filling: set[StreamId] = set()  # streams that a node is joining

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

    def on_node(self, node: NodeId) -> list[StreamRecord]:
        """Return the streams with a replica on a node, or with one that is being made there."""
        return [stream for stream in self.streams.values() if node in stream.filled]

    def wanted_replicas(self, stream: StreamRecord) -> int:
        segment = self.catalog.segment_of(stream)
        wanted = segment.settings.replicas if segment else len(stream.replicas)
        return stream.wanted_replicas or wanted

    def takes_appends(self, stream: StreamRecord) -> bool:
        """Return whether the segment of a stream is active, and not being switched."""
        log = self.catalog.log_of(stream)
        return log is None or log.layout.takes_appends(stream.loglet)

    def leaving(self, stream: StreamRecord) -> NodeId | None:
        """Return the replica to be replaced next because an operator named it or its node."""
        if stream.leaving in stream.replicas:
            return stream.leaving
        nodes = self.catalog.nodes
        return next((n for n in stream.replicas if n in nodes and nodes[n].draining), None)

    # ---- changes

    async def add_streams(
        self, log: LogRecord, loglet: LogId, placement: Sequence[tuple[NodeId, ...]]
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
                stamp=self.catalog.new_stamp(),
                births=tuple((node, self.catalog.new_stamp()) for node in nodes),
            )
            for stream_id, nodes in zip(numbers, placement, strict=True)
        ]
        for stream in streams:
            await self.add(stream)
        return streams

    async def update(self, stream_id: StreamId, **changes: Any) -> StreamRecord:
        return await self.change(stream_id, lambda s: self._with_birth(s, replace(s, **changes)))

    async def wish(self, stream_id: StreamId, **wishes: Any) -> None:
        """Write which replicas a stream should have; Busy if that changed since it was read."""
        known = self.stream(stream_id)

        def wished(stream: StreamRecord) -> StreamRecord:
            if stream.placement != known.placement:
                raise Busy(f"the replicas of stream {stream_id} have just changed: try again")
            return self._with_birth(stream, replace(stream, **wishes))

        await self.change(stream_id, wished)

    def _with_birth(self, before: StreamRecord, after: StreamRecord) -> StreamRecord:
        """Give a newcomer a birth of its own, so that giving it up deletes nothing else."""
        node = after.joining
        if node is None or node == before.joining:
            return after
        births = tuple(birth for birth in after.births if birth[0] != node)
        return replace(after, births=(*births, (node, self.catalog.new_stamp())))

    async def swap_replicas(
        self,
        stream_id: StreamId,
        replicas: tuple[NodeId, ...],
        dropping: Collection[NodeId],
        births: Mapping[NodeId, int],
    ) -> None:
        """Replace the replicas. Clears `joining` if that node is now a replica, and `leaving` if it
        is not. A replica that an operator removed without a successor is unregistered. `births`
        are those of newcomers: they may have joined with the data they had."""
        await self.change(stream_id, lambda s: s.with_replicas(replicas, tuple(dropping), births))

    async def drop_joining(self, stream_id: StreamId, node: NodeId) -> None:
        """Give up a newcomer; its partial replica is to be deleted."""

        def dropped(stream: StreamRecord) -> StreamRecord:
            dropping = tuple(dict.fromkeys((*stream.dropping, node)))
            return replace(stream, joining=None, dropping=dropping)

        await self.change(stream_id, dropped)

    # ---- indexes

    def log_deleted(self, log_id: LogId) -> list[StreamId]:
        """Abandon the streams of a log that is gone, and return them."""
        streams = self.of_log(log_id)
        for stream in streams:
            self._changed(stream, stream)
        return [stream.stream_id for stream in streams]

    def _show(self, record: StreamRecord) -> None:
        super()._show(record)
        if record.taken_back or self.catalog.segment_of(record) is None:
            self.abandoned[record.stream_id] = record
            return
        self.streams[record.stream_id] = record
        self._count(record, 1)
        if record.joining is not None:
            self.filling.add(record.stream_id)

    def _hide(self, record: StreamRecord) -> None:
        super()._hide(record)
        self.filling.discard(record.stream_id)
        if self.abandoned.pop(record.stream_id, None) is None:
            self._count(self.streams.pop(record.stream_id), -1)

    def _changed(self, before: StreamRecord, after: StreamRecord) -> None:
        self._hide(before)
        self._show(after)

    def _count(self, record: StreamRecord, by: int) -> None:
        for node in record.filled:
            self.catalog.load_of[node] += by

    def _gone(self, number: int) -> NotFound:
        return NotFound(f"stream {number} was deleted")


def _without(gone: Collection[NodeId], nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    return tuple(node for node in nodes if node not in gone)
