"""What the metadata repository tells storage nodes about copyset loglets, over the connections that
they made to it."""

from __future__ import annotations

import asyncio
import logging

from loomlog.core.copyset.messages import Done, Forget, Trim
from loomlog.errors import LoomError
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
        order = pb.Frame(recover_copyset=pb.RecoverCopyset(state=self._epochs.to_wire(record)))
        await self._members.request(node, order, self._request_timeout_s)

    async def find_landmarks(
        self, node: NodeId, loglet: LogId, timestamp_us: int
    ) -> pb.CopysetLandmarks:
        question = pb.FindCopysetLandmarks(loglet_id=loglet, timestamp_us=timestamp_us)
        frame = pb.Frame(find_copyset_landmarks=question)
        answer = await self._members.request(node, frame, self._request_timeout_s)
        return answer.copyset_landmarks

    async def find_tail(self, node: NodeId, loglet: LogId) -> pb.CopysetTail:
        """Of the sequencer there."""
        question = pb.Frame(find_copyset_tail=pb.FindCopysetTail(loglet_id=loglet))
        return (await self._members.request(node, question, self._request_timeout_s)).copyset_tail
