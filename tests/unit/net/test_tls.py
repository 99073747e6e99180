"""TLS between real sockets: accepted and refused peers, and the errors on both sides."""

from __future__ import annotations

import asyncio
import ssl
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
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

from loomlog.core.principal import ANONYMOUS, Principal
from loomlog.errors import InvalidArgument, PermissionDenied, Unauthorized, Unavailable
from loomlog.net import certificates
from loomlog.net.address import split_address
from loomlog.net.certificates import create_authority, create_certificate
from loomlog.net.credentials import Credentials
from loomlog.net.endpoints import connect
from loomlog.net.key_usage import has_extended_key_usage
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Server, Service


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("certs")
    create_authority(directory, CLUSTER)
    create_certificate(directory, NODE_3, ["127.0.0.1", "localhost"])
    create_certificate(directory, ALICE)
    return directory


@on_both_loops
async def test_each_side_knows_the_other(certs: Path) -> None:
    async with serving(node_3(certs)) as (server, service):
        connection = await dial(server.address, alice(certs))
        assert connection.principal == NODE_3
        await connection.request(pb.Frame(get_bounds=pb.GetBounds()))
        assert service.asked == [ALICE]
        connection.close()
        await connection.wait_closed()


def certified(certs: Path, directory: Path, holder: Principal, *uses: Any) -> Path:
    """Return the file of a certificate for these uses; with none, it lacks the extension."""
    key = ec.generate_private_key(ec.SECP256R1())
    authority, authority_key = (
        certificates._authorities(certs)[0],
        certificates._authority_key(certs),
    )
    hosts = [x509.IPAddress(ip_address("127.0.0.1"))]
    names = [x509.UniformResourceIdentifier(holder.uri), *hosts]
    builder = certificates._builder(
        x509.Name([]), authority.subject, key.public_key(), 1
    ).add_extension(x509.SubjectAlternativeName(names), critical=True)
    if uses:
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    signed = builder.sign(authority_key, hashes.SHA256())
    file = directory / f"{holder.kind}-{holder.number or holder.name}.pem"
    certificates._write(file, [certificates._key_pem(key), certificates._pem(signed)])
    (directory / "ca.pem").write_bytes((certs / "ca.pem").read_bytes())
    assert has_extended_key_usage(ssl.PEM_cert_to_DER_cert(certificates._pem(signed).decode())) == (
        bool(uses)
    )
    return file


@on_both_loops
async def test_a_client_certificate_says_that_it_is_one(certs: Path, tmp_path: Path) -> None:
    async with serving(node_3(certs)) as (server, service):
        for uses in ((), (ExtendedKeyUsageOID.SERVER_AUTH,)):
            file = certified(certs, tmp_path, ALICE, *uses)
            with pytest.raises((Unauthorized, Unavailable)):
                await ask(server.address, Credentials.of_client(str(file)))
        assert service.asked == []
        file = certified(certs, tmp_path, ALICE, ExtendedKeyUsageOID.CLIENT_AUTH)
        await ask(server.address, Credentials.of_client(str(file)))
        assert service.asked == [ALICE]


@on_both_loops
async def test_a_server_certificate_says_that_it_is_one(certs: Path, tmp_path: Path) -> None:
    for uses in ((), (ExtendedKeyUsageOID.CLIENT_AUTH,)):
        file = certified(certs, tmp_path, NODE_3, *uses)
        async with serving(Credentials(tmp_path / "ca.pem", file, CLUSTER)) as (server, service):
            with pytest.raises((Unauthorized, Unavailable)):
                await ask(server.address, alice(certs))
            assert service.asked == []


def test_a_server_does_not_start_with_a_certificate_that_is_no_servers(
    certs: Path, tmp_path: Path
) -> None:
    both = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)
    for uses in ((), both[:1], both[1:]):
        certified(certs, tmp_path, NODE_3, *uses)
        with pytest.raises(InvalidArgument, match="extended key usages serverAuth and clientAuth"):
            node_3(tmp_path)
    certified(certs, tmp_path, NODE_3, *both)
    assert node_3(tmp_path)


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
        whole = memoryview(content)[:size]
        for part in (size, 70_000, 1000):  # what is joined, and what is written as it is
            parts = [whole[at : at + part] for at in range(0, size, part or 1)]
            _, echoed = await connection.request(pb.Frame(append=pb.Append()), parts)
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


async def refused(
    server: Server, credentials: Credentials | None, caplog: pytest.LogCaptureFixture
) -> tuple[str, str]:
    """Return the error of the client and the first line that the server logs."""
    with pytest.raises((Unavailable, Unauthorized)) as caught:
        await ask(server.address, credentials)
    await until(lambda: bool(caplog.records))
    told, logged = str(caught.value), caplog.records[0].getMessage()
    assert "\n" not in told + logged
    return told, logged


# ---- who is refused


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
    assert "its certificate has expired" in logged
    for text in (told, logged):
        assert "`loom certs renew` renews it" in text


@on_both_loops
async def test_an_expired_server(
    certs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("ca.pem", "ca.key"):
        (tmp_path / name).write_bytes((certs / name).read_bytes())
    expired = create_certificate(tmp_path, NODE_3, ["127.0.0.1"], days=-1)
    async with serving(Credentials(tmp_path / "ca.pem", expired, CLUSTER)) as (server, _):
        told, logged = await refused(server, alice(certs), caplog)
    assert "its certificate has expired" in told
    assert "`loom certs renew` renews it" in told
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
