"""The HTTP server: its pages, and its robustness against any input."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Coroutine

import pytest

from loomlog import http as http_server
from loomlog.cli.console.command import run_async
from loomlog.errors import InvalidArgument, Unavailable
from loomlog.http import CONNECTIONS_MAX, REQUEST_BYTES_MAX, HttpServer


def _broken() -> tuple[str, bytes]:
    raise RuntimeError("on purpose")


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    server = HttpServer(
        {
            "/healthz": lambda: ("text/plain", b"ok\n"),
            "/status": lambda: ("application/json", b'{"rounds": 1}'),
            "/large": lambda: ("text/plain", bytes(1 << 20)),
            "/broken": _broken,
        }
    )
    await server.start("127.0.0.1:0")
    yield server
    await server.stop()


async def exchange(server: HttpServer, request: bytes) -> bytes:
    """Send, and read until the server closes."""
    host, port = server.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 5)
    finally:
        writer.close()


def get(path: str, *, method: str = "GET", headers: str = "Connection: close\r\n") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: here\r\n{headers}\r\n".encode()


async def test_a_known_path_is_answered_with_its_type_and_length(server: HttpServer) -> None:
    answer = await exchange(server, get("/status?pretty=1"))
    head, body = answer.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"application/json" in head
    assert b"content-length: 13" in head.lower()
    assert body == b'{"rounds": 1}'


def test_it_serves_on_uvloop_as_servers_do() -> None:
    async def story() -> bytes:
        server = HttpServer({"/healthz": lambda: ("text/plain", b"ok\n")})
        await server.start("127.0.0.1:0")
        answer = await exchange(server, get("/healthz"))
        await server.stop()
        return answer

    assert run_async(story()).endswith(b"ok\n")


async def test_head_has_no_body(server: HttpServer) -> None:
    answer = await exchange(server, get("/healthz", method="HEAD"))
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\n")


async def test_an_unknown_path_says_what_there_is(server: HttpServer) -> None:
    answer = await exchange(server, get("/nowhere"))
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"/healthz" in answer


async def test_other_methods_are_refused(server: HttpServer) -> None:
    answer = await exchange(server, get("/status", method="DELETE"))
    assert answer.startswith(b"HTTP/1.1 405")


async def test_a_page_that_fails_is_a_500_and_the_server_goes_on(server: HttpServer) -> None:
    assert (await exchange(server, get("/broken"))).startswith(b"HTTP/1.1 500")
    assert (await exchange(server, get("/healthz"))).startswith(b"HTTP/1.1 200")


async def test_requests_one_after_the_other_share_a_connection(server: HttpServer) -> None:
    answer = await exchange(server, get("/healthz", headers="") * 2 + get("/healthz"))
    assert answer.count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01 this is not HTTP\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"400"),  # no Host
        (b"GET /" + b"a" * (REQUEST_BYTES_MAX + 1) + b" HTTP/1.1\r\n", b"431"),
        (get("/healthz", headers=f"Content-Length: {REQUEST_BYTES_MAX + 1}\r\n"), b"413"),
    ],
)
async def test_what_is_malformed_or_too_large_is_refused_and_closed(
    server: HttpServer, request_bytes: bytes, status: bytes
) -> None:
    answer = await exchange(server, request_bytes)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert (await exchange(server, get("/healthz"))).startswith(b"HTTP/1.1 200")


async def test_a_client_that_leaves_in_the_middle_is_forgotten(server: HttpServer) -> None:
    host, port = server.address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /hea")
    await writer.drain()
    writer.transport.abort()
    assert (await exchange(server, get("/healthz"))).startswith(b"HTTP/1.1 200")


async def test_a_port_in_use_is_named(server: HttpServer) -> None:
    with pytest.raises(InvalidArgument, match=f"cannot listen on {server.address}"):
        await HttpServer({}).start(server.address)


async def test_stopping_closes_open_connections_and_the_port(server: HttpServer) -> None:
    host, port = server.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(get("/healthz", headers=""))
    await reader.readuntil(b"ok\n")
    await server.stop()
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))


async def test_connections_that_ask_for_nothing_keep_nobody_out(server: HttpServer) -> None:
    host, port = server.address.split(":")
    half_open = []
    for number in range(CONNECTIONS_MAX + 12):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /healthz HT" if number % 2 else b"")
        half_open.append((reader, writer))
    assert (await exchange(server, get("/healthz"))).endswith(b"ok\n")
    for _, writer in half_open:
        writer.close()


async def test_a_request_has_to_arrive_in_time(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.1)
    host, port = server.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /healthz HTTP/1.1\r\n")
    async with asyncio.timeout(10):
        try:
            assert await reader.read() == b""  # it was closed
        except ConnectionError:
            pass
    writer.close()


async def writes_until_it_fails(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


async def test_one_that_asks_again_and_again_and_does_not_read_is_cut_off(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "UNREAD_BYTES_MAX", 1000)
    host, port = server.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(get("/large", headers="") * 50)
    async with asyncio.timeout(20):
        with pytest.raises(ConnectionError):
            await writes_until_it_fails(writer)
    assert (await exchange(server, get("/healthz"))).endswith(b"ok\n")
    writer.close()


async def test_pages_that_take_a_while_are_sent_when_they_are_made() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> tuple[str, bytes]:
        begun.set()
        await go_on.wait()
        return "text/plain", b"slow\n"

    async def broken() -> tuple[str, bytes]:
        raise Unavailable("nobody leads")

    server = HttpServer(
        {"/slow": slow, "/broken": broken, "/quick": lambda: ("text/plain", b"quick\n")}
    )
    await server.start("127.0.0.1:0")
    requests = get("/slow", headers="") + get("/quick", headers="") + get("/broken")
    answer = asyncio.ensure_future(exchange(server, requests))
    await begun.wait()
    go_on.set()
    first, second, third = (await answer).split(b"HTTP/1.1 ")[1:]
    assert first.startswith(b"200")
    assert first.endswith(b"slow\n")
    assert second.endswith(b"quick\n")
    assert third.startswith(b"503")
    assert third.endswith(b"nobody leads\n")
    await server.stop()


async def test_a_client_that_leaves_ends_the_making_of_its_page() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow() -> tuple[str, bytes]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "text/plain", b""

    server = HttpServer({"/slow": slow})
    await server.start("127.0.0.1:0")
    host, port = server.address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(get("/slow"))
    await begun.wait()
    writer.transport.abort()
    async with asyncio.timeout(10):
        await ended.wait()
    await server.stop()


async def test_a_page_that_is_given_up_at_once_leaves_nothing_behind() -> None:
    async def slow() -> tuple[str, bytes]:
        raise AssertionError("it never begins")

    def page() -> Coroutine[None, None, tuple[str, bytes]]:
        [connection] = slow_server._connections
        connection.abort()
        return slow()

    slow_server = HttpServer({"/slow": page})
    await slow_server.start("127.0.0.1:0")
    assert await exchange(slow_server, get("/slow")) == b""
    await slow_server.stop()
    gc.collect()  # a coroutine that never began would warn
