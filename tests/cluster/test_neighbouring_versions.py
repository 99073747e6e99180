"""Servers and clients of neighbouring versions work together: unknown fields and messages do no
harm, absent fields keep their previous meaning, and an older release runs beside this one."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cli_rig import environment

import loomlog
from loomlog.errors import InvalidArgument
from loomlog.net.endpoints import connect
from loomlog.testing import LocalCluster
from loomlog.types import Buffer
from loomlog.wire import codec
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Service

ROOT = Path(__file__).parents[2]
NEIGHBOUR = "c989e43d"  # the oldest commit that speaks and stores what this one does

UNKNOWN = b"\xf8\xff\x7f\x07\xfa\xff\x7f\x03new"  # a number and a text, fields 262143
NEWER_REQUEST = b"\x08\x01\xfa\xff\x7f\x00"  # id 1, and a message of an unknown kind


class NewerWriter(codec.FrameWriter):
    """Writes frames as a newer release would: with fields that this one does not know."""

    def encode(self, frame: pb.Frame, payload: Sequence[Buffer] = ()) -> list[Buffer]:
        frame.MergeFromString(UNKNOWN)
        getattr(frame, frame.WhichOneof("body") or "done").MergeFromString(UNKNOWN)
        return super().encode(frame, payload)


@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_fields_that_nobody_knows_are_ignored_everywhere(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setattr(codec, "FrameWriter", NewerWriter)
    async with LocalCluster(nodes=3, sync="none") as cluster:
        log = await cluster.create_log("events", protocol, replicas=2)
        placed = await log.append_many([b"a", b"b"])
        await log.append(b"c", b"key", headers={"h": b"1"})
        await cluster.switch_log("events", protocol="ordered", streams=2)
        last = await log.append(b"d")
        entries = [e.value async for e in log.subscribe(placed[0].position, last.position)]
        assert entries == [b"a", b"b", b"c", b"d"]
        await log.checkpoint("reader").set(last.position)
        await log.trim(placed[0].position)
        assert (await cluster.status()).logs


async def test_a_request_of_a_newer_release_is_refused_and_nothing_else_happens() -> None:
    local = LocalCluster(nodes=1, sync="none")
    async with local as cluster:
        status = await cluster.status()
        for address in (local.address, status.nodes[0].address):
            connection = await connect(address, Codec("client"), Service(Codec("client"), {}))
            with pytest.raises(InvalidArgument, match="does not take unknown messages"):
                await connection.request(pb.Frame.FromString(NEWER_REQUEST))
            await connection.request(pb.Frame(check_server=pb.CheckServer()))
            connection.close()


async def test_an_older_client_that_leaves_out_new_fields_gets_the_old_behaviour() -> None:
    local = LocalCluster(nodes=2, sync="none")
    async with local as cluster:
        connection = await connect(local.address, Codec("client"), Service(Codec("client"), {}))
        old = pb.CreateLog(name="old", protocol="ordered", streams=1, replicas=2)
        answer, _ = await connection.request(pb.Frame(create_log=old))
        connection.close()
        assert (answer.log.head, answer.log.tail) == (1, 0)
        assert (await cluster.log("old").append(b"x")).position == 1


@pytest.fixture
def neighbour(tmp_path: Path) -> Path:
    """The sources of an older commit."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs the history of the repository")
    archive = subprocess.run(
        ["git", "archive", NEIGHBOUR, "src"], cwd=ROOT, capture_output=True, timeout=60
    )
    assert archive.returncode == 0, archive.stderr
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(tmp_path / "neighbour", filter="data")
    return tmp_path / "neighbour" / "src"


@contextmanager
def server(sources: Path, name: str, *arguments: str) -> Iterator[Callable[[], str]]:
    """Run a server of some version; yield a function that waits until it serves and returns its
    address. After a restart, nodes have to be started together."""
    command = [sys.executable, "-m", f"loomlog.cli.{name}", "start", "--cluster-id", "mixed"]
    process = subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(PYTHONPATH=str(sources)),
    )

    def ready() -> str:
        assert process.stdout is not None
        return str(json.loads(process.stdout.readline())["address"])

    with process:
        try:
            yield ready
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.long  # two releases compile and start; each must still speak and store what it did
@pytest.mark.parametrize("upgraded_first", ["nodes", "metadata"])
def test_servers_of_an_older_commit_serve_beside_new_ones(
    neighbour: Path, tmp_path: Path, upgraded_first: str
) -> None:
    new = ROOT / "src"
    before = {"vsn": neighbour, "vmr": neighbour}
    between = before | ({"vsn": new} if upgraded_first == "nodes" else {"vmr": new})
    appended: list[bytes] = []
    for sources in (before, between, {"vsn": new, "vmr": new}):
        with ExitStack() as stack:
            data = ("--data", str(tmp_path / "vmr"), "--listen", "127.0.0.1:0", "--http", "none")
            mr = stack.enter_context(server(sources["vmr"], "vmr", *data))()
            nodes = []
            for number in (1, 2, 3):
                # One node is upgraded later than the others.
                of = before["vsn"] if number == 3 and sources is between else sources["vsn"]
                volume = tmp_path / f"vsn-{number}"
                volume.mkdir(exist_ok=True)
                where = ("--volumes", str(volume), "--mr", mr, "--listen", "127.0.0.1:0")
                node = ("--storage-node-id", str(number), *where)
                nodes.append(stack.enter_context(server(of, "vsn", *node)))
            for ready in nodes:
                ready()
            with loomlog.connect_sync(mr) as cluster:
                for protocol in ("ordered", "chained", "copyset"):
                    log = cluster.create_log(protocol, protocol, replicas=3, exist_ok=True)
                    log.append_many([b"%d" % n for n in range(len(appended), len(appended) + 5)])
                appended += [b"%d" % n for n in range(len(appended), len(appended) + 5)]
                for protocol in ("ordered", "chained", "copyset"):
                    log = cluster.log(protocol)
                    entries = [e.value for e in log.subscribe("earliest", log.tail())]
                    assert entries == appended
