"""The state of storage nodes for the repair of streams: alive, lost, or able to take a replica.

A node that failed for a stream (its disk refuses, the copy to it fails) counts as lost for that
stream for a while, so that another one takes its place; then it is tried again. A node that may
have a replica on a missing volume also counts as lost: a second replica there would contradict the
first when the volume is back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from loomlog.core.ordered.rounds import StreamRounds
from loomlog.core.ordered.situation import Nodes
from loomlog.core.ordered.stream_record import StreamRecord
from loomlog.core.placement import Candidate, Load, choose_spare, why_not
from loomlog.metadata.nodes import placement
from loomlog.metadata.nodes.placement import LostNodes
from loomlog.metadata.ordered.committer import Committer
from loomlog.metadata.ordered.losses import Losses
from loomlog.net.timers import Timers
from loomlog.types import NodeId, ReplicaState, StreamId


class NodeChoice:
    """Knows which nodes have failed a stream, and finds the best node for another replica."""

    def __init__(
        self, committer: Committer, lost: LostNodes, changed: Callable[[StreamId], None]
    ) -> None:
        """`changed` is called when a node that failed a stream may be asked again."""
        self._catalog, self._records = committer.catalog, committer.records
        self._nodes, self._held = committer.nodes, committer.held
        self.connected = self._nodes.connected
        self.lost = lost.lost
        self.lost_in_s = lost.lost_in_s
        self.losses = Losses(committer)
        self._changed = changed
        self._unable = Timers()  # by stream and node

    def stop(self) -> None:
        self._unable.stop()

    def of(self, stream: StreamRounds) -> Nodes:
        """Return the nodes as repair sees them, for one stream."""
        # A node in its grace period cannot be reached, but need not stop a stream either.
        alive = self._nodes.reachable if stream.sealed else self._nodes.alive
        return _NodesOfStream(self, stream, alive)

    def moving(self) -> int:
        return len(self._records.filling)

    # ---- nodes that failed

    def set_unable(self, stream_id: StreamId, node: NodeId) -> None:
        again = partial(self._changed, stream_id)
        self._unable.set((stream_id, node), placement.UNABLE_S, again)

    def unable(self, stream_id: StreamId, node: NodeId) -> bool:
        return (stream_id, node) in self._unable.running or self.lacks_volume(stream_id, node)

    def lacks_volume(self, stream_id: StreamId, node: NodeId) -> bool:
        """Return whether a node may have a replica on a missing volume."""
        record = self._records.streams.get(stream_id)
        return (
            record is not None
            and self._nodes.restrictions(node).volume_missing
            and self._held.get(node, stream_id) is None
            and node in (*record.replicas, *record.dropping, *record.left)
        )

    def has_unopened(self, stream_id: StreamId, node: NodeId) -> bool:
        """Return whether a node has, or may have, data of the stream that it cannot serve."""
        unserved = stream_id in self._nodes.restrictions(node).unserved
        return unserved or self.lacks_volume(stream_id, node)

    def came_back(self, node: NodeId) -> None:
        """Forget the failures of a node from before its restart."""
        for key in list(self._unable.running):
            if isinstance(key, tuple) and key[1] == node:
                self._unable.cancel(key)

    # ---- nodes for another replica

    def spare(self, stream: StreamRounds) -> NodeId | None:
        """Return the best node for one more replica of the stream, if there is any."""
        fit = [n for n in self._nodes.all_reachable() if self.why_not(stream, n) is None]
        loads = {node: self._load(stream.stream_id, node) for node in fit}
        return choose_spare(loads, self._staying(stream), self._catalog.locations)

    def _load(self, stream_id: StreamId, node: NodeId) -> Load:
        connected = self._nodes.get(node)
        stored = connected.stored_bytes_total if connected else 0
        has_remains = self._held.get(node, stream_id) is not None
        return Load(has_remains, self._catalog.load_of[node], stored)

    def _staying(self, stream: StreamRounds) -> list[NodeId]:
        record = self._records.streams.get(stream.stream_id)
        leaving = self._records.leaving(record) if record else None
        return [
            node
            for node in stream.replicas
            if node != leaving and not self.lost(node) and not self.unable(stream.stream_id, node)
        ]

    def freed_soon(self, stream: StreamRounds) -> list[NodeId]:
        """Return nodes that can take the stream as soon as they have deleted old data of it."""
        record = self._records.streams.get(stream.stream_id)
        return [
            node
            for node in (record.dropping if record else ())
            if self._nodes.reachable(node) and not self._catalog.nodes[node].draining
        ]

    def why_not(self, stream: StreamRounds, node: NodeId) -> str | None:
        """Return why the node cannot take a replica of the stream, if there is a reason."""
        stream_id, node_record = stream.stream_id, self._catalog.nodes.get(node)
        record = self._records.streams.get(stream_id)
        if record is None:
            return f"stream {stream_id} is just being deleted"
        candidate = Candidate(
            node,
            reachable=self._nodes.reachable(node),
            has_room=self._nodes.takes_more(node),
            draining=node_record is not None and node_record.draining,
            deleting=node in record.dropping,
            unable=self.unable(stream_id, node),
            has_old_data=self._has_old_data(record, node),
        )
        return why_not(stream_id, stream.replicas, stream.joining, candidate)

    def _has_old_data(self, record: StreamRecord, node: NodeId) -> bool:
        """Return whether it has data of the stream from which a new replica cannot continue."""
        remains = self._held.get(node, record.stream_id)
        return remains is not None and (
            remains.report.state is ReplicaState.SEALED
            or node in record.unregistered
            or remains.stamp != record.stamp
        )


class _NodesOfStream:
    def __init__(
        self, choice: NodeChoice, stream: StreamRounds, alive: Callable[[NodeId], bool]
    ) -> None:
        self._choice = choice
        self._stream = stream
        self._alive = alive
        self.connected = choice.connected
        self.moving = choice.moving
        self.spare = choice.spare

    def given_up(self, node: NodeId) -> bool:
        return node in self._choice.losses.given_up_of(self._stream)

    def has_unopened(self, node: NodeId) -> bool:
        return self._choice.has_unopened(self._stream.stream_id, node)

    def alive(self, node: NodeId) -> bool:
        return self._alive(node) and not self._unable(node)

    def lost(self, node: NodeId) -> bool:
        return self._choice.lost(node) or self._unable(node)

    def has_lost(self, stream: StreamRounds) -> bool:
        return self._choice.losses.of(stream) is not None

    def _unable(self, node: NodeId) -> bool:
        return self._stream.sealed and self._choice.unable(self._stream.stream_id, node)
