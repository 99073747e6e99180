"""Connections: requests, errors, malformed input, versions, bounds. Real sockets on loopback."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from loomlog import limits
from loomlog.errors import (
    InvalidArgument,
    LoomError,
    NotFound,
    Timeout,
    Unauthorized,
    Unavailable,
    VersionMismatch,
)
from loomlog.net.address import join_address, split_address
from loomlog.net.endpoints import connect
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec, FrameWriter
from loomlog.wire.link import Connection, Server, Service


class Echo(Service):
    """Answers appends with the size of their payload; some kinds fail."""

    def __init__(self) -> None:
        self.closed: asyncio.Queue[LoomError] = asyncio.Queue()
        super().__init__(
            Codec("vsn"),
            {
                "append": self._append,
                "describe_log": self._describe,
                "list_logs": self._crash,
                "get_status": self._never,
            },
        )

    def _append(self, connection: Connection, frame: Any, payload: memoryview) -> None:
        answer = pb.Appended(first_glsn=len(payload), first_llsn=frame.append.log_stream_id)
        connection.send(pb.Frame(id=frame.id, reply=True, appended=answer))

    async def _describe(self, connection: Connection, frame: Any, payload: memoryview) -> Any:
        raise NotFound(f"no log {frame.describe_log.name}")

    async def _crash(self, connection: Connection, frame: Any, payload: memoryview) -> Any:
        raise ZeroDivisionError

    async def _never(self, connection: Connection, frame: Any, payload: memoryview) -> Any:
        await asyncio.Event().wait()

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        self.closed.put_nowait(error)


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Server, Echo]]:
    service = Echo()
    server = Server(Codec("vsn"), service)
    await server.start("127.0.0.1:0")
    yield server, service
    await server.stop()
    await service.stop()


async def client(server: Server) -> Connection:
    codec = Codec("client")
    return await connect(server.address, codec, Service(codec, {}))


def append(stream: int) -> pb.Frame:
    return pb.Frame(append=pb.Append(log_stream_id=stream))


async def test_requests_are_pipelined_and_matched(echo: tuple[Server, Echo]) -> None:
    connection = await client(echo[0])
    sizes = [0, 1, 64, 70_000, 3_000_000, 5]
    answers = await asyncio.gather(
        *(connection.request(append(i), [bytes(size)]) for i, size in enumerate(sizes))
    )
    assert [a.appended.first_glsn for a, _ in answers] == sizes
    assert [a.appended.first_llsn for a, _ in answers] == list(range(len(sizes)))
    connection.close()


async def test_errors_come_back_as_what_they_are(echo: tuple[Server, Echo]) -> None:
    connection = await client(echo[0])
    with pytest.raises(NotFound, match="no log nix"):
        await connection.request(pb.Frame(describe_log=pb.DescribeLog(name="nix")))
    with pytest.raises(InvalidArgument, match="does not take read"):
        await connection.request(pb.Frame(read=pb.Read()))
    with pytest.raises(LoomError, match="internal error"):
        await connection.request(pb.Frame(list_logs=pb.ListLogs()))
    assert (await connection.request(append(1)))[0].appended.first_llsn == 1  # still serves
    connection.close()


async def test_no_answer_in_time_is_a_timeout(echo: tuple[Server, Echo]) -> None:
    connection = await client(echo[0])
    with pytest.raises(Timeout, match="did not answer"):
        await connection.request(pb.Frame(get_status=pb.GetStatus()), timeout_s=0.01)
    connection.close()


async def test_who_ends_what_it_asked_hears_no_more_of_it(echo: tuple[Server, Echo]) -> None:
    connection = await client(echo[0])
    cancelled, ended = connection.request(append(1)), connection.request(append(2))
    cancelled.cancel()
    ended.set_exception(NotFound("somebody knows better"))
    assert (await connection.request(append(3)))[0].appended.first_llsn == 3  # as if not asked
    with pytest.raises(NotFound, match="knows better"):
        await ended
    connection.close()


async def test_open_requests_fail_when_the_connection_is_lost(echo: tuple[Server, Echo]) -> None:
    connection = await client(echo[0])
    waiting = asyncio.ensure_future(connection.request(pb.Frame(get_status=pb.GetStatus())))
    await connection.request(append(1))  # the server has seen the first one too
    await echo[0].stop()
    with pytest.raises(Unavailable, match="lost"):
        await waiting
    with pytest.raises(Unavailable):
        await connection.request(append(1))


async def test_malformed_bytes_close_that_connection_only(echo: tuple[Server, Echo]) -> None:
    server, service = echo
    good = await client(server)
    reader, writer = await asyncio.open_connection(*split_address(server.address))
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 4)
    await reader.read()  # until the server closes
    writer.close()
    assert "not a loomlog frame" in str(await service.closed.get())
    assert (await good.request(append(2)))[0].appended.first_llsn == 2
    good.close()


async def test_a_client_that_leaves_in_the_middle_of_a_frame(echo: tuple[Server, Echo]) -> None:
    server, service = echo
    _, writer = await asyncio.open_connection(*split_address(server.address))
    encode = FrameWriter().encode
    hello = b"".join(encode(Codec("client").greeting()))
    whole = b"".join(encode(append(1), [bytes(100_000)]))
    writer.write(hello + whole[:70_000])
    await writer.drain()
    writer.close()
    assert isinstance(await service.closed.get(), Unavailable)
    good = await client(server)
    assert (await good.request(append(3)))[0].appended.first_llsn == 3
    good.close()


async def test_another_protocol_version_is_refused_in_words(echo: tuple[Server, Echo]) -> None:
    server, _ = echo
    codec = Codec("client")
    codec._hello.protocol_version = codec._hello.oldest_version = 99
    connection = await connect(server.address, codec, Service(codec, {}))
    with pytest.raises(VersionMismatch, match="99"):  # the server said why and closed
        await connection.request(append(1))

    class Newer(Codec):
        def greeting(self) -> pb.Frame:
            frame = super().greeting()
            frame.hello.protocol_version = frame.hello.oldest_version = 98
            return frame

    newer = Server(Newer("vsn"), Service(Codec("vsn"), {}))
    await newer.start("127.0.0.1:0")
    with pytest.raises(VersionMismatch, match="same release"):
        await connect(newer.address, Codec("client"), Service(Codec("client"), {}))
    await newer.stop()


@pytest.mark.parametrize(
    ("oldest", "newest", "why"),
    [
        (2, 2, ""),
        (0, 2, ""),  # a release that did not say what else it speaks
        (2, 3, ""),  # a newer one that still speaks ours
        (1, 9, ""),
        (0, 1, r"speaks protocol version 1, this side version 2: upgrade the peer"),
        (0, 3, r"speaks protocol version 3, this side version 2: upgrade this side"),
        (3, 5, r"speaks protocol versions 3 to 5, this side version 2: upgrade this side"),
    ],
)
def test_peers_talk_if_there_is_a_version_that_both_speak(
    oldest: int, newest: int, why: str
) -> None:
    hello = pb.Hello(protocol_version=newest, oldest_version=oldest, role="vsn", software="x")
    if not why:
        assert Codec("client").check_greeting(pb.Frame(hello=hello)) == "vsn"
        return
    with pytest.raises(VersionMismatch, match=why):
        Codec("client").check_greeting(pb.Frame(hello=hello))


async def test_nobody_there_is_unavailable() -> None:
    codec = Codec("client")
    with pytest.raises(Unavailable, match="cannot reach"):
        await connect("127.0.0.1:1", codec, Service(codec, {}))


async def test_a_port_in_use_is_a_clear_error(echo: tuple[Server, Echo]) -> None:
    second = Server(Codec("vsn"), Service(Codec("vsn"), {}))
    address = echo[0].address
    with pytest.raises(InvalidArgument, match=f"on {address}: Address already in use; choose"):
        await second.start(address)


async def test_a_peer_that_does_not_read_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, echo: tuple[Server, Echo]
) -> None:
    monkeypatch.setattr(limits, "SEND_BUFFER_BYTES_MAX", 8 * limits.MIB)
    silent = socket.create_server(("127.0.0.1", 0))  # nobody accepts, nobody reads
    host, port = silent.getsockname()
    codec = Codec("client")
    service = Echo()
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: Connection(codec, service), host, port
    )
    for _ in range(200):
        connection.send(append(1), [bytes(limits.MIB)])
        if connection.closed:
            break
    assert connection.closed
    assert "too slowly" in str(await service.closed.get())
    silent.close()


async def test_idle_connections_cost_little_and_keep_nobody_waiting(
    echo: tuple[Server, Echo],
) -> None:
    """docs/security.md says how much; tests/bench/measure_idle_connections.py measures 10,000."""
    server, _ = echo
    connection = await client(server)
    hello = b"".join(FrameWriter().encode(Codec("client").greeting()))
    count, idle, loop = 200, [], asyncio.get_running_loop()
    tracemalloc.start()
    try:
        for _ in range(count):
            idle.append(peer := socket.socket())
            peer.setblocking(False)
            await loop.sock_connect(peer, split_address(server.address))
            await loop.sock_sendall(peer, hello)
        while len(server.connections) < count + 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / count < 14 * limits.KIB  # 12.02 with Python 3.13.0
    assert (await connection.request(append(1)))[0].appended.first_llsn == 1
    for each in idle:
        each.close()
    connection.close()


async def test_the_kernel_watches_for_hosts_that_vanish(echo: tuple[Server, Echo]) -> None:
    connection = await client(echo[0])
    assert connection._transport is not None
    own = connection._transport.get_extra_info("socket")
    assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    connection.close()


@pytest.mark.parametrize("text", ["nonsense", "host:", "host:http", "host:70000", ""])
def test_bad_addresses_say_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidArgument, match="host:port"):
        split_address(text)


def test_addresses_round_trip() -> None:
    for text in ("127.0.0.1:7400", "[::1]:7400"):
        assert join_address(*split_address(text)) == text


def test_metadata_repositories_of_two_clusters_do_not_decide_for_each_other() -> None:
    ours, theirs = Codec("vmr", cluster_id="a"), Codec("vmr", cluster_id="b")
    with pytest.raises(Unauthorized, match="serves cluster 'b', this side 'a'"):
        ours.check_greeting(theirs.greeting())
    assert Codec("client").check_greeting(theirs.greeting()) == "vmr"


class EndsItsOwnDial(Codec):
    """Cancels who connects at the very moment at which the server has greeted."""

    dial: asyncio.Task[Connection]

    def check_greeting(self, frame: pb.Frame) -> str:
        self.dial.cancel()
        return super().check_greeting(frame)


async def test_who_is_cancelled_while_greeted_leaves_no_connection_open(
    echo: tuple[Server, Echo],
) -> None:
    server, service = echo
    codec = EndsItsOwnDial("client")
    codec.dial = asyncio.ensure_future(connect(server.address, codec, Service(codec, {})))
    with pytest.raises(asyncio.CancelledError):
        await codec.dial
    async with asyncio.timeout(10):
        assert isinstance(await service.closed.get(), Unavailable)


async def test_who_waits_is_told_of_the_end_although_another_one_fails_to_take_it(
    echo: tuple[Server, Echo], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(reply: Any, payload: memoryview) -> None:
        raise ZeroDivisionError

    owner = Echo()
    connection = await connect(echo[0].address, Codec("client"), owner)
    connection.call(pb.Frame(get_status=pb.GetStatus()), (), fail)
    waiting = connection.request(pb.Frame(get_status=pb.GetStatus()))
    connection.abort(Unavailable("over"))
    with pytest.raises(Unavailable, match="over"):
        await waiting
    assert str(owner.closed.get_nowait()) == "over"
    assert any(record.exc_info for record in caplog.records)
