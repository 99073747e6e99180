"""The replicas of chains on a storage node: what clients ask of them, and the metadata repository.

Anybody may read and write: what an epoch allows is core/chained's matter. To seal, create, fill,
trim and remove is for the metadata repository to order, over the connection that this node made to
it.

Whatever the node's --sync: a chain is always synced, since a replica that loses what it
acknowledged breaks the order of its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from loomlog import limits
from loomlog.core.chained.block import POSITION_MAX
from loomlog.core.chained.messages import (
    Answer,
    Create,
    Done,
    Fetch,
    Lost,
    Pull,
    Refused,
    Remove,
    Request,
    SealedAt,
    Stored,
    Trim,
)
from loomlog.core.chained.projection import Replica
from loomlog.core.chained.replica import NOT_HERE
from loomlog.errors import Busy, LoomError, Unauthorized
from loomlog.net.connection import Connection, Frame
from loomlog.node.chain_volumes import ChainVolume, ChainVolumes
from loomlog.node.pulling import Pulling, answer_to
from loomlog.node.waiting_fetches import WaitingFetches
from loomlog.storage.write_once import Answered
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import ORDERS, answer_to_wire, request_from_wire
from loomlog.wire.codec import Codec

logger = logging.getLogger(__name__)

_CHANGED: Final = (Stored, SealedAt, Done)
_NOT_DONE: Final = (Refused, Lost)


class ChainedReplicas:
    """All of one node."""

    def __init__(
        self,
        node_id: NodeId,
        volumes: Callable[[], ChainVolumes],
        tell: Callable[[pb.Frame], None],
        codec: Codec,
    ) -> None:
        """`tell` the metadata repository something, if it can be reached."""
        self._node_id = node_id
        self._opened_volumes = volumes
        self._tell = tell
        self._told: set[Replica] = set()  # of damage
        self._waiting = WaitingFetches(self._look)
        self._creations = asyncio.Lock()
        self._pulling = Pulling(codec, self._ask)

    @property
    def _volumes(self) -> ChainVolumes:
        return self._opened_volumes()

    def found(self) -> list[pb.ChainReplicaRef]:
        """What is here, for the metadata repository to know."""
        return [
            pb.ChainReplicaRef(
                loglet_id=replica.log_id,
                chain=replica.chain,
                birth=replica.birth,
                epoch=standing.epoch,
            )
            for replica, standing in self._volumes.replicas.items()
        ]

    def request(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame] | None:
        """Of a client, or of another node."""
        message = frame.chain_request
        if message.kind in ORDERS:
            name = pb.ChainRequest.Kind.Name(message.kind)
            raise Unauthorized(f"{name} of a replica is ordered by the metadata repository only")
        return self._serve(connection, frame.id, message, payload)

    def order(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame] | None:
        """Of the metadata repository, which may ask for everything."""
        return self._serve(connection, frame.id, frame.chain_request, payload)

    def _serve(
        self,
        connection: Connection,
        request_id: int,
        message: pb.ChainRequest,
        payload: memoryview,
    ) -> Awaitable[Frame] | None:
        replica, request = request_from_wire(message, self._node_id, payload)
        done = partial(_answer, connection, request_id)
        if isinstance(request, Create):
            return self._create(replica)
        if isinstance(request, Pull):
            return self._pull(replica, request, message.source.address)
        if isinstance(request, Fetch) and message.wait_ms:
            wait_s = min(message.wait_ms / 1000, limits.CHAIN_WAIT_S_MAX)
            self._waiting.add(connection, replica, request, wait_s, done)
        else:
            self._ask(replica, request, done)
        return None

    def stop(self) -> None:
        self._pulling.stop()

    def connection_closed(self, connection: Connection) -> None:
        self._waiting.connection_closed(connection)

    def _ask(self, replica: Replica, request: Request, done: Answered) -> None:
        volume = self._opened_volumes().holding(replica)
        if volume is None:
            done(Done() if isinstance(request, Remove) else NOT_HERE)
        else:
            volume.ask(replica, request, partial(self._answered, volume, replica, request, done))

    def _look(self, replica: Replica, request: Request, done: Answered) -> None:
        """Like `_ask`, for a fetch that waits: there is nobody to raise to."""
        try:
            self._ask(replica, request, done)
        except Busy as error:
            done(Refused(str(error)))

    def _answered(
        self,
        volume: ChainVolume,
        replica: Replica,
        request: Request,
        done: Answered,
        answer: Answer,
    ) -> None:
        done(answer)
        if isinstance(answer, _CHANGED):
            self._waiting.changed(replica)
        elif isinstance(answer, _NOT_DONE) and volume.is_damaged(replica):
            self._tell_of_damage(volume, replica)
        match request, answer:
            case Trim(_, position), Done():
                volume.reclaim_soon(replica, position)
            case Remove(), Done():
                volume.reclaim_soon(replica, POSITION_MAX)
                logger.info("%s left this node", _name(replica))

    def _tell_of_damage(self, volume: ChainVolume, replica: Replica) -> None:
        """Another replica may take its place. Told once; who registers is looked at anyway."""
        if replica not in self._told:
            self._told.add(replica)
            report = pb.ReportChain(
                loglet_id=replica.log_id,
                epoch=volume.replicas[replica].epoch,
                storage_node_id=self._node_id,
            )
            self._tell(pb.Frame(report_chain=report))

    async def _create(self, replica: Replica) -> Frame:
        async with self._creations:
            answer = await self._created(replica)
        if isinstance(answer, Done):
            logger.info("%s is new on this node", _name(replica))
        return _frame(answer)

    async def _pull(self, replica: Replica, request: Pull, address: str) -> Frame:
        return _frame(await self._pulling.pull(replica, request, address))

    async def _created(self, replica: Replica) -> Answer:
        try:
            volume = self._volumes.holding(replica) or await self._volumes.place()
        except LoomError as error:
            return Refused(str(error))
        return await answer_to(partial(volume.ask, replica, Create()))


def _frame(answer: Answer) -> Frame:
    message, _ = answer_to_wire(answer)
    return pb.Frame(chain_answer=message)


def _answer(connection: Connection, request_id: int, answer: Answer) -> None:
    message, payload = answer_to_wire(answer)
    connection.send(pb.Frame(id=request_id, reply=True, chain_answer=message), payload)


def _name(replica: Replica) -> str:
    return f"replica {replica.birth} of chain {replica.chain} of loglet {replica.log_id}"
