"""The entries that streams of `ordered` segments have lost permanently."""

from __future__ import annotations

from loomlog.core.ordered.repair import Loss, find_loss
from loomlog.core.ordered.rounds import StreamRounds
from loomlog.core.ordered.stream_record import StreamRecord
from loomlog.metadata.ordered.committer import Committer
from loomlog.types import Llsn, NodeId


class Losses:
    """Finds streams with permanently lost entries, which no node has or may come back with."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._nodes, self._held = committer.nodes, committer.held

    def of(self, stream: StreamRounds) -> Loss | None:
        """Return the loss of a stream; None while a node may come back with the data, or has data
        that it cannot serve now."""
        given_up = self.given_up_of(stream)
        for node in stream.replicas:
            if node in given_up:
                continue
            restrictions = self._nodes.restrictions(node)
            is_missing = self._held.get(node, stream.stream_id) is None
            if (
                not self._nodes.connected(node)
                or stream.stream_id in restrictions.unserved  # it has data that it cannot serve
                or (is_missing and restrictions.volume_missing)
            ):
                return None
        log = self._committer.log_of(stream.stream_id)
        if log is not None and self._committer.lost_rounds(log.log_id):
            return None
        return find_loss(stream, self.without_commits(stream), given_up)

    def shown_to_readers(self, stream: StreamRounds) -> Loss | None:
        """Return the loss of a stream for readers, which then wait for none of its replicas. The
        loss may have no entries, if all nodes that could confirm that there are none were given
        up."""
        if stream.has_entries or not (stream.heard and stream.sealed):
            return self.of(stream)
        given_up = self.given_up_of(stream)
        return Loss(1, 0) if all(node in given_up for node in stream.replicas) else None

    def without_commits(self, stream: StreamRounds) -> list[NodeId]:
        """Return the replicas that lost commits which cannot be sent again."""
        log = self._committer.log_of(stream.stream_id)
        if log is None or not stream.sealed:
            return []
        return [node for node in stream.replicas if log.lost_commits(stream, node)]

    def remains(self, stream: StreamRecord, loss: Loss) -> list[tuple[NodeId, Llsn]]:
        """Return nodes that left the stream and have some of the lost entries, with the LLSN before
        which they have them, from the first lost one on."""
        found = []
        for node in self._nodes.all_reachable():
            held = self._held.matching(node, stream.stream_id, stream.stamp)
            if held is None or node in stream.replicas:
                continue
            if held.report.uncommitted_llsn_offset > loss.first:
                found.append((node, held.report.uncommitted_llsn_offset))
        return found

    def given_up_of(self, stream: StreamRounds) -> list[NodeId]:
        """Return the absent nodes of a stream whose data an operator gave up."""
        nodes = [*stream.replicas, *([] if stream.joining is None else [stream.joining])]
        return [node for node in nodes if self._is_given_up(node)]

    def _is_given_up(self, node: NodeId) -> bool:
        known = self._committer.catalog.nodes.get(node)
        return known is not None and known.is_given_up and not self._nodes.connected(node)
