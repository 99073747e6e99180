"""Asking another metadata repository which one leads, with failing connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from loomlog.core.quorum.election import Opinion
from loomlog.core.quorum.member import Leader
from loomlog.errors import Unavailable
from loomlog.metadata.leader.peers import Peers
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, Service

CODEC = Codec("vmr")
LEADER = Leader(3, 2, "two:7400")
PATIENCE_S = 30.0


class HangsUp(Connection):
    """Right after the greeting."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send(CODEC.failure_frame(Unavailable("not now")))
        self.close()


async def _answer(connection: Connection, frame: Frame, payload: memoryview) -> Frame:
    epoch, member, address = LEADER
    beat = pb.LeaderBeat(epoch=epoch, leader=member, address=address, heard=True)
    return pb.Frame(leader_beat=beat)


@asynccontextmanager
async def peer_that_hangs_up_once() -> AsyncIterator[str]:
    service = Service(CODEC, {"ask_leader": _answer})
    kinds = [Connection, HangsUp]
    accepted: list[Connection] = []

    def accept() -> Connection:
        kind = kinds.pop() if len(kinds) > 1 else kinds[0]
        accepted.append(kind(CODEC, service))
        return accepted[-1]

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for connection in accepted:
            connection.close()
        await service.stop()


async def test_one_that_hung_up_while_it_greeted_is_asked_anew() -> None:
    async with peer_that_hangs_up_once() as address:
        peers = Peers(1, CODEC, lambda: None)
        with pytest.raises(Unavailable, match="not now"):
            await peers.ask(address, PATIENCE_S)
        assert await peers.ask(address, PATIENCE_S) == Opinion(LEADER, heard=True)
        peers.close()
