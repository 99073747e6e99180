"""A service that is stopped while requests come in."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine

import pytest

from loomlog.errors import Unavailable
from loomlog.net.endpoints import connect
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, Server, Service


class Silent:
    def frame_received(
        self, connection: Connection, kind: str, frame: Frame, payload: memoryview
    ) -> None:
        raise AssertionError(frame)

    def connection_closed(self, connection: Connection, error: Exception) -> None:
        pass


async def test_requests_in_the_moment_of_a_stop_are_dropped_without_a_trace() -> None:
    """A coroutine that was made and never awaited would warn, and warnings are errors here."""
    arrived: list[int] = []
    codec = Codec("vsn")

    async def answer(connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        await asyncio.sleep(60)
        return pb.Frame(done=pb.Done())

    class Stopped(Service):
        def frame_received(
            self, connection: Connection, kind: str, frame: Frame, payload: memoryview
        ) -> None:
            super().frame_received(connection, kind, frame, payload)
            arrived.append(frame.id)
            if len(arrived) == 1:  # its task has not begun
                stopping.append(asyncio.ensure_future(self.stop()))

    stopping: list[asyncio.Future[None]] = []
    service = Stopped(codec, {"read": answer})
    server = Server(codec, service)
    await server.start("127.0.0.1:0")
    client = await connect(server.address, Codec("client"), Silent())
    requests = [client.request(pb.Frame(read=pb.Read(glsn=n))) for n in (1, 2)]
    pending = asyncio.gather(*requests, return_exceptions=True)
    while len(arrived) < 2:  # noqa: ASYNC110 - the service tells nobody
        await asyncio.sleep(0)
    await stopping[0]
    await server.stop()
    for result in await pending:
        assert isinstance(result, Unavailable)
    gc.collect()


async def test_a_request_that_is_being_judged_in_the_moment_of_a_stop_is_dropped() -> None:
    codec = Codec("vsn")
    stopping: list[asyncio.Future[None]] = []

    class Slow:
        is_on = True

        def check(
            self, connection: Connection, kind: str, frame: Frame, payload: memoryview
        ) -> Coroutine[None, None, None]:
            stopping.append(asyncio.ensure_future(service.stop()))
            return self._learn()

        async def _learn(self) -> None:
            raise AssertionError("it never begins")

    service = Service(codec, {}, Slow())
    server = Server(codec, service)
    await server.start("127.0.0.1:0")
    client = await connect(server.address, Codec("client"), Silent())
    pending = asyncio.ensure_future(client.request(pb.Frame(read=pb.Read(glsn=1))))
    while not stopping:  # noqa: ASYNC110 - the service tells nobody
        await asyncio.sleep(0)
    await stopping[0]
    await server.stop()
    with pytest.raises(Unavailable):
        await pending
    gc.collect()


async def test_a_request_after_a_stop_is_dropped() -> None:
    codec = Codec("vsn")

    async def answer(connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        return pb.Frame(done=pb.Done())

    service = Service(codec, {"read": answer})
    server = Server(codec, service)
    await server.start("127.0.0.1:0")
    client = await connect(server.address, Codec("client"), Silent())
    await client.request(pb.Frame(read=pb.Read(glsn=1)))
    await service.stop()
    late = asyncio.ensure_future(client.request(pb.Frame(read=pb.Read(glsn=2))))
    await asyncio.sleep(0.01)
    await server.stop()
    with pytest.raises(Unavailable):
        await late
