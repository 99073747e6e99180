"""Records of the cluster in memory, durable before they are visible; one write at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from loomlog.core.segments import Segment
from loomlog.errors import Conflict, NotFound, SwapUnknown
from loomlog.metadata.catalog.records import (
    ClusterRecord,
    CountersRecord,
    LogletRecord,
    LogRecord,
    NodeRecord,
    OfLog,
    Record,
    StreamRecord,
    TombstoneRecord,
    decode,
    encode,
    log_key,
    stream_key,
)
from loomlog.metadata.store.contract import MetaStore
from loomlog.types import Glsn, LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb

_KINDS: dict[str, type[Record]] = {
    "cluster": ClusterRecord,
    "counters": CountersRecord,
    "node": NodeRecord,
    "log": LogRecord,
    "stream": StreamRecord,
    "tombstone": TombstoneRecord,
}


class KeptRecords:
    """The part of a Catalog that answers questions, reads and writes; the Catalog decides what to
    change. Hold `_writing` to read, then write."""

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

    # ---- nodes

    def node(self, node_id: NodeId) -> NodeRecord:
        node = self.nodes.get(node_id)
        if node is None:
            raise NotFound(f"there is no node {node_id}: look at `loom node list`")
        return node

    @property
    def locations(self) -> dict[NodeId, str]:
        """Return the failure domains of all nodes; "" where none is named."""
        return {node.node_id: node.location for node in self.nodes.values()}

    def addressed(self, nodes: Iterable[NodeId]) -> list[pb.Replica]:
        """Return nodes with their addresses, for messages; "" for one that was forgotten."""
        known = ((node, self.nodes.get(node)) for node in nodes)
        return [
            pb.Replica(storage_node_id=node, address=record.address if record else "")
            for node, record in known
        ]

    def streams_on(self, node_id: NodeId) -> list[StreamRecord]:
        """Return the streams with a replica on a node, or with one that is being made there."""
        return [s for s in self.streams.values() if node_id in (*s.replicas, s.joining)]

    # ---- logs

    def log(self, name: str) -> LogRecord:
        """Return a log that exists for its users, or raise NotFound."""
        log = self.logs.get(name)
        if log is None or self.is_unfinished(log):
            raise NotFound(f"there is no log {name!r}: create it, or look at `loom log list`")
        return log

    def is_unfinished(self, log: LogRecord) -> bool:
        """Return whether its creation or deletion is under way, or was interrupted."""
        return log.creating or log.log_id in self.tombstones

    def version_of(self, log: LogRecord) -> int:
        keys = [log_key(log.name), *map(stream_key, log.streams)]
        return max(self._versions.get(key, 0) for key in keys)

    # ---- loglets

    def log_of(self, part: OfLog) -> LogRecord | None:
        return self._logs_by_id.get(part.log_id)

    def segment_of(self, record: LogletRecord) -> Segment | None:
        """Return the segment that a loglet runs; None if it belongs to no log any more."""
        log = self.log_of(record)
        return None if log is None else log.segment_of(record.loglet)

    def trim_target(self, record: LogletRecord) -> Glsn:
        """Return how far a loglet is to be trimmed; 0: not at all."""
        log, segment = self.log_of(record), self.segment_of(record)
        if log is None or segment is None or not segment.start or log.trimmed < segment.start:
            return 0
        return log.trimmed if segment.end is None else min(log.trimmed, segment.end)

    # ---- streams

    def stream(self, stream_id: StreamId) -> StreamRecord:
        stream = self.streams.get(stream_id)
        if stream is None:
            raise NotFound(f"there is no stream {stream_id}: look at `loom stream list`")
        return stream

    def wanted_replicas(self, stream: StreamRecord) -> int:
        log = self.log_of(stream)
        settings = None if log is None else log.layout.settings_of(stream.loglet)
        return stream.wanted_replicas or (settings.replicas if settings else len(stream.replicas))

    def without_segment(self, log: LogRecord) -> list[StreamId]:
        """Return the streams whose segment was trimmed as a whole, or never began."""
        layout = log.layout
        return [s for s in log.streams if layout.settings_of(self.streams[s].loglet) is None]

    def takes_appends(self, stream: StreamRecord) -> bool:
        """Return whether the segment of a stream is active, and not being switched."""
        log = self.log_of(stream)
        return log is None or log.layout.takes_appends(stream.loglet)

    def leaving(self, stream: StreamRecord) -> NodeId | None:
        """Return the replica to be replaced next because an operator named it or its node."""
        if stream.leaving in stream.replicas:
            return stream.leaving
        for node in stream.replicas:
            if node in self.nodes and self.nodes[node].draining:
                return node
        return None

    def _holders(self, stream: StreamRecord) -> tuple[NodeId, ...]:
        """Return all nodes that may have something of a stream on disk."""
        joining = () if stream.joining is None else (stream.joining,)
        holders = dict.fromkeys((*stream.replicas, *joining, *stream.dropping, *stream.left))
        return tuple(node for node in holders if node in self.nodes)

    # ---- reads and writes

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
