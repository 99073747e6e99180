"""Requests that are answered by plain callbacks. Real sockets on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from loomlog import limits
from loomlog.errors import LoomError, NotFound, Timeout, Unavailable
from loomlog.net.endpoints import connect
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, Server, Service

LONG_S = limits.REQUEST_TIMEOUT_S


class Slow(Service):
    """Refuses to describe logs; tells its status when it may."""

    def __init__(self) -> None:
        super().__init__(Codec("vsn"), {"describe_log": self._describe, "get_status": self._status})
        self.asked: asyncio.Queue[Frame] = asyncio.Queue()
        self.may_answer = asyncio.Event()

    async def _describe(self, connection: Connection, frame: Any, payload: memoryview) -> Any:
        raise NotFound("no such log")

    async def _status(self, connection: Connection, frame: Any, payload: memoryview) -> Any:
        self.asked.put_nowait(frame)
        await self.may_answer.wait()
        return pb.Frame(status=pb.Status(cluster_id="slow"))


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Slow, Connection]]:
    service = Slow()
    server = Server(Codec("vsn"), service)
    await server.start("127.0.0.1:0")
    try:
        codec = Codec("client")
        yield service, await connect(server.address, codec, Service(codec, {}))
    finally:
        await server.stop()
        await service.stop()


class Replies:
    def __init__(self) -> None:
        self.all: list[Any] = []
        self.came = asyncio.Event()

    def __call__(self, reply: Frame | LoomError, content: memoryview) -> None:
        self.all.append(reply)
        self.came.set()


def status() -> pb.Frame:
    return pb.Frame(get_status=pb.GetStatus())


async def test_a_call_is_answered_once() -> None:
    async with connected() as (service, connection):
        replies = Replies()
        call = connection.call(status(), (), replies, timeout_s=LONG_S)
        service.may_answer.set()
        await replies.came.wait()
        assert not connection.expects
        connection.forget(call)
        connection.close()
        assert [reply.status.cluster_id for reply in replies.all] == ["slow"]


async def test_an_error_is_an_answer() -> None:
    async with connected() as (_, connection):
        replies = Replies()
        asked = pb.Frame(describe_log=pb.DescribeLog(name="x"))
        connection.call(asked, (), replies, timeout_s=LONG_S)
        await replies.came.wait()
        assert [type(reply) for reply in replies.all] == [NotFound]


async def test_what_comes_too_late_is_not_heard() -> None:
    async with connected() as (service, connection):
        replies = Replies()
        connection.call(status(), (), replies, timeout_s=0.01)
        await replies.came.wait()
        service.may_answer.set()
        await connection.request(status())  # which is answered behind it
        assert [type(reply) for reply in replies.all] == [Timeout]


async def test_who_forgets_a_call_hears_nothing() -> None:
    async with connected() as (service, connection):
        replies = Replies()
        call = connection.call(status(), (), replies, timeout_s=30.0)
        await service.asked.get()
        connection.forget(call)
        service.may_answer.set()
        await connection.request(status())
        connection.close()
        assert replies.all == []


async def test_a_lost_connection_is_told() -> None:
    async with connected() as (service, connection):
        replies = Replies()
        connection.call(status(), (), replies, timeout_s=LONG_S)
        await service.asked.get()
        connection.abort(Unavailable("cut"))
        connection.call(status(), (), replies, timeout_s=LONG_S)
        while len(replies.all) < 2:
            replies.came.clear()
            await replies.came.wait()
        assert [str(reply) for reply in replies.all] == ["cut", "cut"]


async def test_no_timer_outlives_its_request() -> None:
    async with connected() as (service, connection):
        loop, replies = asyncio.get_running_loop(), Replies()
        timers: list[asyncio.TimerHandle] = []
        call_later = loop.call_later

        def noted(*arguments: Any, **options: Any) -> asyncio.TimerHandle:
            timers.append(call_later(*arguments, **options))
            return timers[-1]

        loop.call_later = noted  # type: ignore[assignment, method-assign]
        try:
            connection.call(status(), (), replies, timeout_s=LONG_S)  # answered
            forgotten = connection.call(status(), (), replies, timeout_s=LONG_S)
            service.may_answer.set()
            await replies.came.wait()
            connection.forget(forgotten)
            service.may_answer.clear()
            connection.call(status(), (), replies, timeout_s=LONG_S)  # lost
            connection.abort(Unavailable("cut"))
        finally:
            del loop.call_later
        assert len(timers) >= 3
        assert all(timer.cancelled() for timer in timers)
