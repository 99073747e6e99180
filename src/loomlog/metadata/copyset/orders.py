"""Orders to storage nodes about copyset loglets, over the connections that the nodes opened."""

from __future__ import annotations

import asyncio
import logging

from loomlog.core.copyset.messages import Done, Forget, NotHere, Trim
from loomlog.errors import LoomError, NotLeader, Unavailable
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.records import CopysetRecord
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.types import LogId, NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import answer_from_wire, request_to_wire

logger = logging.getLogger(__name__)


class CopysetOrders:
    """Sends requests about copyset loglets to nodes."""

    def __init__(
        self, epochs: EpochStore, members: ConnectedNodes, request_timeout_s: float
    ) -> None:
        self._epochs = epochs
        self._members = members
        self._request_timeout_s = request_timeout_s

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
            answer, payload = await self._members.exchange(
                node, pb.Frame(copyset_request=message), (), self._request_timeout_s
            )
            return isinstance(answer_from_wire(answer.copyset_answer, payload), Done | NotHere)
        except LoomError as error:
            logger.info("segment %d: node %d: %s", order.log, node, error)
            return False

    async def recover(self, node: NodeId, record: CopysetRecord) -> None:
        """Have a node recover all epochs before the one that was taken for it. Timeout: it is still
        recovering; ordering it again waits for the same recovery while the node is connected."""
        order = pb.RecoverCopyset(state=self._epochs.for_a_sequencer(record))
        await self._ask(node, pb.Frame(recover_copyset=order))

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
            return await self._members.request(node, frame, self._request_timeout_s)
        except NotLeader as error:  # about the loglet's sequencer, not the metadata's leader
            raise Unavailable(str(error)) from None
