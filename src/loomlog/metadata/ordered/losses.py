"""Records of streams that are lost for good: no node has them or may come back with them."""

from __future__ import annotations

from loomlog.core.ordered.repair import Loss, find_loss
from loomlog.core.ordered.rounds import StreamRounds
from loomlog.metadata.catalog.records import StreamRecord
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.ordered.committer import Committer
from loomlog.types import Llsn, NodeId


class Losses:
    """Finds streams that lost entries for good."""

    def __init__(self, committer: Committer, members: ConnectedNodes) -> None:
        self._committer = committer
        self._members = members

    def of(self, stream: StreamRounds) -> Loss | None:
        """Return the loss of a stream; None while a node may still come back with the data, or has
        data that it cannot serve now."""
        for node in stream.replicas:
            member = self._members.get(node)
            if not member or not member.connection or stream.stream_id in member.unserved:
                return None
        log = self._committer.log_of(stream.stream_id)
        if log is not None and self._committer.lost_rounds(log.log_id):
            return None
        return find_loss(stream)

    def remains(self, stream: StreamRecord, loss: Loss) -> list[tuple[NodeId, Llsn]]:
        """Return nodes that left the stream and have something of what is lost: from its first LLSN
        on up to that one, exclusively."""
        found = []
        for node in self._members.all_reachable():
            report = self._members.report_of(node, stream.stream_id)
            is_other = self._members.stamp_of(node, stream.stream_id) != stream.stamp
            if report is None or is_other or node in stream.replicas:
                continue
            if report.uncommitted_llsn_offset > loss.first:
                found.append((node, report.uncommitted_llsn_offset))
        return found
