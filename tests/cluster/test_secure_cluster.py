"""A cluster with TLS: the commands of docs/security.md work, and intruders are refused."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli_rig import Loom, environment, program

import loomlog
from loomlog.config import NodeSettings
from loomlog.core.permissions import Grant
from loomlog.core.principal import Kind, Principal
from loomlog.errors import InvalidArgument, PermissionDenied, Unauthorized, Unavailable
from loomlog.net.certificates import (
    create_authority,
    create_certificate,
    list_certificates,
    renew_certificate,
    retire_authorities,
    rotate_authority,
)
from loomlog.net.credentials import Credentials
from loomlog.net.endpoints import connect
from loomlog.node import StorageNode
from loomlog.testing.ports import listen_on_free_port
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, OnlyAnswers
from loomlog.wire.permissions import RULES, Rule

PAGE = Path(__file__).parents[2] / "docs/security.md"
CLUSTER = "prod"
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Secure:
    """The cluster of docs/security.md."""

    address: str
    certs: Path
    said: str  # by the documented lines

    def credentials(self, name: str) -> Credentials:
        return Credentials.of_client(str(self.certs / name))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    directory: Path = tmp_path_factory.mktemp("secure")
    with listen_on_free_port() as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    (lines,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert lines.count("\n") == 10, "a path of ten lines"
    commands = directory / "bin"
    commands.mkdir()
    for name in ("loom", "vmr", "vsn"):
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec {" ".join(program(name))} "$@"\n')
        script.chmod(0o700)
    story = f"set -e\n{lines.replace('127.0.0.1:7400', address)}\necho ready\nread -r _ || true\n"
    stderr = (directory / "stderr").open("w")
    shell = subprocess.Popen(
        ["bash", "-c", f"{story}\nkill $(jobs -p); wait || true"],
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=environment(PATH=f"{commands}{os.pathsep}{os.environ['PATH']}"),
    )
    with stderr, shell:
        assert shell.stdout is not None
        said = ""
        for line in shell.stdout:
            if line == "ready\n":
                break
            said += line
        else:
            raise AssertionError((directory / "stderr").read_text())
        try:
            yield Secure(address, directory / "certs", said)
        finally:
            shell.communicate("\n", timeout=PATIENCE_S)


def test_ten_lines_make_a_secure_cluster(secure: Secure) -> None:
    assert "first order\n" in secure.said


async def test_authorities_are_exchanged_under_load(secure: Secure) -> None:
    """No append fails, with new connections all the time, while each file is replaced."""
    steps: list[Callable[[], object]] = [
        lambda: rotate_authority(secure.certs),
        *(_renewal(secure.certs, name) for name in ("metadata-1", "node-1", "node-2", "node-3")),
        _renewal(secure.certs, "operator-admin"),
        lambda: retire_authorities(secure.certs),
    ]
    appended = 0
    async with await loomlog.connect(secure.address, tls=str(secure.certs)) as steady:
        log = steady.log("orders")
        before = await log.tail()
        for step in steps:
            step()
            for _ in range(3):
                async with await loomlog.connect(secure.address, tls=str(secure.certs)) as fresh:
                    await asyncio.gather(fresh.log("orders").append(b"fresh"), log.append(b"old"))
                    appended += 2
        assert await log.tail() == before + appended
    assert len({each.issuer for each in list_certificates(secure.certs)}) == 1


def _renewal(certs: Path, name: str) -> Callable[[], object]:
    def renew() -> None:
        (found,) = (each for each in list_certificates(certs) if each.file.stem == name)
        renew_certificate(certs, found)

    return renew


# ---- who is told what


def test_a_plain_client_is_told_what_to_do(secure: Secure) -> None:
    assert "--tls" in Loom(secure.address).fails("status")


def test_a_client_of_another_authority_is_told_why(secure: Secure, tmp_path: Path) -> None:
    create_authority(tmp_path / "other", CLUSTER)
    create_certificate(tmp_path / "other", Principal("client", name="eve", cluster=CLUSTER))
    error = Loom(secure.address).fails("--tls", str(tmp_path / "other"), "status")
    assert "not signed by an authority in our ca.pem" in error


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("vsn", ["--storage-node-id", "1", "--volumes", ".", "--mr", "10.0.0.1:7400"]),
        ("vmr", ["--data", "vmr"]),
    ],
)
def test_servers_do_not_serve_networks_without_tls(
    name: str, arguments: list[str], tmp_path: Path
) -> None:
    command = program(name, "start", "--cluster-id", "x", "--listen", "0.0.0.0:0", *arguments)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert re.fullmatch(
        rf"{name}: 0\.0\.0\.0:0 is on a network, .*--tls.*--insecure.*\n", done.stderr
    )


# ---- who tries to be somebody else


def made(secure: Secure, kind: Kind, **names: object) -> str:
    """Make a certificate, and return the name of its file."""
    holder = Principal(kind, cluster=CLUSTER, **names)  # type: ignore[arg-type]
    return create_certificate(secure.certs, holder, ["127.0.0.1"]).name


@asynccontextmanager
async def dialled(secure: Secure, address: str, file: str) -> AsyncIterator[Connection]:
    codec = Codec("vsn", cluster_id=CLUSTER, credentials=secure.credentials(file))
    connection = await connect(address, codec, OnlyAnswers())
    try:
        yield connection
    finally:
        connection.close()
        await connection.wait_closed()


async def node_addresses(secure: Secure) -> dict[int, str]:
    file = secure.certs / "operator-admin.pem"
    async with await loomlog.connect(secure.address, tls=str(file)) as cluster:
        return {node.id: node.address for node in (await cluster.status()).nodes}


async def test_only_node_3_registers_as_node_3(secure: Secure) -> None:
    register = pb.Register(storage_node_id=3, cluster_id=CLUSTER, node_secret="x", address="a:1")
    for file in ("node-2.pem", "metadata-1.pem", made(secure, "client", name="mallory")):
        async with dialled(secure, secure.address, file) as connection:
            with pytest.raises((Unauthorized, PermissionDenied), match="certificate"):
                await connection.request(pb.Frame(register=register))


def servers_only() -> list[tuple[str, Rule]]:
    return [
        (kind, rule)
        for kind, rule in RULES.items()
        if isinstance(rule, Rule) and rule.servers and not rule.verbs
    ]


async def test_a_client_cannot_send_what_servers_send(secure: Secure) -> None:
    file = made(secure, "client", name="mallory")
    kinds = [kind for kind, _ in servers_only()]
    assert {"register", "report", "replicate", "sync_batches", "leader_beat", "round_append"} <= {
        *kinds
    }
    for address in (secure.address, *(await node_addresses(secure)).values()):
        async with dialled(secure, address, file) as connection:
            for kind in kinds:
                frame = pb.Frame()
                getattr(frame, kind).SetInParent()
                with pytest.raises(PermissionDenied, match="client mallory may not send this"):
                    await connection.request(frame)
            store = pb.CopysetRequest(kind=pb.CopysetRequest.STORE, loglet_id=1)
            with pytest.raises(PermissionDenied):
                await connection.request(pb.Frame(copyset_request=store))


async def test_a_node_cannot_lead_or_announce_a_leader(secure: Secure) -> None:
    beat = pb.LeaderBeat(epoch=1 << 40, leader=1, address="127.0.0.1:1")
    address = (await node_addresses(secure))[1]
    async with dialled(secure, address, "node-2.pem") as connection:
        with pytest.raises(PermissionDenied):
            await connection.request(pb.Frame(leader_beat=beat))


async def test_only_the_primary_of_a_stream_replicates_it(secure: Secure) -> None:
    async with await loomlog.connect(
        secure.address, tls=f"{secure.certs}/operator-admin.pem"
    ) as cluster:
        await cluster.log("orders").append(b"it runs")
        stream = (await cluster.log("orders").describe()).streams[0]
    _, victim, other = stream.replicas
    opening = pb.OpenReplication(log_stream_id=stream.id, seal_epoch=stream.epoch, next_llsn=1)
    async with dialled(secure, victim.address, f"node-{other.node}.pem") as connection:
        with pytest.raises(InvalidArgument, match="continues at LLSN") as error:
            await connection.request(pb.Frame(open_replication=opening))
        opening.next_llsn = int(re.findall(r"at LLSN (\d+)", str(error.value))[0])
        with pytest.raises(
            Unauthorized, match=r"needs the certificate of node \d, not that of node"
        ):
            await connection.request(pb.Frame(open_replication=opening))


@pytest.mark.parametrize("what", ["another authority", "another role"])
async def test_a_node_turns_only_to_metadata_repositories_of_its_authority(
    secure: Secure, what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Start one more node: with a certificate of another authority, or with the address of a
    storage node instead of a metadata repository."""
    caplog.set_level(logging.WARNING)
    certs, metadata = secure.certs, (await node_addresses(secure))[1]
    expected = r"needs the certificate of a metadata, not that of node 1"
    if what == "another authority":
        certs, metadata = tmp_path / "other", secure.address
        create_authority(certs, CLUSTER)
        expected = r"no TLS with .*not signed by an authority in our ca.pem"
    create_certificate(certs, Principal("node", number=9, cluster=CLUSTER), ["127.0.0.1"])
    (tmp_path / "volume").mkdir()
    node = StorageNode(
        NodeSettings(
            node_id=9,
            cluster_id=CLUSTER,
            volumes=(str(tmp_path / "volume"),),
            metadata=(metadata,),
            tls=str(certs),
        )
    )
    await node.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not re.search(expected, caplog.text):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        await node.stop()


async def test_who_has_no_certificate_gets_nothing(secure: Secure, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes((secure.certs / "ca.pem").read_bytes())
    async with await loomlog.connect(secure.address, tls=str(tmp_path)) as cluster:
        with pytest.raises((Unauthorized, Unavailable)):
            await cluster.status()


def test_a_server_needs_the_certificate_of_its_number(secure: Secure, tmp_path: Path) -> None:
    settings = NodeSettings(
        node_id=3,
        cluster_id=CLUSTER,
        volumes=(str(tmp_path),),
        metadata=(secure.address,),
        tls=str(secure.certs / "node-2.pem"),
    )
    with pytest.raises(InvalidArgument, match="is the certificate of node 2"):
        StorageNode(settings)


def test_the_error_of_a_refused_server_is_one_line(secure: Secure, tmp_path: Path) -> None:
    command = program(
        *("vsn", "start", "--cluster-id", CLUSTER, "--storage-node-id", "7"),
        *("--volumes", str(tmp_path), "--mr", secure.address, "--listen", "127.0.0.1:0"),
        *("--tls", str(secure.certs)),
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert re.search(r"^vsn: cannot read .*node-7.pem: .*`loom certs` makes it$", done.stderr, re.M)


def test_it_shows_up_in_doctor_when_a_certificate_expires_soon(secure: Secure) -> None:
    (found,) = (each for each in list_certificates(secure.certs) if each.file.stem == "node-2")
    renew_certificate(secure.certs, found, days=12)
    try:
        tls = str(secure.certs / "operator-admin.pem")
        findings = Loom(secure.address).json("--tls", tls, "doctor")["findings"]
        (soon,) = (each for each in findings if each["check"] == "certificate")
        assert (soon["result"], soon["subject"]) == ("warning", "node 2")
        assert "in 12 days" in soon["text"]
    finally:
        renew_certificate(secure.certs, found)


# ---- permissions


async def test_certificates_and_tokens_have_the_permissions_that_were_granted(
    secure: Secure,
) -> None:
    alice = str(secure.certs / made(secure, "client", name="alice"))
    nobody = secure.certs / "nobody"  # trusts the authority, and has no certificate
    nobody.mkdir()
    (nobody / "ca.pem").write_bytes((secure.certs / "ca.pem").read_bytes())
    operator_file = str(secure.certs / "operator-admin.pem")
    async with await loomlog.connect(secure.address, tls=operator_file) as operator:
        await operator.enforce_access(True)
        async with await loomlog.connect(secure.address, tls=alice) as client:
            with pytest.raises(PermissionDenied, match="client alice has no permission"):
                await client.log("orders").append(b"no")
            await operator.grant(Grant("alice", "writer", "orders"))
            position = (await client.log("orders").append(b"yes")).position
            with pytest.raises(PermissionDenied, match="read:orders"):
                await client.log("orders").read(position)
        token = (await operator.create_token("reader", ["read:orders"])).text
        async with await loomlog.connect(secure.address, tls=str(nobody), token=token) as reader:
            assert (await reader.log("orders").read(position)).value == b"yes"
            with pytest.raises(PermissionDenied, match="append:orders"):
                await reader.log("orders").append(b"no")
        status = await operator.status()
        assert all(node.alive for node in status.nodes)
        await operator.enforce_access(False)
