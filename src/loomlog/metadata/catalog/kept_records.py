"""Records of the cluster in memory, durable before they are visible; one write at a time."""

from __future__ import annotations

import asyncio
from collections import Counter

from loomlog.errors import Conflict, SwapUnknown
from loomlog.metadata.catalog.records import (
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
from loomlog.metadata.store.contract import MetaStore
from loomlog.types import LogId, NodeId, StreamId


class KeptRecords:
    """The part of a Catalog that reads and writes. Hold `_writing` to read, then write."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store
        self._versions: dict[str, int] = {}
        self._unknown: set[str] = set()  # keys whose last write may or may not have happened
        self._writing = asyncio.Lock()
        self._counters = CountersRecord()
        self.cluster = ClusterRecord("", "")
        self.nodes: dict[NodeId, NodeRecord] = {}
        self.logs: dict[str, LogRecord] = {}
        self._logs_by_id: dict[LogId, LogRecord] = {}
        self.streams: dict[StreamId, StreamRecord] = {}
        self.tombstones: dict[LogId, TombstoneRecord] = {}
        self.load_of: Counter[NodeId] = Counter()  # replicas, those that join included
        self.filling: set[StreamId] = set()  # streams that a node is joining

    async def _read(self) -> None:
        for kind, record in _KINDS.items():  # registers and leases are not the catalog's
            for key, item in (await self._store.list(kind)).items():
                if key.partition("/")[0] == kind:
                    self._versions[key] = item.version
                    self._show(key, decode(record, key, item.value))

    async def _put(self, key: str, record: Record | None) -> None:
        async with self._writing:
            await self._write(key, record)

    async def _write(self, key: str, record: Record | None) -> None:
        if key in self._unknown:
            await self._look_again(key)
        known = self._versions.get(key, 0)
        if record is not None or known:
            value = None if record is None else encode(record)
            try:
                version = await self._store.compare_and_swap(key, known, value)
            except (SwapUnknown, Conflict):  # it conflicts with an earlier unknown one
                self._unknown.add(key)
                raise
        if record is None:
            self._forget(key)
        else:
            self._versions[key] = version
            self._show(key, record)

    async def _look_again(self, key: str) -> None:
        """Read the version of a key whose last write may or may not have happened. Nothing
        depended on that write, so the next one may replace it."""
        item = await self._store.get(key)
        self._versions[key] = item.version if item else 0
        self._unknown.discard(key)

    def _show(self, key: str, record: Record) -> None:
        match record:
            case ClusterRecord():
                self.cluster = record
            case CountersRecord():
                self._counters = record
            case NodeRecord():
                self.nodes[record.node_id] = record
            case LogRecord():
                self.logs[record.name] = self._logs_by_id[record.log_id] = record
            case StreamRecord():
                self._count(self.streams.get(record.stream_id), -1)
                self.streams[record.stream_id] = record
                self._count(record, 1)
            case TombstoneRecord():
                self.tombstones[record.log_id] = record

    def _forget(self, key: str) -> None:
        """Remove a record from memory, if it is there."""
        self._versions.pop(key, None)
        kind, _, name = key.partition("/")
        if kind == "log" and name in self.logs:
            del self._logs_by_id[self.logs.pop(name).log_id]
        elif kind == "stream":
            self._count(self.streams.pop(int(name), None), -1)
        elif kind == "node":
            self.nodes.pop(int(name), None)
        elif kind == "tombstone":
            self.tombstones.pop(int(name), None)

    def _count(self, stream: StreamRecord | None, by: int) -> None:
        if stream is None:
            return
        self.load_of.update(dict.fromkeys(stream.replicas, by))
        if stream.joining is not None:
            self.load_of[stream.joining] += by
            (self.filling.add if by > 0 else self.filling.discard)(stream.stream_id)


_KINDS: dict[str, type[Record]] = {
    "cluster": ClusterRecord,
    "counters": CountersRecord,
    "node": NodeRecord,
    "log": LogRecord,
    "stream": StreamRecord,
    "tombstone": TombstoneRecord,
}
