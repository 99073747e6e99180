"""The replicas that storage nodes report, also those that they should no longer have."""

from __future__ import annotations

from typing import NamedTuple

from loomlog.metadata.nodes.connected_nodes import ConnectedNode, ConnectedNodes
from loomlog.types import NodeId, Report, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.translate import report_from_wire


class HeldReplica(NamedTuple):
    """A replica as its node reported it last."""

    report: Report
    stamp: int
    birth: int
    stored_bytes: int = 0

    @classmethod
    def from_wire(cls, message: pb.LogStreamUncommitReport) -> HeldReplica:
        report = report_from_wire(message)
        return cls(report, message.stamp, message.birth, message.stored_bytes)


class HeldReplicas:
    """The replicas of each node, from its registration and its reports since."""

    def __init__(self, nodes: ConnectedNodes) -> None:
        self._nodes = nodes
        self._held: dict[NodeId, dict[StreamId, HeldReplica]] = {}

    def on(self, node: NodeId) -> dict[StreamId, HeldReplica]:
        return self._held.get(node, {})

    def get(self, node: NodeId, stream_id: StreamId) -> HeldReplica | None:
        return self.on(node).get(stream_id)

    def matching(self, node: NodeId, stream_id: StreamId, stamp: int) -> HeldReplica | None:
        """Return a replica of the stream with this stamp: another one may have had its number."""
        held = self.get(node, stream_id)
        return held if held is not None and held.stamp == stamp else None

    def joined(self, node: NodeId) -> None:
        """Called when a node registers, before its first report."""
        self._held[node] = {}

    def put(self, connected: ConnectedNode, replica: HeldReplica) -> None:
        held, stream_id = self._held[connected.node_id], replica.report.stream_id
        before = held.get(stream_id)
        connected.stored_bytes_total += replica.stored_bytes - (
            before.stored_bytes if before else 0
        )
        held[stream_id] = replica

    def removed(self, node: NodeId, stream_id: StreamId) -> None:
        """Note that a node has no replica of the stream any more."""
        before, connected = self.on(node).pop(stream_id, None), self._nodes.get(node)
        if before is not None and connected is not None:
            connected.stored_bytes_total -= before.stored_bytes
