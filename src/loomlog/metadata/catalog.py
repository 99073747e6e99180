"""What the cluster consists of: the metadata in memory, always as durable as it looks.

Reads are plain attributes. Every write goes to the MetaStore by compare-and-swap first, one after
the other; when it returned, it holds and shows here. Several keys that belong together are written
in an order that `load` can finish or take back after a crash:

    create a log    its streams, then the log (creating), … then the log (no longer creating)
    delete a log    its tombstone (this decides), then the log, then its streams
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from loomlog.errors import AlreadyExists, InvalidArgument, NotFound
from loomlog.metadata.records import (
    ClusterRecord,
    CountersRecord,
    LogRecord,
    NodeRecord,
    Record,
    StreamRecord,
    TombstoneRecord,
    decode,
    encode,
)
from loomlog.metadata.store import MetaStore
from loomlog.types import Glsn, LogId, NodeId, StreamId


class Catalog:
    """Made by `load`."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store
        self._versions: dict[str, int] = {}
        self._writing = asyncio.Lock()
        self._counters = CountersRecord()
        self.cluster = ClusterRecord("", "")
        self.nodes: dict[NodeId, NodeRecord] = {}
        self.logs: dict[str, LogRecord] = {}
        self.streams: dict[StreamId, StreamRecord] = {}
        self.tombstones: dict[LogId, TombstoneRecord] = {}

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

    async def _read(self) -> None:
        for key, item in (await self._store.list("")).items():
            self._versions[key] = item.version
            kind, _, _ = key.partition("/")
            if kind in _KINDS:
                self._show(key, decode(_KINDS[kind], key, item.value))

    async def _finish_interrupted(self) -> None:
        for log in list(self.logs.values()):
            if log.creating or log.log_id in self.tombstones:
                await self.delete_log(log.name)
        known = {log.log_id for log in self.logs.values()}
        for stream in list(self.streams.values()):
            if stream.log_id not in known:
                await self._put(_stream_key(stream.stream_id), None)

    # ---- nodes

    async def put_node(self, node: NodeRecord) -> None:
        if self.nodes.get(node.node_id) != node:
            await self._put(f"node/{node.node_id}", node)

    # ---- logs

    def log(self, name: str) -> LogRecord:
        """A log that exists for its users."""
        log = self.logs.get(name)
        if log is None or log.creating or log.log_id in self.tombstones:
            raise NotFound(f"there is no log {name!r}: create it, or look at `loom log list`")
        return log

    def version_of(self, log: LogRecord) -> int:
        keys = [_log_key(log.name), *map(_stream_key, log.streams)]
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
            await self._put(_stream_key(stream_id), stream)
        log = LogRecord(log_id, name, protocol, replicas, ids, creating=True)
        await self._put(_log_key(name), log)
        return log

    async def log_created(self, name: str) -> LogRecord:
        return await self._update_log(name, creating=False)

    async def trim_log(self, name: str, position: Glsn) -> LogRecord:
        if position <= self.log(name).trimmed:
            return self.log(name)
        return await self._update_log(name, trimmed=position)

    async def delete_log(self, name: str) -> TombstoneRecord:
        """From the first write on the log is gone, whatever happens."""
        log = self.logs[name]
        streams = [self.streams[stream_id] for stream_id in log.streams]
        remains = tuple((stream.stream_id, stream.replicas) for stream in streams)
        tombstone = self.tombstones.get(log.log_id) or TombstoneRecord(log.log_id, name, remains)
        await self._put(_tombstone_key(log.log_id), tombstone)
        await self._put(_log_key(name), None)
        for stream_id in log.streams:
            await self._put(_stream_key(stream_id), None)
        return tombstone

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
            await self._write(_tombstone_key(log_id), changed)

    # ---- streams

    async def update_stream(self, stream_id: StreamId, *, epoch: int, sealed: bool) -> None:
        async with self._writing:
            stream = self.streams.get(stream_id)
            if stream is None:
                raise NotFound(f"stream {stream_id} was deleted")
            await self._write(_stream_key(stream_id), replace(stream, epoch=epoch, sealed=sealed))

    # ---- writing

    async def _take_ids(self, streams: int) -> tuple[LogId, StreamId]:
        async with self._writing:
            last = self._counters
            await self._write("counters", CountersRecord(last.log_id + 1, last.stream_id + streams))
            return last.log_id + 1, last.stream_id + 1

    async def _update_log(self, name: str, **changes: Any) -> LogRecord:
        async with self._writing:
            log = self.logs.get(name)
            if log is None:
                raise NotFound(f"log {name!r} was deleted")
            changed = replace(log, **changes)
            await self._write(_log_key(name), changed)
            return changed

    async def _put(self, key: str, record: Record | None) -> None:
        async with self._writing:
            await self._write(key, record)

    async def _write(self, key: str, record: Record | None) -> None:
        known = self._versions.get(key, 0)
        if record is None and not known:
            return
        value = None if record is None else encode(record)
        version = await self._store.compare_and_swap(key, known, value)
        if record is None:
            self._forget(key)
        else:
            self._versions[key] = version
            self._show(key, record)

    def _show(self, key: str, record: Record) -> None:
        match record:
            case ClusterRecord():
                self.cluster = record
            case CountersRecord():
                self._counters = record
            case NodeRecord():
                self.nodes[record.node_id] = record
            case LogRecord():
                self.logs[record.name] = record
            case StreamRecord():
                self.streams[record.stream_id] = record
            case TombstoneRecord():
                self.tombstones[record.log_id] = record

    def _forget(self, key: str) -> None:
        del self._versions[key]
        kind, _, name = key.partition("/")
        if kind == "log":
            del self.logs[name]
        elif kind == "stream":
            del self.streams[int(name)]
        elif kind == "tombstone":
            del self.tombstones[int(name)]


_KINDS: dict[str, type[Record]] = {
    "cluster": ClusterRecord,
    "counters": CountersRecord,
    "node": NodeRecord,
    "log": LogRecord,
    "stream": StreamRecord,
    "tombstone": TombstoneRecord,
}


def _log_key(name: str) -> str:
    return f"log/{name}"


def _stream_key(stream_id: StreamId) -> str:
    return f"stream/{stream_id}"


def _tombstone_key(log_id: LogId) -> str:
    return f"tombstone/{log_id}"
