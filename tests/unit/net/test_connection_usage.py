"""A connection counts its requests against the limits of its peer's identity until it answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from loomlog.core.usage import Usage
from loomlog.errors import Busy, LoomError
from loomlog.limits import IdentityLimits
from loomlog.net.endpoints import connect
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Server, Service


class Limited(Service):
    """Counts every request, and answers those about streams when the test lets it."""

    is_on = True

    def __init__(self) -> None:
        self.usage = Usage("client alice", IdentityLimits(requests=2), Counter())
        self.pending: list[tuple[Connection, int]] = []
        self.closed = asyncio.Event()
        super().__init__(Codec("vsn"), {"append": self._append}, self)

    def check(self, connection: Any, kind: str, frame: Any, payload: memoryview) -> None:
        connection.usage = self.usage
        connection.count(frame.id, len(payload))

    def _append(self, connection: Connection, frame: Any, payload: memoryview) -> None:
        self.pending.append((connection, frame.id))

    def answer(self) -> None:
        connection, request_id = self.pending.pop(0)
        connection.send(pb.Frame(id=request_id, reply=True, appended=pb.Appended()))

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        self.closed.set()


async def test_requests_count_until_they_are_answered_or_their_connection_is_closed() -> None:
    service, codec = Limited(), Codec("client")
    server = Server(Codec("vsn"), service)
    await server.start("127.0.0.1:0")
    connection = await connect(server.address, codec, Service(codec, {}))
    first, second = (connection.request(pb.Frame(append=pb.Append()), [b"12345"]) for _ in "ab")
    with pytest.raises(Busy, match="client alice has 2 requests"):
        await connection.request(pb.Frame(append=pb.Append()))
    assert (service.usage.requests, service.usage.bytes) == (2, 10)
    service.answer()
    await first
    assert (service.usage.requests, service.usage.bytes) == (1, 5)
    connection.close()
    with pytest.raises(LoomError):
        await second
    await service.closed.wait()
    service.answer()  # too late: nobody gets it, and it is not counted again
    assert (service.usage.requests, service.usage.bytes) == (0, 0)
    await server.stop()


async def test_a_request_needs_an_id_of_its_own() -> None:
    service, codec = Limited(), Codec("client")
    server = Server(Codec("vsn"), service)
    await server.start("127.0.0.1:0")
    connection = await connect(server.address, codec, Service(codec, {}))
    answer = connection.request(pb.Frame(append=pb.Append()))
    connection.send(pb.Frame(id=1, append=pb.Append()))  # the id of the first
    with pytest.raises(LoomError, match="needs an id that no other one has"):
        await answer
    connection.close()
    await service.closed.wait()
    assert service.usage.requests == 0
    await server.stop()
