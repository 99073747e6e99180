"""The storage nodes as copyset loglets see them: which may take records or sequence, and orders to
them over the connections that they opened."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from loomlog.core.copyset.messages import Done, Forget, LogState, NotHere, Trim
from loomlog.core.copyset.nodeset import Member, choose_nodeset, sequencer_of
from loomlog.core.copyset.record import Epoch
from loomlog.core.copyset.shards import node_of
from loomlog.core.segments import Settings
from loomlog.errors import LoomError, NotLeader, Unavailable
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import Losses, NodeRecord
from loomlog.metadata.copyset.records import CopysetRecord
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.nodes.placement import LostNodes
from loomlog.protocol_names import COPYSET
from loomlog.types import LogId, NodeId, ShardId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import KnownNode, answer_from_wire, request_to_wire

logger = logging.getLogger(__name__)

NODESET_DEFAULT: Final = 20  # beyond this, more nodes do not spread the load better


class CopysetNodes:
    """The storage nodes as copyset loglets see them."""

    def __init__(
        self,
        catalog: Catalog,
        connected: ConnectedNodes,
        lost_nodes: LostNodes,
        request_timeout_s: float,
    ) -> None:
        self._catalog = catalog
        self._connected = connected
        self._lost_nodes = lost_nodes
        self._request_timeout_s = request_timeout_s
        self._losses: dict[NodeId, tuple[Losses, dict[LogId, Epoch]]] = {}  # as in the records
        self.alive = connected.alive
        self.silent = connected.silent
        self.reachable = connected.reachable

    def known(self) -> list[KnownNode]:
        """Return all nodes of the cluster, in the form sent to nodes and clients."""
        return [
            KnownNode(
                node_id,
                node.address,
                self.alive(node_id),
                self.hands_over(node_id),
                self._why_full(node_id),
            )
            for node_id, node in sorted(self._catalog.nodes.items())
        ]

    def _why_full(self, node: NodeId) -> str:
        restrictions = self._connected.restrictions(node)
        is_full = restrictions.refuses_copies and not restrictions.copies_fail
        return self._connected.complaints(node) if is_full else ""

    def usable(self) -> set[Member]:
        """Return the nodes that may be in a nodeset; one that is away for a moment may stay."""
        return {
            Member(node.node_id, node.location)
            for node in self._catalog.nodes.values()
            if not _leaves(node) and not self._is_unusable(node.node_id)
        }

    def leaves(self, node: NodeId | None) -> bool:
        """Return whether a node is drained, or not part of the cluster any more."""
        record = None if node is None else self._catalog.nodes.get(node)
        return record is None or _leaves(record)

    def hands_over(self, node: NodeId | None) -> bool:
        """Return whether a node should sequence nothing: it leaves, or is about to be restarted."""
        return self.leaves(node) or (node is not None and self._connected.restart_left_s(node) > 0)

    def lost_through(self, node: NodeId, loglet: LogId) -> Epoch:
        """Return the epoch up to which a node may have lost copies of a loglet; 0: none."""
        record = self._catalog.nodes.get(node)
        losses = record.losses_of(COPYSET) if record else ()
        if not losses:
            return 0
        if node not in self._losses or self._losses[node][0] is not losses:
            self._losses[node] = losses, {pair[0]: pair[1] for pair in losses}
        return self._losses[node][1].get(loglet, 0)

    def is_unfit(self, node: NodeId) -> bool:
        """Return whether a node has to leave the nodesets that it is in."""
        return self.leaves(node) or self._is_unusable(node)

    def _is_unusable(self, node: NodeId) -> bool:
        return self._lost_nodes.lost(node) or self._connected.restrictions(node).stores_no_copies

    def takers(self, shards: Collection[ShardId]) -> list[ShardId]:
        """Return which of the shards take copies."""
        return [shard for shard in shards if self._takes_copies(node_of(shard))]

    def _takes_copies(self, node: NodeId) -> bool:
        restrictions = self._connected.restrictions(node)
        refuses = restrictions.refuses_copies or restrictions.stores_no_copies
        return self.alive(node) and not refuses

    def refusing(self, state: LogState) -> dict[NodeId, str]:
        """Return which nodes of a loglet take no new copies, and what is wrong with them."""
        return {
            node: self._connected.complaints(node)
            for node in self.alive_of(state)
            if self._connected.restrictions(node).refuses_copies
        }

    def failing(self, state: LogState) -> dict[NodeId, str]:
        """Return which of those cannot take part in a recovery either."""
        refusing = self.refusing(state).items()
        return {n: why for n, why in refusing if self._connected.restrictions(n).copies_fail}

    def lost_in_s(self, node: NodeId) -> float:
        return max(0.0, self._lost_nodes.lost_in_s(node))

    def first_nodeset(self, loglet: LogId, settings: Settings) -> tuple[Member, ...]:
        """Choose among the nodes that are there and have room; if they are too few, among all."""
        there = {m for m in self.usable() if self._connected.takes_more(m.node)}
        if len(there) < max(settings.replicas, settings.nodeset):
            nodes = self._catalog.nodes.values()
            there = {Member(n.node_id, n.location) for n in nodes if not _leaves(n)}
        return choose_nodeset(loglet, there, size_of(settings))

    def sequencer(self, loglet: LogId, avoided: Collection[NodeId] = ()) -> NodeId | None:
        """Return which reachable node is to sequence a loglet, if possible none of `avoided`. Nodes
        and clients make the same choice."""
        there = [node for node in self._connected.all_reachable() if node in self._catalog.nodes]
        staying = [node for node in there if not self.hands_over(node)] or there
        others = [node for node in staying if node not in avoided] or staying
        return sequencer_of(loglet, dict.fromkeys(others, 1.0))

    def alive_of(self, state: LogState) -> list[NodeId]:
        """Return the nodes of all nodesets of a loglet that are alive."""
        nodes = {node for metadata in state.history for node in metadata.shards}
        return [node for node in sorted(nodes) if self._connected.alive(node)]

    # ---- orders and questions

    async def tell(
        self, nodes: list[NodeId], order: Trim | Forget, record: CopysetRecord
    ) -> list[NodeId]:
        """Give nodes an order; return those that carried it out or have nothing of the loglet."""
        stamp = record.state.stamp
        done = await asyncio.gather(*(self._is_done(node, order, stamp) for node in nodes))
        return [node for node, is_done in zip(nodes, done, strict=True) if is_done]

    async def _is_done(self, node: NodeId, order: Trim | Forget, stamp: int) -> bool:
        message, _ = request_to_wire(order, stamp)
        try:
            answer, payload = await self._connected.exchange(
                node, pb.Frame(copyset_request=message), (), self._request_timeout_s
            )
            return isinstance(answer_from_wire(answer.copyset_answer, payload), Done | NotHere)
        except LoomError as error:
            logger.info("segment %d: node %d: %s", order.log, node, error)
            return False

    async def recover(self, node: NodeId, state: pb.CopysetState) -> None:
        """Have a node recover all epochs before the one that was taken for it. Timeout: it is still
        recovering; ordering it again waits for the same recovery while the node is connected."""
        await self._ask(node, pb.Frame(recover_copyset=pb.RecoverCopyset(state=state)))

    async def landmarks(
        self, nodes: list[NodeId], loglet: LogId, timestamp_us: int
    ) -> dict[NodeId, pb.CopysetLandmarks]:
        """Return the landmarks of the nodes that answer."""
        question = pb.FindCopysetLandmarks(loglet_id=loglet, timestamp_us=timestamp_us)
        frame = pb.Frame(find_copyset_landmarks=question)
        answers = await asyncio.gather(
            *(self._ask(node, frame) for node in nodes), return_exceptions=True
        )
        marks = {}
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, pb.Frame):
                marks[node] = answer.copyset_landmarks
            elif not isinstance(answer, LoomError):
                raise answer
        return marks

    async def find_tail(self, node: NodeId, loglet: LogId) -> pb.CopysetTail:
        """Ask the sequencer on a node for the tail; it is started if it should be there."""
        question = pb.FindCopysetTail(loglet_id=loglet)
        return (await self._ask(node, pb.Frame(find_copyset_tail=question))).copyset_tail

    async def finish(self, node: NodeId, loglet: LogId) -> None:
        """Have the sequencer there end, if any, and report its end to the epoch store."""
        question = pb.FindCopysetTail(loglet_id=loglet, finish=True)
        await self._ask(node, pb.Frame(find_copyset_tail=question))

    async def _ask(self, node: NodeId, frame: pb.Frame) -> pb.Frame:
        try:
            return await self._connected.request(node, frame, self._request_timeout_s)
        except NotLeader as error:  # about the loglet's sequencer, not the metadata's leader
            raise Unavailable(str(error)) from None


def size_of(settings: Settings) -> int:
    """Return how many nodes the nodeset is to have."""
    return settings.nodeset or max(NODESET_DEFAULT, settings.replicas)


def _leaves(node: NodeRecord) -> bool:
    return node.draining or node.removing
