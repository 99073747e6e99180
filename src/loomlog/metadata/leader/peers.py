"""Ask other metadata repositories which one leads: one connection each, opened when needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from loomlog.core.quorum.election import Opinion
from loomlog.core.quorum.member import Leader, MemberId
from loomlog.errors import LoomError
from loomlog.net.endpoints import connect
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, OnlyAnswers
from loomlog.wire.proofs import signed


class Peers:
    """Asks other metadata repositories for their opinion."""

    def __init__(self, me: MemberId, codec: Codec, closed: Callable[[], None]) -> None:
        self._question = pb.AskLeader(member_id=me)
        self._codec = codec
        self._closed = closed  # called when a connection was lost
        self._open: dict[str, Connection] = {}

    def close(self) -> None:
        self._closed = lambda: None
        for connection in list(self._open.values()):
            connection.close()

    async def ask(self, address: str, timeout_s: float) -> Opinion:
        """Return the opinion of a peer; raise a LoomError if it does not answer in time."""
        beat = await self._ask(address, timeout_s)
        return Opinion(Leader(beat.epoch, beat.leader, beat.address), beat.heard)

    async def number(self, address: str, timeout_s: float) -> MemberId:
        """Return the member id of a peer; 0 if it is not one of several. Raises as `ask` does."""
        return (await self._ask(address, timeout_s)).member

    async def _ask(self, address: str, timeout_s: float) -> pb.LeaderBeat:
        connection = self._open.get(address)
        if connection is None or connection.closed:  # perhaps before this was recorded
            connection = await connect(
                address, self._codec, self, timeout_s, wanted=("metadata", 0)
            )
            self._open[address] = connection
        question = pb.Frame(ask_leader=self._question)
        try:
            answer, _ = await connection.request(question, timeout_s=timeout_s)
        except LoomError as error:
            connection.close(error)  # a later answer would be useless
            raise
        beat: pb.LeaderBeat = answer.leader_beat
        return beat

    async def ask_all(
        self, addresses: Mapping[MemberId, str], timeout_s: float
    ) -> dict[MemberId, Opinion]:
        """Return the opinions of peers that answer."""
        asked = (self.ask(address, timeout_s) for address in addresses.values())
        found = await asyncio.gather(*asked, return_exceptions=True)
        return {
            member: opinion
            for member, opinion in zip(addresses, found, strict=True)
            if isinstance(opinion, Opinion)
        }

    # Handler

    def frame_received(
        self, connection: Connection, kind: str, frame: Frame, payload: memoryview
    ) -> None:
        """Ignore the frame: peers ask on separate connections."""

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        if self._open.get(connection.peer) is connection:
            del self._open[connection.peer]
            self._closed()


async def announce(
    leader: Leader, nodes: Iterable[str], cluster_secret: str, codec: Codec, timeout_s: float
) -> None:
    """Announce the leader to storage nodes, so that they need not search for it."""
    epoch, member, address = leader
    beat = pb.LeaderBeat(epoch=epoch, leader=member, address=address, heard=True)
    signed(beat, cluster_secret)

    async def tell(node: str) -> None:
        try:
            connection = await connect(node, codec, OnlyAnswers(), timeout_s, wanted=("node", 0))
        except LoomError:
            return
        connection.send(pb.Frame(leader_beat=beat))
        connection.close()

    await asyncio.gather(*map(tell, nodes))
