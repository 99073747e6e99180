"""The storage nodes as repair sees them: who is there, who is lost, who can take a replica.

A node that could not do its part for a stream (its disk refuses, the copy to it fails) counts as
lost for that stream for a while, so that another one takes its place; then it is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from loomlog.core.ordered import repair
from loomlog.core.ordered.rounds import StreamRounds
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.members import Members
from loomlog.metadata.placement import neighbours
from loomlog.types import NodeId, ReplicaState, StreamId

UNABLE_S: Final = 10.0  # a node that failed is not asked to do the same for so long


class NodeChoice:
    def __init__(self, catalog: Catalog, members: Members, replace_after_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._catalog = catalog
        self._members = members
        self._replace_after_s = replace_after_s
        self._unable: dict[tuple[StreamId, NodeId], float] = {}  # until when

    def of(self, stream: StreamRounds) -> repair.Nodes:
        """All that `repair.decide` asks about the nodes, for one stream."""
        # Nothing can be asked of a node in its grace; but a stream need not stop for that either.
        alive = self._members.reachable if stream.sealed else self._members.alive
        return _NodesOfStream(self, stream, alive)

    # ---- who is lost

    def lost(self, node: NodeId) -> bool:
        record = self._catalog.nodes.get(node)
        if record is None or record.removing:
            return True
        return not self._members.alive(node) and self.lost_in_s(node) <= 0

    def lost_in_s(self, node: NodeId) -> float:
        """How long a silent node still has to come back."""
        return self._replace_after_s - self._members.silent_s(node)

    def set_unable(self, stream_id: StreamId, node: NodeId) -> None:
        self._unable[stream_id, node] = self._loop.time() + UNABLE_S

    def unable(self, stream_id: StreamId, node: NodeId) -> bool:
        until = self._unable.get((stream_id, node))
        if until is not None and until <= self._loop.time():
            del self._unable[stream_id, node]
            return False
        return until is not None

    def came_back(self, node: NodeId) -> None:
        """A new life of it: what it could not do before it may be able to do now."""
        for stream_id, unable in list(self._unable):
            if unable == node:
                del self._unable[stream_id, node]

    # ---- who can take a replica

    def spare(self, stream: StreamRounds) -> NodeId | None:
        """The node with the least to carry; before that, one where no replica that stays is, and
        rather one without remains of that stream."""
        fit = [n for n in self._members.all_reachable() if self.why_not(stream, n) is None]
        staying, locations = self._staying(stream), self._catalog.locations

        def burden(node: NodeId) -> tuple[int, bool, int, int, NodeId]:
            member = self._members.get(node)
            stored = member.stored_bytes_total if member else 0
            has_remains = self._members.report_of(node, stream.stream_id) is not None
            crowd = neighbours(node, staying, locations)
            return crowd, has_remains, self._catalog.load_of[node], stored, node

        return min(fit, key=burden, default=None)

    def _staying(self, stream: StreamRounds) -> list[NodeId]:
        record = self._catalog.streams.get(stream.stream_id)
        leaving = self._catalog.leaving(record) if record else None
        return [
            node
            for node in stream.replicas
            if node != leaving and not self.lost(node) and not self.unable(stream.stream_id, node)
        ]

    def freed_soon(self, stream: StreamRounds) -> list[NodeId]:
        """Nodes that only have to delete what they hold of the stream before they can take it."""
        record = self._catalog.streams.get(stream.stream_id)
        return [
            node
            for node in (record.dropping if record else ())
            if self._members.reachable(node) and not self._catalog.nodes[node].draining
        ]

    def why_not(self, stream: StreamRounds, node: NodeId) -> str | None:
        """What speaks against one more replica of the stream on that node, if anything does."""
        stream_id = stream.stream_id
        if node in stream.replicas:
            return f"node {node} has a replica of stream {stream_id} already"
        if node == stream.joining:
            return f"node {node} is being filled with stream {stream_id} already"
        if not self._members.reachable(node):
            return f"node {node} is not alive"
        if self._catalog.nodes[node].draining:
            return f"node {node} is being drained"
        record = self._catalog.streams.get(stream_id)
        if record is None:
            return f"stream {stream_id} is just being deleted"
        if node in record.dropping:
            return f"node {node} is just deleting old data of stream {stream_id}: try again soon"
        if self.unable(stream_id, node):
            return f"node {node} failed to take stream {stream_id} a moment ago: see the logs"
        remains = self._members.report_of(node, stream_id)
        if remains is not None and remains.state is ReplicaState.SEALED:
            return (
                f"node {node} has old data of stream {stream_id}: "
                f"delete it with `loom node cleanup {node}` first"
            )
        return None


class _NodesOfStream:
    def __init__(
        self, nodes: NodeChoice, stream: StreamRounds, alive: Callable[[NodeId], bool]
    ) -> None:
        self._nodes = nodes
        self._stream = stream
        self._alive = alive

    def alive(self, node: NodeId) -> bool:
        return self._alive(node) and not self._unable(node)

    def lost(self, node: NodeId) -> bool:
        return self._nodes.lost(node) or self._unable(node)

    def spare(self, stream: StreamRounds) -> NodeId | None:
        return self._nodes.spare(stream)

    def _unable(self, node: NodeId) -> bool:
        return self._stream.sealed and self._nodes.unable(self._stream.stream_id, node)
