"""What the metadata repository tells storage nodes about copyset loglets, over the connections that
they made to it."""

from __future__ import annotations

import asyncio
import logging

from loomlog.core.copyset.messages import Done, Forget, Trim
from loomlog.errors import LoomError, NotLeader, Unavailable
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.members import Members
from loomlog.metadata.records import CopysetRecord
from loomlog.types import LogId, NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import answer_from_wire, request_to_wire

logger = logging.getLogger(__name__)


class CopysetOrders:
    def __init__(self, epochs: EpochStore, members: Members, request_timeout_s: float) -> None:
        self._epochs = epochs
        self._members = members
        self._request_timeout_s = request_timeout_s

    async def tell(self, nodes: list[NodeId], order: Trim | Forget) -> list[NodeId]:
        """Those that have done it."""
        done = await asyncio.gather(*(self._is_done(node, order) for node in nodes))
        return [node for node, is_done in zip(nodes, done, strict=True) if is_done]

    async def _is_done(self, node: NodeId, order: Trim | Forget) -> bool:
        message, _ = request_to_wire(order)
        try:
            answer, payload = await self._members.exchange(
                node, pb.Frame(copyset_request=message), (), self._request_timeout_s
            )
            return isinstance(answer_from_wire(answer.copyset_answer, payload), Done)
        except LoomError as error:
            logger.info("segment %d: node %d: %s", order.log, node, error)
            return False

    async def recover(self, node: NodeId, record: CopysetRecord) -> None:
        """All epochs before the one that was taken for the node. Timeout: it is at it; to order it
        again is to wait on, as long as the node is connected."""
        order = pb.RecoverCopyset(state=self._epochs.to_wire(record))
        await self._ask(node, pb.Frame(recover_copyset=order))

    async def find_landmarks(
        self, node: NodeId, loglet: LogId, timestamp_us: int
    ) -> pb.CopysetLandmarks:
        question = pb.FindCopysetLandmarks(loglet_id=loglet, timestamp_us=timestamp_us)
        frame = pb.Frame(find_copyset_landmarks=question)
        return (await self._ask(node, frame)).copyset_landmarks

    async def find_tail(self, node: NodeId, loglet: LogId) -> pb.CopysetTail:
        """Of the sequencer there; one comes to be if it should be there and is not."""
        question = pb.FindCopysetTail(loglet_id=loglet)
        return (await self._ask(node, pb.Frame(find_copyset_tail=question))).copyset_tail

    async def _ask(self, node: NodeId, frame: pb.Frame) -> pb.Frame:
        try:
            return await self._members.request(node, frame, self._request_timeout_s)
        except NotLeader as error:  # of a loglet: who leads here is another matter
            raise Unavailable(str(error)) from None
