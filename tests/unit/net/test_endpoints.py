"""Peers that say nothing, too much or nonsense cost a server little, and only themselves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from poll import until

from loomlog import limits
from loomlog.errors import LoomError, Timeout, Unavailable
from loomlog.net import endpoints, liveness
from loomlog.net.address import split_address
from loomlog.net.endpoints import connect
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec, FrameWriter
from loomlog.wire.link import Connection, Server, Service

PATIENCE_S = 20.0


class Answers(Service):
    """Answers get_bounds; list_logs is answered by nobody, and get_status breaks."""

    def __init__(self) -> None:
        super().__init__(
            Codec("vsn"),
            {"get_bounds": self._bounds, "list_logs": self._never, "get_status": self._break},
        )
        self.closed: asyncio.Queue[LoomError] = asyncio.Queue()

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        self.closed.put_nowait(error)

    async def _bounds(self, connection: Connection, frame: Any, payload: memoryview) -> Any:
        return pb.Frame(bounds=pb.Bounds())

    async def _never(self, connection: Connection, frame: Any, payload: memoryview) -> Any:
        await asyncio.Event().wait()

    def _break(self, connection: Connection, frame: Any, payload: memoryview) -> Any:
        return [][1]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    service = Answers()
    server = Server(Codec("vsn"), service)
    await server.start("127.0.0.1:0")
    yield server
    await server.stop()
    await service.stop()


async def client(address: str) -> Connection:
    codec = Codec("client")
    return await connect(address, codec, Service(codec, {}))


async def raw(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*split_address(server.address))


async def closed(reader: asyncio.StreamReader) -> None:
    """Wait until the server has closed the connection."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            while await reader.read(1 << 16):
                pass
        except ConnectionError:
            pass


async def serves(server: Server) -> None:
    connection = await client(server.address)
    await connection.request(pb.Frame(get_bounds=pb.GetBounds()))
    connection.close()


async def test_a_peer_has_to_greet_in_time(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "GREETING_S", 0.05)
    silent, writer = await raw(server)
    await closed(silent)
    writer.close()
    assert "did not greet" in caplog.text
    await serves(server)


async def test_a_greeting_that_never_ends_is_cut_off(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GREETING_S", 0.2)
    reader, writer = await raw(server)
    hello = b"".join(FrameWriter().encode(Codec("client").greeting()))
    writer.write(hello[:-1])
    await closed(reader)
    writer.close()


async def test_of_too_many_that_do_not_greet_the_oldest_gives_way(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNGREETED_MAX", 3)
    silent = [await raw(server) for _ in range(5)]
    for reader, _ in silent[:2]:
        await closed(reader)
    await serves(server)
    for _, writer in silent:
        writer.close()


async def test_connections_are_refused_before_the_files_run_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(endpoints, "_connections_max", lambda: 2)
    service = Answers()
    server = Server(Codec("vsn"), service)
    await server.start("127.0.0.1:0")
    kept = [await client(server.address) for _ in range(2)]
    with pytest.raises(Unavailable):
        await client(server.address)
    assert "ulimit -n" in caplog.text
    kept.pop().close()
    await asyncio.wait_for(service.closed.get(), PATIENCE_S)
    await serves(server)
    kept.pop().close()
    await server.stop()


async def test_damage_is_logged_once_and_counted(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        reader, writer = await raw(server)
        writer.write(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n")
        await closed(reader)
        writer.close()
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "not a loomlog frame" in lines[0].getMessage()
    await serves(server)


async def test_what_breaks_a_handler_is_logged_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await client(server.address)
    for _ in range(20):
        with pytest.raises(LoomError, match="internal error"):
            await connection.request(pb.Frame(get_status=pb.GetStatus()))
    assert len([record for record in caplog.records if record.exc_info]) == 1
    connection.close()


# ---- peers that do not hear


@pytest.mark.parametrize("turns", range(5))
async def test_who_connects_just_before_a_stop_is_disconnected(server: Server, turns: int) -> None:
    with socket.create_connection(split_address(server.address)) as peer:
        peer.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionResetError):
                while await asyncio.get_running_loop().sock_recv(peer, 1 << 16):
                    pass


class DeafServer(asyncio.Protocol):
    """Greets, then reads everything and sends nothing, or only one-way frames."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        encode = FrameWriter().encode
        transport.write(b"".join(encode(Codec("vsn").greeting())))


async def deaf_server(factory: Callable[[], asyncio.Protocol]) -> tuple[Any, str]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(factory, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    return server, f"{host}:{port}"


async def test_a_peer_that_does_not_hear_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PING_S", 0.01)
    server, address = await deaf_server(DeafServer)
    connection = await client(address)
    with pytest.raises(Unavailable, match="does not answer") as caught:
        await connection.request(pb.Frame(get_bounds=pb.GetBounds()), timeout_s=PATIENCE_S)
    assert not isinstance(caught.value, Timeout)
    server.close()


async def test_one_way_frames_that_nobody_hears_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PING_S", 0.01)
    server, address = await deaf_server(DeafServer)
    owner = Answers()
    connection = await connect(address, Codec("client"), owner)
    connection.send(pb.Frame(replicate=pb.Replicate()))
    error = await asyncio.wait_for(owner.closed.get(), PATIENCE_S)
    assert "does not answer" in str(error)
    server.close()


async def test_a_peer_that_hears_and_is_slow_is_waited_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PING_S", 0.005)
    connection = await client(server.address)
    with pytest.raises(Timeout):
        await connection.request(pb.Frame(list_logs=pb.ListLogs()), timeout_s=0.5)
    await connection.request(pb.Frame(get_bounds=pb.GetBounds()))
    connection.close()


async def test_all_connections_of_a_loop_wait_for_one_timer(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PING_S", 0.005)
    monkeypatch.setattr(liveness, "_AT_ONCE", 2)
    looked: dict[liveness.Pinger[Any], None] = {}
    look = liveness.Pinger.look

    def note(pinger: liveness.Pinger[Any]) -> None:
        looked[pinger] = None
        look(pinger)

    monkeypatch.setattr(liveness.Pinger, "look", note)
    connections = [await client(server.address) for _ in range(5)]
    rounds = liveness._rounds[asyncio.get_running_loop()]
    while not {connection._pinger for connection in connections} <= looked.keys():
        await connections[0].request(pb.Frame(get_bounds=pb.GetBounds()))
    assert rounds._timer is not None
    for connection in connections:
        connection.close()
    assert not rounds.pingers.keys() & {connection._pinger for connection in connections}


async def test_who_expects_nothing_does_not_ping(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PING_S", 0.01)
    quiet, address = await deaf_server(DeafServer)
    connection = await client(address)
    await asyncio.sleep(0.3)
    assert not connection.closed
    connection.close()
    quiet.close()


async def test_a_ping_that_was_answered_is_followed_by_no_other(server: Server) -> None:
    connection = await client(server.address)
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    connection.ping(lambda answer, payload: answered.set_result(None))
    assert connection.expects
    await answered
    assert not connection.said
    assert not connection.expects
    connection.close()


# ---- memory


async def partly_sent(server: Server, role: str, mib: int) -> asyncio.StreamWriter:
    """Greet, and send a part of a frame that never ends."""
    _, writer = await raw(server)
    frames = FrameWriter()
    writer.write(b"".join(frames.encode(Codec(role).greeting())))
    whole = b"".join(frames.encode(pb.Frame(get_bounds=pb.GetBounds()), [bytes(20 * limits.MIB)]))
    writer.write(whole[: mib * limits.MIB])
    await writer.drain()
    return writer


async def test_clients_that_hold_too_much_together_are_cut_the_largest_first(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "PING_S", 0.02)
    sound = await client(server.address)
    writers = [await partly_sent(server, "vsn", 19)]  # servers of the cluster are not limited
    writers += [await partly_sent(server, "client", mib) for mib in (2, 3, 9)]
    await until(lambda: sum(each.held_bytes for each in server.connections) >= 33 * limits.MIB)
    peers = server.connections
    monkeypatch.setattr(limits, "CLIENTS_BYTES_MAX", 12 * limits.MIB)
    await until(lambda: "too much" in caplog.text)
    await until(lambda: len(server.connections) == 4)
    [cut] = [each for each in peers if each.closed]
    assert cut.held_bytes < 8 * limits.KIB, "what it held is free before it is garbage"
    held = sorted(each.held_bytes // limits.MIB for each in server.connections)
    assert held[-1] >= 19
    assert held[-2] < 9
    await sound.request(pb.Frame(get_bounds=pb.GetBounds()))
    sound.close()
    for writer in writers:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_an_idle_connection_gives_its_buffer_back(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PING_S", 0.02)
    connection = await client(server.address)
    [accepted] = server.connections
    for size in (limits.MIB, 100, 5 * limits.MIB):
        await connection.request(pb.Frame(get_bounds=pb.GetBounds()), [bytes(size)])
        await until(lambda: accepted.held_bytes < 8 * limits.KIB)
    connection.close()
