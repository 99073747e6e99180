"""The replicas that storage nodes report, including those that they should no longer have."""

from __future__ import annotations

from collections.abc import Mapping

from loomlog.core.ordered.rounds import LogRounds
from loomlog.core.packed import HeldReplica
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.types import LogId, NodeId, StreamId


class HeldReplicas:
    """The replicas of each node, from its registration and its reports since."""

    def __init__(
        self,
        nodes: ConnectedNodes,
        logs: Mapping[LogId, LogRounds],
        log_of: Mapping[StreamId, LogRounds],
    ) -> None:
        self._nodes = nodes
        self._logs, self._log_of = logs, log_of
        self.of: dict[NodeId, dict[StreamId, HeldReplica]] = {}  # older for streams in columns

    def on(self, node: NodeId) -> dict[StreamId, HeldReplica]:
        for log in self._logs.values():
            if log.columns is not None:
                log.columns.leave_on(node)
        return self.of.get(node, {})

    def get(self, node: NodeId, stream_id: StreamId) -> HeldReplica | None:
        log = self._log_of.get(stream_id)
        if log is not None:
            log.leave_columns(stream_id)
        return self.of.get(node, {}).get(stream_id)

    def matching(self, node: NodeId, stream_id: StreamId, stamp: int) -> HeldReplica | None:
        """Return a replica of the stream with this stamp, because another stream may have had its
        number."""
        held = self.get(node, stream_id)
        return held if held is not None and held.stamp == stamp else None

    def joined(self, node: NodeId) -> None:
        """Called when a node registers, before its first report."""
        self.of[node] = {}

    def removed(self, node: NodeId, stream_id: StreamId) -> None:
        """Record that a node no longer has a replica of the stream."""
        before, connected = self.get(node, stream_id), self._nodes.get(node)
        self.of.get(node, {}).pop(stream_id, None)
        if before is not None and connected is not None:
            connected.stored_bytes_total -= before.stored_bytes
