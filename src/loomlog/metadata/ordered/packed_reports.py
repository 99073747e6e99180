"""Applies reports of many streams in one message to the columns of their logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from loomlog.core.ordered.columns import LogIndex, Rows, StreamColumns, read_reports, streams_of
from loomlog.core.ordered.rounds import LogRounds
from loomlog.core.packed import LEAST, HeldReplica, unpack_reports
from loomlog.metadata.nodes.connected_nodes import ConnectedNode
from loomlog.metadata.ordered.held_replicas import HeldReplicas
from loomlog.types import LogId, NodeId, StreamId


class PackedReports:
    """Takes packed reports. Those with more than new numbers are processed individually."""

    def __init__(
        self,
        logs: Mapping[LogId, LogRounds],
        held: HeldReplicas,
        take_one: Callable[[NodeId, ConnectedNode, HeldReplica], None],
    ) -> None:
        self._logs, self._held = logs, held
        self._take_one = take_one
        self._index: LogIndex | None = None

    def streams_changed(self) -> None:
        """Called when a log has other streams."""
        self._index = None

    def take(self, node: NodeId, connected: ConnectedNode, data: bytes) -> list[LogRounds]:
        """Return the logs that may have a round."""
        if self._index is None:
            self._index = LogIndex(self._logs)
        touched = []
        for log_id, rows in self._index.split(read_reports(data)):
            log = self._logs.get(log_id)
            if log is None or len(rows) < LEAST:
                self._take_each(node, connected, rows)
                continue
            columns = self._columns_of(log)
            taken, grown = columns.take(node, rows, log.high_watermark)
            connected.stored_bytes_total += grown
            if not taken.all():
                rest = rows[~taken]
                self._take_each(node, connected, rest)
                self._enter(columns, log, streams_of(rest).tolist())
            touched.append(log)
        return touched

    def _take_each(self, node: NodeId, connected: ConnectedNode, rows: Rows) -> None:
        for held in unpack_reports(rows.tobytes()):
            self._take_one(node, connected, held)

    def _columns_of(self, log: LogRounds) -> StreamColumns:
        if log.columns is not None and len(log.streams) > 2 * len(log.columns):
            log.columns.dissolve()
            log.columns = None
        if log.columns is None:
            log.columns = StreamColumns(log, self._left)
        return log.columns

    def _enter(self, columns: StreamColumns, log: LogRounds, ids: Iterable[StreamId]) -> None:
        for stream_id in ids:
            stream = log.streams.get(stream_id)
            if stream is None or stream_id in columns:
                continue
            found = [self._held.of.get(node, {}).get(stream_id) for node in stream.replicas]
            reports = [held for held in found if held is not None]
            if len(reports) == len(found):
                columns.enter(stream, reports)

    def _left(self, stream_id: StreamId, held: Sequence[tuple[NodeId, HeldReplica]]) -> None:
        for node, replica in held:
            self._held.of.setdefault(node, {})[stream_id] = replica
