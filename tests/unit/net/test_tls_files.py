"""Certificates that are renewed, revoked or expire while servers run; HTTP over TLS."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import pytest
from tls_rig import (
    ALICE,
    CLUSTER,
    NODE_3,
    PATIENCE_S,
    alice,
    ask,
    dial,
    node_3,
    on_both_loops,
    serving,
    until,
)

from loomlog import limits
from loomlog.core.principal import ANONYMOUS, Principal
from loomlog.errors import InvalidArgument, Unauthorized, Unavailable
from loomlog.http import HttpServer
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
from loomlog.wire import loomlog_pb2 as pb


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("certs")
    create_authority(directory, CLUSTER)
    create_certificate(directory, NODE_3, ["127.0.0.1", "localhost"])
    create_certificate(directory, ALICE)
    return directory


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


def test_a_server_does_not_start_with_what_has_expired(tmp_path: Path) -> None:
    create_authority(tmp_path, CLUSTER)
    create_certificate(tmp_path, NODE_3, ["127.0.0.1"], days=-1)
    with pytest.raises(
        InvalidArgument, match=r"node-3\.pem expired on .*: `loom certs renew node-3\.pem` renews"
    ):
        node_3(tmp_path)
    for name in ("ca.pem", "ca.key"):
        (tmp_path / name).unlink()
    create_authority(tmp_path, CLUSTER, days=-1)
    create_certificate(tmp_path, NODE_3, ["127.0.0.1"])
    with pytest.raises(InvalidArgument, match=r"ca\.pem expired on .*: `loom certs rotate` makes"):
        node_3(tmp_path)


def test_a_directory_of_several_identities_names_them(certs: Path, tmp_path: Path) -> None:
    for name in ("client-alice.pem", "operator-carol.pem"):
        (tmp_path / name).write_bytes((certs / "client-alice.pem").read_bytes())
    with pytest.raises(InvalidArgument, match=r"client-alice.pem, operator-carol.pem"):
        Credentials.of_client(str(tmp_path))


def test_files_are_private(certs: Path) -> None:
    assert certs.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in certs.iterdir()} == {0o600}


async def _get(address: str, path: str, context: ssl.SSLContext, authorization: str = "") -> bytes:
    reader, writer = await asyncio.open_connection(*split_address(address), ssl=context)
    more = f"Authorization: {authorization}\r\n" if authorization else ""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n".encode())
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    return answer


# ---- HTTP


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
async def test_an_open_connection_ends_when_its_server_can_make_no_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection began with a certificate that is valid for long, which was replaced by another
    one."""
    monkeypatch.setattr(limits, "PING_S", 0.02)
    monkeypatch.setattr("loomlog.net.credentials.LOOK_S", 0.02)
    create_authority(tmp_path, CLUSTER)
    create_certificate(tmp_path, NODE_3, ["127.0.0.1"])
    create_certificate(tmp_path, ALICE)
    async with serving(node_3(tmp_path)) as (server, _):
        connection = await dial(server.address, alice(tmp_path))
        create_certificate(tmp_path, NODE_3, ["127.0.0.1"], days=-1)
        await until(lambda: connection.closed)
        with pytest.raises(Unavailable, match="certificate has expired"):
            await dial(server.address, alice(tmp_path))
        create_certificate(tmp_path, NODE_3, ["127.0.0.1"])
        again = await dial(server.address, alice(tmp_path))
        await again.request(pb.Frame(get_bounds=pb.GetBounds()))


@on_both_loops
async def test_what_was_asked_of_a_peer_may_be_repeated_when_its_certificate_ends(
    certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer may have renewed it; without that, the next connection is refused."""
    async with serving(node_3(certs)) as (server, service):
        service.may_answer.clear()
        connection = await dial(server.address, alice(certs))
        waiting = connection.request(pb.Frame(get_bounds=pb.GetBounds()))
        await until(lambda: bool(service.asked))
        later_s = time.time() + 10_000 * 86_400
        monkeypatch.setattr(time, "time", lambda: later_s)
        connection.recheck()
        with pytest.raises(Unavailable, match="was closed: the certificate has expired"):
            await waiting


@on_both_loops
async def test_what_was_recorded_on_the_way_is_worth_nothing_when_it_is_repeated(
    certs: Path,
) -> None:
    """An attacker on the network records a connection that asks, and sends the same bytes again."""
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
