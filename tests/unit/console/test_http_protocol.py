"""Connections of the console: what is no HTTP, peers that are slow or do nothing, and too many."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from poll import until

from loomlog.console import http_protocol
from loomlog.console.server import ConsoleServer

NOBODY = "127.0.0.1:1"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"  # half of it
BODY = b"token=a+b "
PATIENCE_S = 30.0


@pytest.fixture
async def console() -> AsyncIterator[ConsoleServer]:
    server = ConsoleServer(NOBODY, "127.0.0.1:0")
    await server.start()
    yield server
    await server.stop()


class Peer:
    """A connection to a console."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(PATIENCE_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        return int(head[0].split()[1]), dict(
            line.lower().split(": ", 1) for line in head[1:] if line
        )

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = await self.head()
        async with asyncio.timeout(PATIENCE_S):
            body = await self._reader.readexactly(int(headers["content-length"]))
        return status, headers, body

    async def error(self) -> tuple[int, dict[str, Any]]:
        status, headers, body = await self.answer()
        assert headers["content-type"] == "application/json"
        return status, json.loads(body)["error"]

    async def ended(self) -> bool:
        """Return whether the connection ends without another byte."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._reader.read(1) == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def connected(console: ConsoleServer) -> AsyncIterator[Peer]:
    host, _, port = console.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100) + b"\r\n\r\n",  # TLS
        b"GET / HTTP/1.1\r\nno header\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # without Host
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000,
        b"POST /v1/logs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
        b"POST /v1/logs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    ],
)
async def test_what_is_no_http_gets_an_error_in_json(console: ConsoleServer, data: bytes) -> None:
    async with connected(console) as peer:
        await peer.send(data)
        status, error = await peer.error()
        assert (status, error["kind"], error["outcome"]) == (
            400,
            "InvalidArgument",
            "nothing happened",
        )
        assert error["message"].startswith("this is no request of HTTP/1.1: ")
        assert await peer.ended()


async def test_a_broken_request_for_a_head_gets_no_body(console: ConsoleServer) -> None:
    wrong: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
    async with connected(console) as peer:
        await peer.send(b"HEAD / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert (await peer.head())[0] == 400
        assert await peer.ended()
    assert wrong == []


async def test_idle_connections_give_way_to_others(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "CONNECTIONS_MAX", 3)
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(connected(console)) for _ in range(3)]
        for peer in peers:
            await peer.send(GET)
            assert (await peer.answer())[0] == 200
        await peers[0].send(GET)  # it was the oldest
        assert (await peers[0].answer())[0] == 200
        for _ in range(2):
            last = await stack.enter_async_context(connected(console))
            await last.send(GET)
            assert (await last.answer())[0] == 200
        assert await peers[1].ended()
        assert await peers[2].ended()
        await peers[0].send(GET)
        assert (await peers[0].answer())[0] == 200


async def test_if_all_connections_are_in_use_a_further_one_is_refused(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "CONNECTIONS_MAX", 2)
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(connected(console)) for _ in range(2)]
        for peer in peers:
            await peer.send(POST)
        await until_busy(console, 2)
        last = await stack.enter_async_context(connected(console))
        await last.send(GET)
        status, headers, body = await last.answer()
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert json.loads(body)["error"]["kind"] == "Busy"
        assert await last.ended()
        await peers[0].send(BODY)
        assert (await peers[0].answer())[0] == 303
        assert len(console_connections(console)) == 2


def console_connections(console: ConsoleServer) -> set[Any]:
    assert console._server is not None
    return console._server.server_state.connections


async def until_busy(console: ConsoleServer, count: int) -> None:
    async def busy() -> int:
        return sum(not each._is_idle for each in console_connections(console))

    await until(busy, lambda found: found == count)


@pytest.mark.parametrize("data", [b"", GET[:20], GET + GET[:20]])
async def test_a_peer_that_does_not_finish_a_request_is_cut_off(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.1)
    async with connected(console) as peer:
        await peer.send(data)
        if data.startswith(GET):
            assert (await peer.answer())[0] == 200
        assert await peer.ended()


async def test_a_refused_body_cannot_go_on_for_ever(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.1)
    async with connected(console) as peer:
        await peer.send(POST.replace(b": 10", b": 100000000") + b"x" * 100_000)
        assert (await peer.error())[0] == 413
        await peer.send(b"x")
        assert await peer.ended()


async def test_a_request_may_take_longer_than_its_head(console: ConsoleServer) -> None:
    async with connected(console) as peer:
        await peer.send(POST)
        await until_busy(console, 1)
        [connection] = console_connections(console)
        assert connection._head_timer is None
        await peer.send(BODY)
        assert (await peer.answer())[0] == 303
        assert connection._head_timer is None


async def test_a_peer_that_does_not_read_is_cut_off(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "UNREAD_S", 0.1)
    host, _, port = console.address.rpartition(":")
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, (host, int(port)))
        asks = GET.replace(b"/healthz", b"/openapi.json") * 200  # some megabytes
        await asyncio.get_running_loop().sock_sendall(peer, asks)

        async def connections() -> int:
            return len(console_connections(console))

        await until(connections, lambda found: found == 0)


async def test_no_body_is_read_of_a_caller_whom_the_cluster_does_not_let_in(
    console: ConsoleServer,
) -> None:
    async with connected(console) as peer:
        await peer.send(
            b"POST /v1/logs/events/records HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 40000000\r\n\r\n"
        )
        status, error = await peer.error()
        assert (status, error["kind"]) == (503, "Unavailable")
