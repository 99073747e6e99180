"""A server and clients that speak TLS, and their certificates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any

import pytest
import uvloop

from loomlog.core.principal import Principal
from loomlog.net.credentials import Credentials
from loomlog.net.endpoints import connect
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Server, Service

PATIENCE_S = 20.0
CLUSTER = "prod"
NODE_3 = Principal("node", number=3, cluster=CLUSTER)
ALICE = Principal("client", name="alice", cluster=CLUSTER)


def on_both_loops(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on the loop of servers and on that of most clients."""

    def test(new_loop: Callable[[], asyncio.AbstractEventLoop], **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(story(**fixtures))

    new_loop = Parameter("new_loop", Parameter.KEYWORD_ONLY)
    own = [
        each.replace(kind=Parameter.KEYWORD_ONLY) for each in signature(story).parameters.values()
    ]
    test.__signature__ = Signature([new_loop, *own])  # type: ignore[attr-defined]
    test.__doc__ = story.__doc__
    loops = [asyncio.new_event_loop, uvloop.new_event_loop]
    decorated: Callable[..., None] = pytest.mark.parametrize("new_loop", loops)(test)
    return decorated


class Service3(Service):
    """Answers get_bounds, and records the identity of each caller."""

    def __init__(self) -> None:
        super().__init__(Codec("vsn"), {"get_bounds": self._bounds})
        self.asked: list[Principal] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def _bounds(self, connection: Connection, frame: Any, payload: memoryview) -> Any:
        self.asked.append(connection.principal)
        await self.may_answer.wait()
        return pb.Frame(bounds=pb.Bounds())


@asynccontextmanager
async def serving(credentials: Credentials | None) -> AsyncIterator[tuple[Server, Service3]]:
    service = Service3()
    server = Server(Codec("vsn", credentials=credentials), service)
    await server.start("127.0.0.1:0")
    try:
        yield server, service
    finally:
        await server.stop()
        await service.stop()


async def dial(address: str, credentials: Credentials | None) -> Connection:
    codec = Codec("client", credentials=credentials)
    return await connect(address, codec, Service(codec, {}), PATIENCE_S)


async def ask(address: str, credentials: Credentials | None) -> None:
    connection = await dial(address, credentials)
    try:
        await connection.request(pb.Frame(get_bounds=pb.GetBounds()))
    finally:
        connection.close()
        await connection.wait_closed()


def node_3(certs: Path) -> Credentials:
    return Credentials.of_server(str(certs), "node", 3, CLUSTER)


def alice(certs: Path) -> Credentials:
    return Credentials.of_client(str(certs / "client-alice.pem"))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
