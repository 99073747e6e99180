"""TLS between real sockets: who is let in, and what both sides are told if not."""

from __future__ import annotations

import asyncio
import gc
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any

import pytest
import uvloop

from loomlog import limits
from loomlog.core.principal import ANONYMOUS, Principal
from loomlog.errors import (
    InvalidArgument,
    LoomError,
    PermissionDenied,
    Unauthorized,
    Unavailable,
)
from loomlog.http import HttpServer
from loomlog.net import connection as connections
from loomlog.net.address import split_address
from loomlog.net.certificates import (
    create_authority,
    create_certificate,
    read_certificate,
    renew_certificate,
    retire_authorities,
    revoke_certificate,
    rotate_authority,
)
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


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("certs")
    create_authority(directory, CLUSTER)
    create_certificate(directory, NODE_3, ["127.0.0.1", "localhost"])
    create_certificate(directory, ALICE)
    return directory


class Service3(Service):
    """Answers get_bounds, and notes who asks."""

    def __init__(self) -> None:
        super().__init__(Codec("vsn"), {"get_bounds": self._bounds})
        self.asked: list[Principal] = []

    async def _bounds(self, connection: Connection, frame: Any, payload: memoryview) -> Any:
        self.asked.append(connection.principal)
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


async def ask_on(address: str, credentials: Credentials) -> None:
    """Ask again and again on one connection, until it fails."""
    connection = await dial(address, credentials)
    while True:
        await connection.request(pb.Frame(get_bounds=pb.GetBounds()))


def node_3(certs: Path) -> Credentials:
    return Credentials.of_server(str(certs), "node", 3, CLUSTER)


def alice(certs: Path) -> Credentials:
    return Credentials.of_client(str(certs / "client-alice.pem"))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@on_both_loops
async def test_each_side_knows_the_other(certs: Path) -> None:
    async with serving(node_3(certs)) as (server, service):
        connection = await dial(server.address, alice(certs))
        assert connection.principal == NODE_3
        await connection.request(pb.Frame(get_bounds=pb.GetBounds()))
        assert service.asked == [ALICE]
        connection.close()
        await connection.wait_closed()


@on_both_loops
async def test_large_frames_in_both_directions(certs: Path) -> None:
    class Echo(Service):
        def __init__(self) -> None:
            super().__init__(Codec("vsn"), {"append": self._append})

        def _append(self, connection: Connection, frame: Any, payload: memoryview) -> None:
            answer = pb.Frame(id=frame.id, reply=True, appended=pb.Appended())
            connection.send(answer, [payload])

    echo = Echo()
    server = Server(Codec("vsn", credentials=node_3(certs)), echo)
    await server.start("127.0.0.1:0")
    connection = await dial(server.address, alice(certs))
    for size in (0, 1, 16_383, 16_384, 1 << 20, 5_000_001):
        content = bytes(range(256)) * (size // 256 + 1)
        _, echoed = await connection.request(
            pb.Frame(append=pb.Append()), [memoryview(content)[:size]]
        )
        assert bytes(echoed) == content[:size]
    connection.close()
    await connection.wait_closed()
    await server.stop()
    await echo.stop()


@on_both_loops
async def test_who_has_no_certificate_needs_a_token(certs: Path, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes((certs / "ca.pem").read_bytes())
    nobody = Credentials.of_client(str(tmp_path))
    async with serving(node_3(certs)) as (server, service):
        with pytest.raises(Unauthorized, match="show a certificate of this cluster"):
            await ask(server.address, nobody)
        codec = Codec("client", credentials=nobody)
        codec._hello.token = "judged by who serves requests"
        connection = await connect(server.address, codec, Service(codec, {}), PATIENCE_S)
        await connection.request(pb.Frame(get_bounds=pb.GetBounds()))
        connection.close()
        await connection.wait_closed()
        assert service.asked == [ANONYMOUS]


# ---- who is refused


async def refused(
    server: Server, credentials: Credentials | None, caplog: pytest.LogCaptureFixture
) -> tuple[str, str]:
    """Return what the client is told and the first line that the server logs."""
    with pytest.raises((Unavailable, Unauthorized)) as caught:
        await ask(server.address, credentials)
    await until(lambda: bool(caplog.records))
    told, logged = str(caught.value), caplog.records[0].getMessage()
    assert "\n" not in told + logged
    return told, logged


@on_both_loops
async def test_another_authority(
    certs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create_authority(tmp_path, CLUSTER)
    create_certificate(tmp_path, ALICE)
    async with serving(node_3(certs)) as (server, _):
        told, logged = await refused(server, alice(tmp_path), caplog)
    assert "not signed by an authority in our ca.pem" in told
    assert "left in the TLS handshake" in logged


@on_both_loops
async def test_a_client_that_is_signed_by_another_authority(
    certs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create_authority(tmp_path, CLUSTER)
    create_certificate(tmp_path, ALICE)
    (tmp_path / "ca.pem").write_bytes((certs / "ca.pem").read_bytes())
    async with serving(node_3(certs)) as (server, service):
        told, logged = await refused(server, alice(tmp_path), caplog)
        assert not service.asked
    assert "refuses our certificate" in told or "refuses this side's certificate" in told
    assert "not signed by an authority in our ca.pem" in logged


@on_both_loops
async def test_an_expired_client(
    certs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("ca.pem", "ca.key"):
        (tmp_path / name).write_bytes((certs / name).read_bytes())
    create_certificate(tmp_path, ALICE, days=-1)
    async with serving(node_3(certs)) as (server, _):
        told, logged = await refused(server, alice(tmp_path), caplog)
    assert "expired" in logged
    assert "certificate" in told


@on_both_loops
async def test_an_expired_server(
    certs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("ca.pem", "ca.key"):
        (tmp_path / name).write_bytes((certs / name).read_bytes())
    create_certificate(tmp_path, NODE_3, ["127.0.0.1"], days=-1)
    async with serving(node_3(tmp_path)) as (server, _):
        told, logged = await refused(server, alice(certs), caplog)
    assert "expired" in told
    assert "if it does not trust" in logged


@on_both_loops
async def test_a_server_of_another_host(
    certs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("ca.pem", "ca.key"):
        (tmp_path / name).write_bytes((certs / name).read_bytes())
    create_certificate(tmp_path, NODE_3, ["10.0.0.3", "node3.example.org"])
    async with serving(node_3(tmp_path)) as (server, _):
        told, _ = await refused(server, alice(certs), caplog)
    assert "127.0.0.1" in told


@on_both_loops
async def test_a_client_cannot_play_a_server(
    certs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("ca.pem", "ca.key"):
        (tmp_path / name).write_bytes((certs / name).read_bytes())
    mallory = Principal("client", name="mallory", cluster=CLUSTER)
    file = create_certificate(tmp_path, mallory, ["127.0.0.1"])
    async with serving(Credentials(tmp_path / "ca.pem", file)) as (server, _):
        told, _ = await refused(server, alice(certs), caplog)
    assert "purpose" in told


@on_both_loops
async def test_a_certificate_of_another_cluster(
    certs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One authority may sign for several clusters."""
    for name in ("ca.pem", "ca.key"):
        (tmp_path / name).write_bytes((certs / name).read_bytes())
    create_certificate(tmp_path, Principal("client", name="alice", cluster="test"))
    async with serving(node_3(certs)) as (server, service):
        with pytest.raises((Unauthorized, Unavailable)) as caught:
            await ask(server.address, alice(tmp_path))
        assert not service.asked
    assert "cluster 'test'" in str(caught.value)


@on_both_loops
async def test_a_plain_client_and_a_tls_server(
    certs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(node_3(certs)) as (server, _):
        told, logged = await refused(server, None, caplog)
    assert "--tls" in told
    assert "does not speak TLS" in logged


@on_both_loops
async def test_a_tls_client_and_a_plain_server(
    certs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(None) as (server, _):
        told, logged = await refused(server, alice(certs), caplog)
    assert "does not speak TLS: connect without --tls" in told
    assert "speaks TLS" in logged


@on_both_loops
async def test_an_older_tls_is_refused(certs: Path, caplog: pytest.LogCaptureFixture) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certs / "ca.pem")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(node_3(certs)) as (server, _):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(*split_address(server.address), ssl=context)
        await until(lambda: bool(caplog.records))
    assert "TLS 1.3" in caplog.text


@on_both_loops
async def test_a_token_that_is_not_accepted_gets_no_further_than_the_greeting(
    certs: Path, tmp_path: Path
) -> None:
    """Any text can be sent as a token."""

    def admit(connection: Connection) -> None:
        if connection.principal is ANONYMOUS and connection.token != "good":
            raise PermissionDenied("no such token")

    (tmp_path / "ca.pem").write_bytes((certs / "ca.pem").read_bytes())
    nobody = Credentials.of_client(str(tmp_path))
    service = Service3()
    server = Server(Codec("vsn", credentials=node_3(certs)), service, admit)
    await server.start("127.0.0.1:0")
    for token, credentials in (("good", nobody), ("junk", alice(certs)), ("junk", nobody)):
        codec = Codec("client", credentials=credentials, token=token)
        connection = await connect(server.address, codec, Service(codec, {}), PATIENCE_S)
        if (token, credentials) == ("junk", nobody):
            await until(lambda: connection.closed)  # noqa: B023
            with pytest.raises(PermissionDenied, match="no such token"):
                await connection.request(pb.Frame(get_bounds=pb.GetBounds()))
        else:
            await connection.request(pb.Frame(get_bounds=pb.GetBounds()))
        connection.close()
        await connection.wait_closed()
    await until(lambda: not server._connections)
    assert service.asked == [ANONYMOUS, ALICE]
    await server.stop()
    await service.stop()


# ---- what a handshake may cost


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


# ---- files


@on_both_loops
async def test_renewed_files_are_used_without_a_restart(certs: Path, tmp_path: Path) -> None:
    create_authority(tmp_path, CLUSTER)
    own = create_certificate(tmp_path, NODE_3, ["127.0.0.1"])
    create_certificate(tmp_path, ALICE)
    async with serving(node_3(tmp_path)) as (server, service):
        client = alice(tmp_path)
        open_all_along = await dial(server.address, client)

        async def fingerprint() -> bytes:
            _, writer = await asyncio.open_connection(
                *split_address(server.address), ssl=alice(tmp_path).connecting()
            )
            shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.transport.abort()
            return shown

        before = await fingerprint()
        rotate_authority(tmp_path)
        with pytest.raises(InvalidArgument, match="loom certs renew"):
            retire_authorities(tmp_path)
        old = tmp_path / "old"
        old.mkdir()
        (old / "client-alice.pem").write_bytes((tmp_path / "client-alice.pem").read_bytes())
        (old / "client-alice.pem").chmod(0o600)
        (old / "ca.pem").write_bytes((tmp_path / "ca.pem").read_bytes())
        for file in (own, tmp_path / "client-alice.pem"):
            renew_certificate(tmp_path, read_certificate(file))
        assert await fingerprint() != before
        await ask(server.address, alice(old))  # the old authority is still trusted
        assert retire_authorities(tmp_path) == 1
        await ask(server.address, client)
        with pytest.raises(Unavailable):
            await ask(server.address, alice(old))
        await open_all_along.request(pb.Frame(get_bounds=pb.GetBounds()))
        open_all_along.close()
        await open_all_along.wait_closed()
        assert set(service.asked) == {ALICE}


@on_both_loops
async def test_a_revoked_certificate_is_refused_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create_authority(tmp_path, CLUSTER)
    create_certificate(tmp_path, NODE_3, ["127.0.0.1"])
    stolen = create_certificate(tmp_path, ALICE)
    async with serving(node_3(tmp_path)) as (server, service):
        await ask(server.address, alice(tmp_path))
        revoke_certificate(tmp_path, stolen)
        with pytest.raises((Unauthorized, Unavailable), match="was revoked"):
            await ask(server.address, alice(tmp_path))
        assert "the certificate was revoked" in caplog.text
        assert len(service.asked) == 1
        create_certificate(tmp_path, ALICE)
        await ask(server.address, alice(tmp_path))


@on_both_loops
async def test_damaged_files_leave_the_last_ones_in_use(
    certs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create_authority(tmp_path, CLUSTER)
    own = create_certificate(tmp_path, NODE_3, ["127.0.0.1"])
    create_certificate(tmp_path, ALICE)
    async with serving(node_3(tmp_path)) as (server, _):
        client = alice(tmp_path)
        good = own.read_bytes()
        own.write_bytes(good[:300])
        await ask(server.address, client)
        assert "still uses the certificates" in caplog.text
        own.write_bytes(good)
        await ask(server.address, client)
        own.unlink()
        await ask(server.address, client)


def test_files_that_cannot_be_used_are_refused_at_the_start(certs: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"node-4.pem.*loom certs"):
        Credentials.of_server(str(certs), "node", 4, CLUSTER)
    with pytest.raises(InvalidArgument, match="certificate of node 3"):
        Credentials.of_server(str(certs / "node-3.pem"), "node", 4, CLUSTER)
    with pytest.raises(InvalidArgument, match="in 'other'"):
        Credentials.of_server(str(certs), "node", 3, "other")
    for name in ("ca.pem", "node-3.pem"):
        (tmp_path / name).write_bytes((certs / name).read_bytes())
    (tmp_path / "node-3.pem").chmod(0o640)
    with pytest.raises(InvalidArgument, match="chmod 600"):
        Credentials.of_server(str(tmp_path), "node", 3, CLUSTER)


def test_a_directory_of_several_identities_names_them(certs: Path, tmp_path: Path) -> None:
    for name in ("client-alice.pem", "operator-carol.pem"):
        (tmp_path / name).write_bytes((certs / "client-alice.pem").read_bytes())
    with pytest.raises(InvalidArgument, match=r"client-alice.pem, operator-carol.pem"):
        Credentials.of_client(str(tmp_path))


def test_files_are_private(certs: Path) -> None:
    assert certs.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in certs.iterdir()} == {0o600}


# ---- HTTP


async def _get(address: str, path: str, context: ssl.SSLContext, authorization: str = "") -> bytes:
    reader, writer = await asyncio.open_connection(*split_address(address), ssl=context)
    more = f"Authorization: {authorization}\r\n" if authorization else ""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n".encode())
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    return answer


@on_both_loops
async def test_http_shows_more_to_those_with_a_certificate(certs: Path, tmp_path: Path) -> None:
    pages = {path: lambda: ("text/plain", b"there\n") for path in ("/healthz", "/metrics")}
    asked: list[tuple[Principal, str]] = []

    def permits(principal: Principal, token: str, where: str) -> bool:
        asked.append((principal, token))
        return token != "wrong"

    http = HttpServer(pages, node_3(certs), public=("/healthz",), permits=permits)
    await http.start("127.0.0.1:0")
    (tmp_path / "ca.pem").write_bytes((certs / "ca.pem").read_bytes())
    nobody = Credentials.of_client(str(tmp_path)).connecting()
    assert b" 200 " in await _get(http.address, "/healthz", nobody)
    assert b" 403 " in await _get(http.address, "/metrics", nobody)
    assert b" 200 " in await _get(http.address, "/metrics", alice(certs).connecting())
    for token, status in (("right", b" 200 "), ("wrong", b" 403 ")):
        assert status in await _get(http.address, "/metrics", nobody, f"bearer {token}")
    assert b" 403 " in await _get(http.address, "/metrics", nobody, "Basic cmlnaHQ=")
    assert asked == [(ALICE, ""), (ANONYMOUS, "right"), (ANONYMOUS, "wrong")]
    await http.stop()


@on_both_loops
async def test_an_open_connection_ends_with_its_certificate(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expired, revoked, or of an authority that was retired; others stay open."""
    monkeypatch.setattr(limits, "PING_S", 0.02)
    monkeypatch.setattr("loomlog.net.credentials.LOOK_S", 0.02)
    own = tmp_path / "own"
    create_authority(own, CLUSTER)
    create_certificate(own, NODE_3, ["127.0.0.1"])
    bob, carol = (Principal("client", name=name, cluster=CLUSTER) for name in ("bob", "carol"))
    files = [create_certificate(own, ALICE, days=1)]
    files += [create_certificate(own, each) for each in (bob, carol)]
    async with serving(node_3(own)) as (server, _):
        expiring, revoked, stays = [
            await dial(server.address, Credentials.of_client(str(file))) for file in files
        ]
        with monkeypatch.context() as patched:
            later_s = time.time() + 2 * 86_400
            patched.setattr(time, "time", lambda: later_s)
            await until(lambda: expiring.closed)
            await revoked.request(pb.Frame(get_bounds=pb.GetBounds()))
        again = await dial(server.address, Credentials.of_client(str(files[0])))
        revoke_certificate(own, files[1])
        await until(lambda: revoked.closed)
        await stays.request(pb.Frame(get_bounds=pb.GetBounds()))
        rotate_authority(own)
        create_certificate(own, NODE_3, ["127.0.0.1"])
        renewed = create_certificate(own, carol)
        carol_again = await dial(server.address, Credentials.of_client(str(renewed)))
        await again.request(pb.Frame(get_bounds=pb.GetBounds()))
        (own / "client-alice.pem").unlink()
        (own / "client-bob.pem").unlink()
        retire_authorities(own)
        await until(lambda: again.closed and stays.closed)
        await carol_again.request(pb.Frame(get_bounds=pb.GetBounds()))


@on_both_loops
async def test_what_was_recorded_on_the_way_is_worth_nothing_when_it_is_repeated(
    certs: Path,
) -> None:
    """Somebody on the network records a connection that asks, and sends the same bytes again."""
    async with serving(node_3(certs)) as (server, service):
        recorded: list[bytes] = []
        host, port = split_address(server.address)

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner_reader, inner_writer = await asyncio.open_connection(host, port)

            async def pump(
                source: asyncio.StreamReader, target: asyncio.StreamWriter, kept: list[bytes]
            ) -> None:
                while data := await source.read(1 << 16):
                    kept.append(data)
                    target.write(data)
                target.close()

            await asyncio.gather(
                pump(reader, inner_writer, recorded), pump(inner_reader, writer, [])
            )

        listening = await asyncio.start_server(relay, "127.0.0.1", 0)
        between = listening.sockets[0].getsockname()[1]
        await ask(f"127.0.0.1:{between}", alice(certs))
        assert len(service.asked) == 1
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"".join(recorded))
        async with asyncio.timeout(PATIENCE_S):
            while await reader.read(1 << 16):  # until the server hangs up
                pass
        writer.close()
        listening.close()
        assert len(service.asked) == 1
