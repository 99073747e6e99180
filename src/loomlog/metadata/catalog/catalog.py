"""The metadata of the cluster in memory: everything visible here is durable.

Reads are plain attributes. Every write goes to the MetaStore by compare-and-swap first, one after
the other, and is visible here when it has returned. Several keys that belong together are written
in an order that `load` can complete or undo after a crash:

    create a log    the log (creating), its streams, … then the log (no longer creating)
    delete a log    its tombstone (this decides), then the log, then its streams
    add a stream    the stream, then the log (this decides); taken back in reverse
    switch a log    each step is one write of the log (core/segments.py)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

from loomlog import limits
from loomlog.core.segments import Layout, Segment, Settings
from loomlog.errors import AlreadyExists, Busy, Corrupt, InvalidArgument, NotFound
from loomlog.metadata.catalog.kept_records import KeptRecords
from loomlog.metadata.catalog.records import (
    ClusterRecord,
    CountersRecord,
    LogRecord,
    NodeRecord,
    Remains,
    StreamRecord,
    TombstoneRecord,
    log_key,
    node_key,
    stream_key,
    tombstone_key,
)
from loomlog.metadata.store.contract import MetaStore
from loomlog.types import Glsn, LogId, NodeId, StreamId


class Catalog(KeptRecords):
    """The metadata of the cluster. Created by `load`."""

    _new_secret: Callable[[], str]
    _locks: WeakValueDictionary[str, asyncio.Lock]

    def lock(self, name: str) -> asyncio.Lock:
        """Return the lock for creating, switching and deleting a log of this name."""
        return self._locks.setdefault(name, asyncio.Lock())

    def new_stamp(self) -> int:
        """Return a random number above 0 that nothing else was ever given."""
        return int.from_bytes(sha256(self._new_secret().encode()).digest()[:8], "big") or 1

    @classmethod
    async def load(
        cls,
        store: MetaStore,
        cluster_id: str,
        new_secret: Callable[[], str],
        *,
        has_rounds: bool = False,
    ) -> Catalog:
        """Read everything, and finish what a crash interrupted; a new cluster gets its secret.
        `has_rounds`: there are rounds, so it is not a new one."""
        catalog = cls(store)
        catalog._new_secret = new_secret
        catalog._locks = WeakValueDictionary()
        await catalog._read()
        if not catalog.cluster.cluster_id:
            catalog._check_new(has_rounds)
            await catalog._put("cluster", ClusterRecord(cluster_id, new_secret()))
        if catalog.cluster.cluster_id != cluster_id:
            raise InvalidArgument(
                f"this metadata belongs to cluster {catalog.cluster.cluster_id!r}, "
                f"not {cluster_id!r}: give the right cluster id or another directory"
            )
        await catalog._finish_interrupted()
        return catalog

    def _check_new(self, has_rounds: bool) -> None:
        """Raise Corrupt if there is data, but no record of the cluster, which is written first."""
        if has_rounds or self._versions:
            what = "rounds" if has_rounds else f"records such as {min(self._versions)!r}"
            raise Corrupt(
                f"the metadata holds no record of its cluster, but there are {what}: restore the "
                "metadata from a copy, or start a new cluster on an empty directory and etcd prefix"
            )

    async def _finish_interrupted(self) -> None:
        for log in list(self.logs.values()):
            if self.is_unfinished(log):
                await self.delete_log(log.name)
        for log in list(self.logs.values()):
            for stream_id in self.without_segment(log):
                await self.take_back_stream(log.name, stream_id)
        known = {stream_id for log in self.logs.values() for stream_id in log.streams}
        for stream_id in list(self.streams):
            if stream_id not in known:
                await self._put(stream_key(stream_id), None)
        for tombstone in list(self.tombstones.values()):
            if not tombstone.remains:
                await self._put(tombstone_key(tombstone.log_id), None)

    # ---- nodes

    async def put_node(
        self, node: NodeRecord, note_losses: Callable[[NodeRecord], NodeRecord] = lambda node: node
    ) -> NodeRecord:
        """Write a node as it describes itself. Operators' wishes stay, unless the node lost its
        data; a permission to replace it is used up. `note_losses` adds its losses."""
        async with self._writing:
            known = self.nodes.get(node.node_id)
            if known is not None and known.node_secret == node.node_secret:
                node = replace(
                    node,
                    draining=known.draining,
                    removing=known.removing,
                    lost=known.lost,
                    void=known.void,
                    generation=max(node.generation, known.generation),
                )
            node = note_losses(node)
            if known != node:
                await self._write(node_key(node.node_id), node)
            return node

    async def update_node(self, node_id: NodeId, **changes: Any) -> NodeRecord:
        async with self._writing:
            changed = replace(self.node(node_id), **changes)
            await self._write(node_key(node_id), changed)
            return changed

    async def note_generation(self, node_id: NodeId, generation: int) -> None:
        async with self._writing:
            known = self.nodes.get(node_id)
            if known is not None and generation > known.generation:
                await self._write(node_key(node_id), replace(known, generation=generation))

    async def remove_node(self, node_id: NodeId) -> None:
        for tombstone in list(self.tombstones.values()):
            streams = {remains.stream_id for remains in tombstone.remains}
            await self.replicas_gone(tombstone.log_id, streams, node_id)
        await self._put(node_key(node_id), None)

    # ---- logs

    async def create_log(self, name: str, settings: Settings) -> LogRecord:
        """Give a log an id and its first segment, and mark it as creating."""
        if name in self.logs:
            raise AlreadyExists(f"there is a log {name!r} already: choose another name")
        log_id = await self.new_loglet()
        log = LogRecord(log_id, name, (Segment(log_id, settings, 1),), creating=True)
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
        """Return an id for a stream whose record a protocol keeps elsewhere."""
        return (await self._take_ids(1, logs=0))[1]

    async def swap_layout(self, name: str, expected: Layout, layout: Layout) -> bool:
        """Replace the layout of a log; return False if it is not the expected one any more."""
        async with self._writing:
            log = self.log(name)
            if log.layout != expected:
                return False
            await self._write(log_key(name), log.with_layout(layout))
            return True

    async def delete_log(self, name: str) -> TombstoneRecord:
        """Delete a log. From the first write on it is gone, even if a later write fails."""
        log = self.logs[name]
        streams = [self.streams[stream_id] for stream_id in log.streams]
        remains = tuple(Remains(s.stream_id, s.stamp, self._holders(s)) for s in streams)
        tombstone = self.tombstones.get(log.log_id) or TombstoneRecord(log.log_id, name, remains)
        await self._put(tombstone_key(log.log_id), tombstone)
        await self._put(log_key(name), None)
        for stream_id in log.streams:
            await self._put(stream_key(stream_id), None)
        if not tombstone.remains:
            await self._put(tombstone_key(log.log_id), None)
        return tombstone

    async def replicas_gone(self, log_id: LogId, streams: set[StreamId], node: NodeId) -> None:
        """Note that a node has removed its replicas of these streams of a deleted log."""
        async with self._writing:
            tombstone = self.tombstones.get(log_id)
            if tombstone is None:
                return
            left = tuple(
                Remains(stream, stamp, nodes)
                for stream, stamp, kept in tombstone.remains
                if (nodes := tuple(n for n in kept if stream not in streams or n != node))
            )
            changed = replace(tombstone, remains=left) if left else None
            await self._write(tombstone_key(log_id), changed)

    # ---- streams

    async def update_stream(self, stream_id: StreamId, **changes: Any) -> StreamRecord:
        return await self._change_stream(stream_id, lambda stream: replace(stream, **changes))

    async def wish(self, stream_id: StreamId, **wishes: Any) -> None:
        """Write which replicas a stream should have; Busy if that changed since it was read."""
        known = self.stream(stream_id)

        def wished(stream: StreamRecord) -> StreamRecord:
            if stream.placement != known.placement:
                raise Busy(f"the replicas of stream {stream_id} have just changed: try again")
            return replace(stream, **wishes)

        await self._change_stream(stream_id, wished)

    async def swap_replicas(
        self,
        stream_id: StreamId,
        replicas: tuple[NodeId, ...],
        dropping: Iterable[NodeId],
        births: Mapping[NodeId, int],
    ) -> StreamRecord:
        """Replace the replicas. Clears `joining` if that node is now a replica, and `leaving` if it
        is not. A replica that an operator removed without a successor is unregistered. `births`
        are those of newcomers: they may have joined with the data they had."""
        dropping = tuple(dropping)
        return await self._change_stream(
            stream_id, lambda stream: stream.with_replicas(replicas, dropping, births)
        )

    async def drop_joining(self, stream_id: StreamId, node: NodeId) -> None:
        """Give up a newcomer; its partial replica is to be deleted."""

        def dropped(stream: StreamRecord) -> StreamRecord:
            dropping = tuple(dict.fromkeys((*stream.dropping, node)))
            return replace(stream, joining=None, dropping=dropping)

        await self._change_stream(stream_id, dropped)

    async def replica_dropped(self, stream_id: StreamId, node: NodeId) -> None:
        """Note that a node has deleted its dropped replica."""
        if stream_id in self.streams:
            await self._change_stream(stream_id, lambda stream: stream.without_dropped(node))

    async def replica_cleaned_up(self, stream_id: StreamId, node: NodeId) -> None:
        """Note that a node has deleted everything that it held of a stream."""
        if stream_id in self.streams:
            await self._change_stream(stream_id, lambda stream: stream.without_remains(node))

    async def add_streams(
        self, name: str, loglet: LogId, placement: Sequence[tuple[NodeId, ...]]
    ) -> list[StreamRecord]:
        """Add sealed streams on the given nodes to a segment of a log."""
        log = self._known(name)
        _, first = await self._take_ids(len(placement), logs=0)
        streams = [
            self._new_stream(stream_id, log.log_id, loglet, nodes)
            for stream_id, nodes in enumerate(placement, first)
        ]
        for stream in streams:
            await self._put(stream_key(stream.stream_id), stream)
        ids = tuple(stream.stream_id for stream in streams)
        await self._change_log(name, lambda log: replace(log, streams=(*log.streams, *ids)))
        return streams

    async def take_back_stream(self, name: str, stream_id: StreamId) -> None:
        """Forget a stream that never ran, or has nothing left."""

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
            changed = self._with_birth(stream, change(stream))
            if changed != stream:
                await self._write(stream_key(stream_id), changed)
            return changed

    def _new_stream(
        self, stream_id: StreamId, log_id: LogId, loglet: LogId, nodes: tuple[NodeId, ...]
    ) -> StreamRecord:
        return StreamRecord(
            stream_id,
            log_id,
            loglet,
            nodes,
            epoch=1,
            sealed=True,
            stamp=self.new_stamp(),
            births=tuple((node, self.new_stamp()) for node in nodes),
        )

    def _with_birth(self, before: StreamRecord, after: StreamRecord) -> StreamRecord:
        """Give a newcomer a birth of its own, so that giving it up deletes nothing else."""
        node = after.joining
        if node is None or node == before.joining:
            return after
        births = tuple(birth for birth in after.births if birth[0] != node)
        return replace(after, births=(*births, (node, self.new_stamp())))

    # ---- writing

    async def raise_ids(self, log_id: LogId, stream_id: StreamId) -> None:
        """Never give numbers that a node has seen already, whatever this metadata knows."""
        if max(log_id, stream_id) > limits.NUMBER_MAX:
            raise InvalidArgument(
                f"no log or stream has a number above {limits.NUMBER_MAX}: found log {log_id}, "
                f"stream {stream_id}"
            )
        async with self._writing:
            last = self._counters
            raised = CountersRecord(max(last.log_id, log_id), max(last.stream_id, stream_id))
            if raised != last:
                await self._write("counters", raised)

    async def _take_ids(self, streams: int, logs: int = 1) -> tuple[LogId, StreamId]:
        """Reserve ids; return the first of the logs' and the first of the streams'."""
        async with self._writing:
            last = self._counters
            taken = CountersRecord(last.log_id + logs, last.stream_id + streams)
            await self._write("counters", taken)
            return last.log_id + 1, last.stream_id + 1

    async def _update_log(self, name: str, **changes: Any) -> LogRecord:
        return await self._change_log(name, lambda log: replace(log, **changes))

    async def _change_log(self, name: str, change: Callable[[LogRecord], LogRecord]) -> LogRecord:
        async with self._writing:
            changed = change(self._known(name))
            await self._write(log_key(name), changed)
            return changed

    def _known(self, name: str) -> LogRecord:
        """Return a log, even while it is being created."""
        log = self.logs.get(name)
        if log is None:
            raise NotFound(f"log {name!r} was deleted")
        return log
