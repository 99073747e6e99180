"""Asking other metadata repositories who leads: one connection each, made when needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from loomlog.core.quorum.election import Opinion
from loomlog.core.quorum.majority import MemberId
from loomlog.core.quorum.member import Leader
from loomlog.errors import LoomError
from loomlog.net.connection import Connection, Frame
from loomlog.net.endpoints import connect
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec


class Peers:
    def __init__(self, me: MemberId, codec: Codec, closed: Callable[[], None]) -> None:
        self._question = pb.AskLeader(member_id=me)
        self._codec = codec
        self._closed = closed  # told when a connection was lost
        self._open: dict[str, Connection] = {}

    def close(self) -> None:
        self._closed = lambda: None
        for connection in list(self._open.values()):
            connection.close()

    async def ask(self, address: str, timeout_s: float) -> Opinion:
        """Raises a LoomError if it cannot be asked, or does not answer in time."""
        beat = await self._ask(address, timeout_s)
        return Opinion(Leader(beat.epoch, beat.leader, beat.address), beat.heard)

    async def number(self, address: str, timeout_s: float) -> MemberId:
        """Which one it is; 0: it is none of several. Raises as `ask` does."""
        return (await self._ask(address, timeout_s)).member

    async def _ask(self, address: str, timeout_s: float) -> pb.LeaderBeat:
        connection = self._open.get(address)
        if connection is None or connection.closed:  # perhaps before it was noted here
            connection = await connect(address, self._codec, self, timeout_s)
            self._open[address] = connection
        question = pb.Frame(ask_leader=self._question)
        try:
            answer, _ = await connection.request(question, timeout_s=timeout_s)
        except LoomError as error:
            connection.close(error)  # what it says later is not worth waiting for
            raise
        beat: pb.LeaderBeat = answer.leader_beat
        return beat

    async def ask_all(
        self, addresses: Mapping[MemberId, str], timeout_s: float
    ) -> dict[MemberId, Opinion]:
        """The opinions of those who answer."""
        asked = (self.ask(address, timeout_s) for address in addresses.values())
        found = await asyncio.gather(*asked, return_exceptions=True)
        return {
            member: opinion
            for member, opinion in zip(addresses, found, strict=True)
            if isinstance(opinion, Opinion)
        }

    # Handler

    def frame_received(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        """Peers ask on connections of their own."""

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        if self._open.get(connection.peer) is connection:
            del self._open[connection.peer]
            self._closed()


async def announce(leader: Leader, nodes: Iterable[str], codec: Codec, timeout_s: float) -> None:
    """Tell storage nodes who leads now, so that they need not find out by themselves."""
    epoch, member, address = leader
    beat = pb.LeaderBeat(epoch=epoch, leader=member, address=address, heard=True)

    async def tell(node: str) -> None:
        try:
            connection = await connect(node, codec, _Nobody(), timeout_s)
        except LoomError:
            return
        connection.send(pb.Frame(leader_beat=beat))
        connection.close()

    await asyncio.gather(*map(tell, nodes))


class _Nobody:
    """Hears nothing."""

    def frame_received(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        pass

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        pass
