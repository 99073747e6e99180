"""Metadata is moved between one vmr and several, and rescued, on real processes with data."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cli_rig import Loom, environment, program

import loomlog
from loomlog.testing import LocalEtcd

HOST = "127.0.0.1"
LOG = "events"
MEMBERS = (1, 2, 3)


@pytest.fixture(scope="module")
def etcd() -> Iterator[LocalEtcd]:
    with LocalEtcd() as etcd:
        yield etcd


@contextmanager
def spawned(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a vmr or vsn until the end of the block."""
    command = [*program(name, "start"), "--cluster-id", "local", *arguments]
    process = subprocess.Popen(
        [*command, "--log-level", "error"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    with process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)


def wait_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    assert json.loads(line)["ready"]


@contextmanager
def server(name: str, *arguments: str) -> Iterator[None]:
    with spawned(name, *arguments) as process:
        wait_ready(process)
        yield


class MetadataRig:
    """Two storage nodes and a client that stay, while metadata repositories come and go."""

    def __init__(self, directory: Path, etcd: LocalEtcd) -> None:
        self.directory = directory
        self.etcd = ("--etcd", etcd.endpoints[0], "--etcd-prefix", str(directory))
        self.alone, *members = _free_addresses(1 + len(MEMBERS))
        self.members = dict(zip(MEMBERS, members, strict=True))
        self.peers = ",".join(f"{n}={address}" for n, address in self.members.items())
        self.addresses = ",".join((self.alone, *members))
        self.loom = Loom(self.addresses)
        self.appended: dict[bytes, int] = {}
        self._nodes: list[subprocess.Popen[str]] = []  # ready as soon as there is a vmr
        self._client: loomlog.BlockingCluster | None = None

    def path(self, name: str) -> str:
        return str(self.directory / name)

    @contextmanager
    def nodes(self) -> Iterator[None]:
        with ExitStack() as running:
            for number in (1, 2):
                volume = self.directory / f"vsn-{number}"
                volume.mkdir()
                where = ("--volumes", str(volume), "--mr", self.addresses, "--listen", f"{HOST}:0")
                node = ("--storage-node-id", str(number), *where)
                self._nodes.append(running.enter_context(spawned("vsn", *node)))
            yield
            if self._client is not None:
                self._client.close()

    @contextmanager
    def one_vmr(self, data: str) -> Iterator[None]:
        listen = ("--listen", self.alone, "--http", "none")
        with server("vmr", "--data", self.path(data), *listen):
            yield

    @contextmanager
    def three_vmr(self) -> Iterator[None]:
        with ExitStack() as running:
            for number, address in self.members.items():
                who = ("--member-id", str(number), "--peers", self.peers, "--store", "etcd")
                where = ("--data", self.path(f"vmr-{number}"), "--listen", address)
                running.enter_context(server("vmr", *who, *where, *self.etcd, "--http", "none"))
            yield

    def append(self, count: int) -> None:
        """Append, and check that every earlier entry is where it was."""
        if self._client is None:
            for node in self._nodes:
                wait_ready(node)
            self._client = loomlog.connect_sync(self.addresses)
            self._client.create_log(LOG, streams=2, replicas=2)
        log = self._client.log(LOG)
        first = len(self.appended)
        values = [str(first + number).encode() for number in range(count)]
        positions = log.append_many(values)
        self.appended |= {v: at.position for v, at in zip(values, positions, strict=True)}
        assert sorted(self.appended.values()) == list(range(1, first + count + 1))
        found = log.subscribe(start=1, stop=log.tail())
        assert {entry.value: entry.position for entry in found} == self.appended


def _free_addresses(count: int) -> list[str]:
    with ExitStack() as taken:
        listeners = [taken.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [f"{HOST}:{listener.getsockname()[1]}" for listener in listeners]


@pytest.fixture
def rig(tmp_path: Path, etcd: LocalEtcd) -> Iterator[MetadataRig]:
    rig = MetadataRig(tmp_path, etcd)
    with rig.nodes():
        yield rig


def test_metadata_moves_from_one_vmr_to_three_and_back(rig: MetadataRig) -> None:
    loom, there, back = rig.loom, rig.path("there.loom"), rig.path("back.loom")
    with rig.one_vmr("embedded"):
        rig.append(100)
        assert "in use by another process" in loom.fails(
            "metadata", "export", there, "--data", rig.path("embedded")
        )
    exported = loom.json("metadata", "export", there, "--data", rig.path("embedded"))
    assert (exported["cluster_id"], exported["logs"]) == ("local", 1)
    several = (*rig.etcd, "--peers", rig.peers)
    loom.says("metadata", "import", there, *several)
    assert "holds metadata already" in loom.fails("metadata", "import", there, *several)

    with rig.three_vmr():
        rig.append(50)
        listed = loom.json("metadata", "list")
        assert [member["id"] for member in listed["members"]] == list(MEMBERS)
        assert listed["leader_epoch"] > exported["leader_epoch"]
        assert "is in use" in loom.fails(
            "metadata", "export", back, "--data", rig.path("vmr-1"), *rig.etcd
        )
    one, two = ("--data", rig.path("vmr-1")), ("--data", rig.path("vmr-2"))
    assert "only with a majority" in loom.fails("metadata", "export", back, *one, *rig.etcd)
    loom.says("metadata", "export", back, *one, *two, *rig.etcd)
    loom.says("metadata", "import", back, "--data", rig.path("again"))
    assert "not empty" in loom.fails("metadata", "import", back, "--data", rig.path("again"))

    with rig.one_vmr("again"):
        rig.append(50)
    with rig.one_vmr("again"):
        rig.append(1)


def test_a_vmr_that_lost_its_rounds_goes_on_after_a_rebuild(rig: MetadataRig) -> None:
    data, loom = rig.path("embedded"), rig.loom
    with rig.one_vmr("embedded"):
        rig.append(100)
    lost = ("metadata", "rebuild", "--data", data, "--listen", rig.alone)
    assert "is not empty" in loom.fails(*lost)
    shutil.rmtree(f"{data}/rounds")
    with pytest.raises(AssertionError, match="loom metadata rebuild"), rig.one_vmr("embedded"):
        pass
    rebuilt = loom.run(*lost, "--json")
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert json.loads(rebuilt.stdout)["logs"] == [{"name": LOG, "last_position": 100, "doubts": []}]
    with rig.one_vmr("embedded"):
        rig.append(50)


def test_three_vmr_that_lost_their_rounds_go_on_after_a_rebuild(rig: MetadataRig) -> None:
    lost = ("metadata", "rebuild", "--listen", rig.alone, *rig.etcd)
    with rig.three_vmr():
        rig.append(100)
        assert "stop all of them first" in rig.loom.fails(*lost)
    for number in MEMBERS:
        shutil.rmtree(rig.path(f"vmr-{number}"))
    rebuilt = rig.loom.run(*lost)
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert b"log events: certain, its last position is 100" in rebuilt.stdout
    with rig.three_vmr():
        rig.append(50)
