"""Records of the cluster in memory, durable before they are visible; one write at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from loomlog.core.placement import Placed
from loomlog.core.segments import Segment
from loomlog.errors import Conflict, NotFound, SwapUnknown
from loomlog.metadata.catalog.records import (
    ACCESS,
    AccessRecord,
    ClusterRecord,
    CountersRecord,
    LogletRecord,
    LogRecord,
    MetadataRecord,
    NodeRecord,
    OfLog,
    decode,
    encode,
    log_key,
)
from loomlog.metadata.store.contract import MetaStore
from loomlog.types import Glsn, LogId, NodeId
from loomlog.wire import loomlog_pb2 as pb

_KINDS: dict[str, type[MetadataRecord]] = {
    "cluster": ClusterRecord,
    "counters": CountersRecord,
    "node": NodeRecord,
    "log": LogRecord,
    ACCESS: AccessRecord,
}


class KeptRecords:
    """The part of a Catalog that answers queries, reads and writes; the Catalog decides what to
    change. Hold `_writing` to read and then write."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store
        self._versions: dict[str, int] = {}
        self._unknown: set[str] = set()  # keys whose last write may or may not have happened
        self._writing = asyncio.Lock()
        self._counters = CountersRecord()
        self.cluster = ClusterRecord("", "")
        self.access = AccessRecord()
        self.nodes: dict[NodeId, NodeRecord] = {}
        self.logs: dict[str, LogRecord] = {}
        self._logs_by_id: dict[LogId, LogRecord] = {}
        self.load_of: Counter[NodeId] = Counter()  # replicas, as counted by protocols
        self.placed = Placed()  # sets of replicas, until their records are deleted

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
        """Return nodes with their addresses, for messages; "" for a forgotten node."""
        known = ((node, self.nodes.get(node)) for node in nodes)
        return [
            pb.Replica(storage_node_id=node, address=record.address if record else "")
            for node, record in known
        ]

    # ---- logs

    def log(self, name: str) -> LogRecord:
        """Return a log that users see, or raise NotFound."""
        log = self.logs.get(name)
        if log is None or log.unfinished:
            raise NotFound(f"there is no log {name!r}: create it, or look at `loom log list`")
        return log

    def version_of(self, log: LogRecord) -> int:
        return self._versions.get(log_key(log.name), 0)

    # ---- loglets

    def log_of(self, part: OfLog) -> LogRecord | None:
        return self._logs_by_id.get(part.log_id)

    def segment_of(self, record: LogletRecord) -> Segment | None:
        """Return the segment that a loglet runs; None if it no longer belongs to a log."""
        log = self.log_of(record)
        return None if log is None else log.segment_of(record.loglet)

    def name_of(self, record: LogletRecord) -> str:
        """Return the name of a loglet for operators: its log, and the segment if there are
        several."""
        log = self.log_of(record)
        if log is None:
            return f"segment {record.loglet}"
        is_only = len(log.layout.segments) == 1 and self.segment_of(record) is not None
        return f"log {log.name}" if is_only else f"segment {record.loglet} of log {log.name}"

    def trim_target(self, record: LogletRecord) -> Glsn:
        """Return how far a loglet has to be trimmed; 0: not at all."""
        log, segment = self.log_of(record), self.segment_of(record)
        if log is None or segment is None or not segment.start or log.trimmed < segment.start:
            return 0
        return log.trimmed if segment.end is None else min(log.trimmed, segment.end)

    # ---- reads and writes

    async def _read(self) -> None:
        for kind, record in _KINDS.items():  # registers and leases do not belong to the catalog
            for key, item in (await self._store.list(kind)).items():
                if key.partition("/")[0] == kind:
                    self._versions[key] = item.version
                    self._show(key, decode(record, key, item.value))

    async def _put(self, key: str, record: MetadataRecord | None) -> None:
        async with self._writing:
            await self._write(key, record)

    async def _write(self, key: str, record: MetadataRecord | None) -> None:
        if key in self._unknown:
            await self._look_again(key)
        known = self._versions.get(key, 0)
        if record is not None or known:
            value = None if record is None else encode(record)
            try:
                version = await self._store.compare_and_swap(key, known, value)
            except (SwapUnknown, Conflict):  # it conflicts with an earlier write of unknown outcome
                self._unknown.add(key)
                raise
        if record is None:
            self._forget(key)
        else:
            self._versions[key] = version
            self._show(key, record)

    async def _look_again(self, key: str) -> None:
        """Read the version of a key whose last write may or may not have happened. Nothing depended
        on that write, so the next one may replace it."""
        item = await self._store.get(key)
        self._versions[key] = item.version if item else 0
        self._unknown.discard(key)

    def _show(self, key: str, record: MetadataRecord) -> None:
        match record:
            case ClusterRecord():
                self.cluster = record
            case CountersRecord():
                self._counters = record
            case AccessRecord():
                self.access = record
            case NodeRecord():
                self.nodes[record.node_id] = record
            case LogRecord():
                self.logs[record.name] = self._logs_by_id[record.log_id] = record

    def _forget(self, key: str) -> None:
        """Remove a record from memory, if it is there."""
        self._versions.pop(key, None)
        kind, _, name = key.partition("/")
        if kind == "log" and name in self.logs:
            del self._logs_by_id[self.logs.pop(name).log_id]
        elif kind == "node":
            self.nodes.pop(int(name), None)
