"""TLS handshakes and ends of connections are cheap and leak nothing."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tls_rig import (
    ALICE,
    CLUSTER,
    NODE_3,
    PATIENCE_S,
    Service3,
    alice,
    ask,
    dial,
    node_3,
    on_both_loops,
    serving,
    until,
)

from loomlog import limits
from loomlog.errors import LoomError, Unavailable
from loomlog.net import connection as connections
from loomlog.net.address import split_address
from loomlog.net.certificates import create_authority, create_certificate
from loomlog.net.credentials import Credentials
from loomlog.testing.ports import listen_on_free_port
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Server


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("certs")
    create_authority(directory, CLUSTER)
    create_certificate(directory, NODE_3, ["127.0.0.1", "localhost"])
    create_certificate(directory, ALICE)
    return directory


async def ask_on(address: str, credentials: Credentials) -> None:
    """Ask again and again on one connection, until it fails."""
    connection = await dial(address, credentials)
    while True:
        await connection.request(pb.Frame(get_bounds=pb.GetBounds()))


@on_both_loops
async def test_failed_handshakes_leave_nothing_behind(
    certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alive() -> int:
        gc.collect()
        return sum(isinstance(each, connections.Connection) for each in gc.get_objects())

    async with serving(node_3(certs)) as (server, _):
        before = alive()
        for _ in range(30):
            with pytest.raises(Unavailable):
                await ask(server.address, None)
        await until(lambda: alive() <= before)
        assert not server._connections
        await ask(server.address, alice(certs))


@asynccontextmanager
async def silent_peer() -> AsyncIterator[tuple[str, list[asyncio.Task[bytes]]]]:
    """Listen, and never answer; the tasks end when the other side has closed its connections."""
    ends: list[asyncio.Task[bytes]] = []

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(asyncio.create_task(reader.read()))
        await asyncio.gather(ends[-1], return_exceptions=True)
        writer.close()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", ends
    finally:
        server.close()


def left_to_the_collector() -> list[str]:
    """Return what nobody has closed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gc.collect()
    return [str(each.message) for each in caught]


@on_both_loops
async def test_a_connection_that_is_given_up_is_closed_whenever_that_is(certs: Path) -> None:
    """asyncio forgot it in the first turn of its handshake, and left it open."""
    async with silent_peer() as (address, ends):
        for turns in range(12):
            connecting = asyncio.create_task(dial(address, alice(certs)))
            for _ in range(turns):
                await asyncio.sleep(0)
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*ends, return_exceptions=True)
        await asyncio.sleep(0)
        assert not left_to_the_collector()


@contextmanager
def other_process(certs: Path) -> Iterator[int]:
    """Shake hands with everybody, without an event loop; yields the port."""
    context = node_3(certs).accepting()

    def serve() -> None:
        while True:
            with suppress(OSError):
                accepted, _ = listening.accept()
                if not listens:
                    return accepted.close()
                with context.wrap_socket(accepted, server_side=True) as peer:
                    while peer.recv(1 << 16):
                        pass

    listens = [True]
    with listen_on_free_port() as listening:
        port: int = listening.getsockname()[1]
        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield port
        finally:
            listens.clear()
            socket.create_connection(("127.0.0.1", port)).close()
            serving.join()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("when", ["begun", "shaken hands"])
def test_a_connection_that_is_given_up_is_closed_before_the_attempt_ends(
    certs: Path, when: str, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The loop may end then, as in a program that stops."""

    class GivenUp(connections.Connection[Any]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            if when == "begun":
                attempt[0].cancel()

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            attempt[0].cancel()

    async def give_up(port: int) -> None:
        attempt.append(asyncio.create_task(dial(f"127.0.0.1:{port}", alice(certs))))
        await asyncio.gather(*attempt, return_exceptions=True)
        assert attempt[0].cancelled()

    with other_process(certs) as port, pytest.MonkeyPatch.context() as patched:
        patched.setattr("loomlog.net.endpoints.Connection", GivenUp)
        attempt: list[asyncio.Task[Any]] = []
        loop = new_loop()
        complaints: list[Any] = []
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        loop.run_until_complete(give_up(port))
        loop.close()
        attempt.clear()
        assert not left_to_the_collector()
        assert not complaints


@on_both_loops
async def test_a_server_that_stops_closes_what_it_is_just_accepting(certs: Path) -> None:
    for turns in range(8):
        server = Server(Codec("vsn", credentials=node_3(certs)), Service3())
        await server.start("127.0.0.1:0")
        reader, writer = await asyncio.open_connection(*split_address(server.address))
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(reader.read(), return_exceptions=True)
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        assert not left_to_the_collector()


@on_both_loops
async def test_a_peer_that_leaves_while_it_is_not_read_from_is_let_go(certs: Path) -> None:
    """asyncio did not close a connection whose peer had left while reading was paused."""
    async with serving(node_3(certs)) as (server, _):
        peer = await dial(server.address, alice(certs))
        await until(lambda: bool(server.connections))
        (accepted,) = server.connections
        accepted.hold()
        accepted._pause()
        peer.abort(Unavailable("it is gone"))
        for _ in range(10):  # the other side sees it, too
            await asyncio.sleep(0)
        accepted.close()
        accepted.close()
        async with asyncio.timeout(PATIENCE_S):
            await accepted.wait_closed()


@on_both_loops
async def test_a_peer_has_to_shake_hands_in_time(
    certs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "GREETING_S", 0.1)
    async with serving(node_3(certs)) as (server, _):
        reader, writer = await asyncio.open_connection(*split_address(server.address))
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()
        await until(lambda: "handshake hung" in caplog.text)


@on_both_loops
async def test_of_too_many_handshakes_the_oldest_gives_way(
    certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNGREETED_MAX", 3)
    async with serving(node_3(certs)) as (server, _):
        silent = [await asyncio.open_connection(*split_address(server.address)) for _ in range(5)]
        await until(lambda: len(server._listener._handshakes) == 3)
        async with asyncio.timeout(PATIENCE_S):
            for reader, _ in silent[:2]:
                assert await reader.read() == b""
        await ask(server.address, alice(certs))
        for _, writer in silent:
            writer.close()


@on_both_loops
async def test_a_greeting_has_to_follow_the_handshake(
    certs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "GREETING_S", 0.3)
    async with serving(node_3(certs)) as (server, _):
        reader, writer = await asyncio.open_connection(
            *split_address(server.address), ssl=alice(certs).connecting()
        )
        async with asyncio.timeout(PATIENCE_S):
            await reader.read()
        writer.close()
        await until(lambda: "did not greet" in caplog.text)


@on_both_loops
async def test_a_tls_stream_that_is_cut_loses_this_connection_only(certs: Path) -> None:
    """A proxy cuts the stream after a number of bytes: in the handshake, or in a frame."""
    async with serving(node_3(certs)) as (server, _):
        for cut in (3, 100, 700, 1500, 2500, 3000):
            cutting = partial(_cut, address=server.address, count=cut)
            proxy = await asyncio.start_server(cutting, "127.0.0.1")
            host, port = proxy.sockets[0].getsockname()[:2]
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(LoomError):
                    await ask_on(f"{host}:{port}", alice(certs))
            proxy.close()
        await until(lambda: not server._connections)
        await ask(server.address, alice(certs))


async def _cut(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, count: int
) -> None:
    """Pass on `count` bytes of the client, and all of the server, then break both off."""
    from_server, to_server = await asyncio.open_connection(*split_address(address))

    async def back() -> None:
        while data := await from_server.read(1 << 16):
            writer.write(data)

    returning = asyncio.ensure_future(back())
    while count > 0 and (data := await reader.read(count)):
        to_server.write(data)
        count -= len(data)
    await to_server.drain()
    await asyncio.sleep(0.02)
    for each in (to_server, writer):
        each.transport.abort()
    await asyncio.gather(returning, return_exceptions=True)
