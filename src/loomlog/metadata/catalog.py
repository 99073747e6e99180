"""What the cluster consists of: the metadata in memory, always as durable as it looks.

Reads are plain attributes. Every write goes to the MetaStore by compare-and-swap first, one after
the other; when it returned, it holds and shows here. Several keys that belong together are written
in an order that `load` can finish or take back after a crash:

    create a log    its streams, then the log (creating), … then the log (no longer creating)
    delete a log    its tombstone (this decides), then the log, then its streams
    add a stream    the stream, then the log (this decides); taken back in reverse
    switch a log    each step is one write of the log (core/segments.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from loomlog.core.segments import Chain, Segment, Settings
from loomlog.errors import AlreadyExists, InvalidArgument, NotFound
from loomlog.metadata.kept_records import KeptRecords
from loomlog.metadata.records import (
    ChainedRecord,
    ClusterRecord,
    CopysetRecord,
    CountersRecord,
    LogRecord,
    NodeRecord,
    StreamRecord,
    TombstoneRecord,
    log_key,
    node_key,
    stream_key,
    tombstone_key,
)
from loomlog.metadata.store import MetaStore
from loomlog.types import Glsn, LogId, NodeId, StreamId


class Catalog(KeptRecords):
    """Made by `load`."""

    @classmethod
    async def load(
        cls, store: MetaStore, cluster_id: str, new_secret: Callable[[], str]
    ) -> Catalog:
        """Read everything, and finish what a crash interrupted; a new cluster gets its secret."""
        catalog = cls(store)
        await catalog._read()
        if not catalog.cluster.cluster_id:
            await catalog._put("cluster", ClusterRecord(cluster_id, new_secret()))
        if catalog.cluster.cluster_id != cluster_id:
            raise InvalidArgument(
                f"this metadata belongs to cluster {catalog.cluster.cluster_id!r}, "
                f"not {cluster_id!r}: give the right cluster id or another directory"
            )
        await catalog._finish_interrupted()
        return catalog

    async def _finish_interrupted(self) -> None:
        for log in list(self.logs.values()):
            if log.creating or log.log_id in self.tombstones:
                await self.delete_log(log.name)
        for log in list(self.logs.values()):
            for stream_id in self.without_segment(log):
                await self.take_back_stream(log.name, stream_id)
        known = {stream_id for log in self.logs.values() for stream_id in log.streams}
        for stream_id in list(self.streams):
            if stream_id not in known:
                await self._put(stream_key(stream_id), None)

    # ---- nodes

    def node(self, node_id: NodeId) -> NodeRecord:
        node = self.nodes.get(node_id)
        if node is None:
            raise NotFound(f"there is no node {node_id}: look at `loom node list`")
        return node

    @property
    def locations(self) -> dict[NodeId, str]:
        """Which nodes may fail together; empty: nobody said."""
        return {node.node_id: node.location for node in self.nodes.values()}

    async def put_node(self, node: NodeRecord, *, copies_lost: bool = False) -> NodeRecord:
        """A node as it says it is; what operators want of it stays, unless it began anew. Then, or
        when it says so, it has lost its copies of all loglets that there are."""
        async with self._writing:
            known = self.nodes.get(node.node_id)
            if known is not None and known.node_secret == node.node_secret:
                node = replace(
                    node,
                    draining=known.draining,
                    removing=known.removing,
                    lost_below=known.lost_below,
                )
            elif known is not None:
                copies_lost = True
            if copies_lost:
                node = replace(node, lost_below=self._counters.log_id + 1)
            if known != node:
                await self._write(node_key(node.node_id), node)
            return node

    async def update_node(self, node_id: NodeId, **changes: Any) -> NodeRecord:
        async with self._writing:
            changed = replace(self.node(node_id), **changes)
            await self._write(node_key(node_id), changed)
            return changed

    async def remove_node(self, node_id: NodeId) -> None:
        await self._put(node_key(node_id), None)
        for tombstone in list(self.tombstones.values()):
            streams = {stream_id for stream_id, _ in tombstone.remains}
            await self.replicas_gone(tombstone.log_id, streams, node_id)

    def streams_on(self, node_id: NodeId) -> list[StreamRecord]:
        """Those with a replica there, or with one that is being made."""
        return [s for s in self.streams.values() if node_id in (*s.replicas, s.joining)]

    # ---- logs

    def log(self, name: str) -> LogRecord:
        """A log that exists for its users."""
        log = self.logs.get(name)
        if log is None or log.creating or log.log_id in self.tombstones:
            raise NotFound(f"there is no log {name!r}: create it, or look at `loom log list`")
        return log

    def version_of(self, log: LogRecord) -> int:
        keys = [log_key(log.name), *map(stream_key, log.streams)]
        return max(self._versions.get(key, 0) for key in keys)

    async def create_log(
        self, name: str, protocol: str, replicas: int, placement: list[tuple[NodeId, ...]]
    ) -> LogRecord:
        """Ids for the log and its streams, all of them sealed, and the log marked as creating."""
        if name in self.logs:
            raise AlreadyExists(f"there is a log {name!r} already: choose another name")
        log_id, first = await self._take_ids(len(placement))
        ids = tuple(range(first, first + len(placement)))
        for stream_id, nodes in zip(ids, placement, strict=True):
            stream = StreamRecord(stream_id, log_id, nodes, epoch=1, sealed=True)
            await self._put(stream_key(stream_id), stream)
        log = LogRecord(log_id, name, protocol, replicas, ids, creating=True)
        await self._put(log_key(name), log)
        return log

    async def create_lone_log(self, name: str, settings: Settings) -> LogRecord:
        """Of a protocol that has no streams here; likewise."""
        if name in self.logs:
            raise AlreadyExists(f"there is a log {name!r} already: choose another name")
        log_id = await self.new_loglet()
        segments = (Segment(log_id, settings, 1),)
        protocol, replicas = settings.protocol, settings.replicas
        log = LogRecord(log_id, name, protocol, replicas, (), creating=True, segments=segments)
        await self._put(log_key(name), log)
        return log

    async def log_created(self, name: str, retention_s: int = 0) -> LogRecord:
        return await self._update_log(name, creating=False, retention_s=retention_s)

    async def set_retention(self, name: str, retention_s: int) -> LogRecord:
        return await self._update_log(self.log(name).name, retention_s=retention_s)

    async def trim_log(self, name: str, position: Glsn) -> LogRecord:
        if position <= self.log(name).trimmed:
            return self.log(name)
        return await self._change_log(name, lambda log: log.trim(position))

    async def new_loglet(self) -> LogId:
        return (await self._take_ids(0))[0]

    async def new_stream(self) -> StreamId:
        """An id for a stream that is not kept here."""
        return (await self._take_ids(1, logs=0))[1]

    async def swap_chain(self, name: str, expected: Chain, chain: Chain) -> bool:
        """False if it is another one than expected by now."""
        async with self._writing:
            log = self.log(name)
            if log.chain != expected:
                return False
            await self._write(log_key(name), log.with_chain(chain))
            return True

    async def delete_log(self, name: str) -> TombstoneRecord:
        """From the first write on the log is gone, whatever happens."""
        log = self.logs[name]
        streams = [self.streams[stream_id] for stream_id in log.streams]
        remains = tuple((stream.stream_id, self._holders(stream)) for stream in streams)
        tombstone = self.tombstones.get(log.log_id) or TombstoneRecord(log.log_id, name, remains)
        await self._put(tombstone_key(log.log_id), tombstone)
        await self._put(log_key(name), None)
        for stream_id in log.streams:
            await self._put(stream_key(stream_id), None)
        if not tombstone.remains:
            await self._put(tombstone_key(log.log_id), None)
        return tombstone

    def _holders(self, stream: StreamRecord) -> tuple[NodeId, ...]:
        """Every node that may have something of it on disk, as far as it is known."""
        joining = () if stream.joining is None else (stream.joining,)
        holders = dict.fromkeys((*stream.replicas, *joining, *stream.dropping, *stream.left))
        return tuple(node for node in holders if node in self.nodes)

    async def replicas_gone(self, log_id: LogId, streams: set[StreamId], node: NodeId) -> None:
        """A node has removed its replicas of these streams of a deleted log."""
        async with self._writing:
            tombstone = self.tombstones.get(log_id)
            if tombstone is None:
                return
            left = tuple(
                (stream, nodes)
                for stream, kept in tombstone.remains
                if (nodes := tuple(n for n in kept if stream not in streams or n != node))
            )
            changed = replace(tombstone, remains=left) if left else None
            await self._write(tombstone_key(log_id), changed)

    # ---- streams

    def stream(self, stream_id: StreamId) -> StreamRecord:
        stream = self.streams.get(stream_id)
        if stream is None:
            raise NotFound(f"there is no stream {stream_id}: look at `loom stream list`")
        return stream

    def log_of(self, part: StreamRecord | ChainedRecord | CopysetRecord) -> LogRecord | None:
        return self._logs_by_id.get(part.log_id)

    def wanted_replicas(self, stream: StreamRecord) -> int:
        log = self.log_of(stream)
        settings = None if log is None else log.chain.settings_of(stream.segment)
        return stream.wanted_replicas or (settings.replicas if settings else len(stream.replicas))

    def without_segment(self, log: LogRecord) -> list[StreamId]:
        """Streams whose segment was trimmed as a whole, or never began."""
        chain = log.chain
        return [s for s in log.streams if chain.settings_of(self.streams[s].segment) is None]

    def takes_appends(self, stream: StreamRecord) -> bool:
        """Whether its segment is the active one, and stays it."""
        log = self.log_of(stream)
        return log is None or log.chain.takes_appends(stream.segment)

    def leaving(self, stream: StreamRecord) -> NodeId | None:
        """The replica whose place another one takes next: an operator named it or its node."""
        if stream.leaving in stream.replicas:
            return stream.leaving
        for node in stream.replicas:
            if node in self.nodes and self.nodes[node].draining:
                return node
        return None

    async def update_stream(self, stream_id: StreamId, **changes: Any) -> StreamRecord:
        return await self._change_stream(stream_id, lambda stream: replace(stream, **changes))

    async def swap_replicas(
        self, stream_id: StreamId, replicas: tuple[NodeId, ...], dropping: Iterable[NodeId]
    ) -> StreamRecord:
        """Other replicas from now on. Who is one of them does not join any more, and who is not
        does not leave."""
        dropping = tuple(dropping)

        def swapped(stream: StreamRecord) -> StreamRecord:
            left = dict.fromkeys((*stream.left, *stream.replicas))
            return replace(
                stream,
                replicas=replicas,
                joining=None if stream.joining in replicas else stream.joining,
                leaving=stream.leaving if stream.leaving in replicas else None,
                dropping=tuple(dict.fromkeys((*stream.dropping, *dropping))),
                left=tuple(n for n in left if n not in replicas and n not in dropping),
            )

        return await self._change_stream(stream_id, swapped)

    async def drop_joining(self, stream_id: StreamId, node: NodeId) -> None:
        """The newcomer is given up; whatever it holds is to be deleted."""

        def dropped(stream: StreamRecord) -> StreamRecord:
            dropping = tuple(dict.fromkeys((*stream.dropping, node)))
            left = tuple(n for n in stream.left if n != node)
            return replace(stream, joining=None, dropping=dropping, left=left)

        await self._change_stream(stream_id, dropped)

    async def replica_dropped(self, stream_id: StreamId, node: NodeId) -> None:
        """The node has deleted what it held."""

        def gone(stream: StreamRecord) -> StreamRecord:
            dropping = tuple(n for n in stream.dropping if n != node)
            return replace(
                stream, dropping=dropping, left=tuple(n for n in stream.left if n != node)
            )

        if stream_id in self.streams:
            await self._change_stream(stream_id, gone)

    async def add_stream(
        self, name: str, replicas: tuple[NodeId, ...], loglet: LogId = 0
    ) -> StreamRecord:
        """One more stream for a segment of a log, sealed."""
        log = self.log(name)
        _, stream_id = await self._take_ids(1, logs=0)
        stream = StreamRecord(stream_id, log.log_id, replicas, epoch=1, sealed=True, loglet=loglet)
        await self._put(stream_key(stream_id), stream)
        await self._change_log(name, lambda log: replace(log, streams=(*log.streams, stream_id)))
        return stream

    async def take_back_stream(self, name: str, stream_id: StreamId) -> None:
        """A stream that never ran."""

        def without(log: LogRecord) -> LogRecord:
            return replace(log, streams=tuple(s for s in log.streams if s != stream_id))

        await self._change_log(name, without)
        await self._put(stream_key(stream_id), None)

    async def _change_stream(
        self, stream_id: StreamId, change: Callable[[StreamRecord], StreamRecord]
    ) -> StreamRecord:
        async with self._writing:
            stream = self.streams.get(stream_id)
            if stream is None:
                raise NotFound(f"stream {stream_id} was deleted")
            changed = change(stream)
            if changed != stream:
                await self._write(stream_key(stream_id), changed)
            return changed

    # ---- writing

    async def _take_ids(self, streams: int, logs: int = 1) -> tuple[LogId, StreamId]:
        """The first ones of those that were taken."""
        async with self._writing:
            last = self._counters
            taken = CountersRecord(last.log_id + logs, last.stream_id + streams)
            await self._write("counters", taken)
            return last.log_id + 1, last.stream_id + 1

    async def _update_log(self, name: str, **changes: Any) -> LogRecord:
        return await self._change_log(name, lambda log: replace(log, **changes))

    async def _change_log(self, name: str, change: Callable[[LogRecord], LogRecord]) -> LogRecord:
        async with self._writing:
            log = self.logs.get(name)
            if log is None:
                raise NotFound(f"log {name!r} was deleted")
            changed = change(log)
            await self._write(log_key(name), changed)
            return changed
