"""Queries on the metadata in memory."""

from __future__ import annotations

from loomlog.core.segments import Segment
from loomlog.errors import NotFound
from loomlog.metadata.catalog.kept_records import KeptRecords
from loomlog.metadata.catalog.records import (
    LogletRecord,
    LogRecord,
    NodeRecord,
    OfLog,
    StreamRecord,
    log_key,
    stream_key,
)
from loomlog.types import Glsn, NodeId, StreamId


class Lookups(KeptRecords):
    """The part of a Catalog that answers questions. Nothing here writes."""

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
