"""A node is started while one of its volumes cannot be used: it runs with the others, status names
the volume, and the node uses it again when it works."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cli_rig import environment, loom_up, program, storage_node
from poll import until

import loomlog
from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.config import NodeSettings
from loomlog.core.conditions import Kind
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.storage.disk import RealFiles
from loomlog.storage.files import File
from loomlog.testing import LocalCluster
from loomlog.types import NodeId
from loomlog.wire.conditions import ConditionInfo

NODE = 3
PROTOCOLS = (ORDERED, CHAINED, COPYSET)
STORES = {ORDERED: "lsid=*", CHAINED: "chains", COPYSET: "logs"}
STEP = 7  # of the operations at a start, which are some dozens
LOGS_MAX = 10  # until both volumes are used


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A directory that is a file system of its own."""
    volume = tmp_path / "mounted"
    volume.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256m", "loomlog-test", str(volume)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    yield volume
    subprocess.run(["umount", "-l", str(volume)], capture_output=True, check=False)


def remount(volume: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(volume)], check=True)


async def test_a_node_starts_without_a_volume_that_is_read_only_and_uses_it_again(
    mounted: Path, tmp_path: Path
) -> None:
    volumes = tmp_path / "sound", mounted
    with loom_up(tmp_path / "data", "--nodes", "2", "--sync", "none") as up:
        async with await loomlog.connect(up.mr) as cluster:
            with storage_node(up.mr, NODE, *volumes):
                logs = [log for each in PROTOCOLS for log in await _fill(cluster, each, mounted)]
            remount(mounted, "ro")
            with storage_node(up.mr, NODE, *volumes):
                await until(lambda: _conditions(cluster), lambda found: _is_named(found, mounted))
                for log in logs:
                    await log.append(b"without")
                process = await _process(cluster)
                remount(mounted, "rw")
                await until(lambda: _conditions(cluster), lambda found: not found)
                assert await _process(cluster) != process, "what it has was registered anew"
                for log in logs:
                    await log.append(b"with")
                    entries = [e.value async for e in log.subscribe(1, await log.tail())]
                    assert entries == [b"before", b"without", b"with"]


async def _fill(cluster: Cluster, protocol: str, volume: Path) -> list[Log]:
    """Make logs until one of them is on this volume, which takes appends while it is away."""
    logs: list[Log] = []
    while not [*volume.glob(f"cid=*/snid={NODE}/{STORES[protocol]}")]:
        assert len(logs) < LOGS_MAX
        log = await cluster.create_log(f"{protocol}-{len(logs)}", protocol, 1, 2)
        await log.append(b"before")
        logs.append(log)
    return logs


def _is_named(conditions: list[ConditionInfo], volume: Path) -> bool:
    named = [each for each in conditions if each.kind == Kind.VOLUME_FAILED]
    return [each.text for each in named] == [f"volume {volume} failed: Read-only file system"] and (
        "the node uses it again" in named[0].help
    )


async def _conditions(cluster: Cluster) -> list[ConditionInfo]:
    return [each for each in (await cluster.status()).conditions if each.node == NODE]


async def _process(cluster: Cluster) -> str:
    return next(each.process for each in (await cluster.status()).nodes if each.id == NODE)


class _FailingFiles(RealFiles):
    """Below one directory, everything fails after a number of operations."""

    below = ""
    left = 0

    def _operate(self, path: str) -> None:
        if path.startswith(self.below):
            type(self).left -= 1
            if self.left < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def open(self, path: str, *, create: bool = False) -> File:
        self._operate(path)
        return super().open(path, create=create)

    def list(self, path: str) -> list[str]:
        self._operate(path)
        return super().list(path)

    def exists(self, path: str) -> bool:
        self._operate(path)
        return super().exists(path)

    def inode(self, path: str) -> int:
        self._operate(path)
        return super().inode(path)

    def stamp(self, path: str) -> str:
        self._operate(path)
        return super().stamp(path)

    def sync_directory(self, path: str) -> None:
        self._operate(path)
        super().sync_directory(path)


class _WithTwoVolumes(LocalCluster):
    def node_settings(self, node_id: NodeId) -> NodeSettings:
        settings = super().node_settings(node_id)
        second = Path(f"{settings.volumes[0]}+")
        second.mkdir(exist_ok=True)
        return replace(settings, volumes=(*settings.volumes, str(second)))


async def test_a_node_starts_whenever_a_disk_begins_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loomlog.node.disks.RealFiles", _FailingFiles)
    servers = _WithTwoVolumes(nodes=1, directory=tmp_path)
    monkeypatch.setattr(_FailingFiles, "below", str(tmp_path / "vsn-1+"))
    monkeypatch.setattr(_FailingFiles, "left", sys.maxsize)
    async with servers as cluster:
        logs = [
            await cluster.create_log(f"{each}-{n}", each, 1, 1)
            for each in PROTOCOLS
            for n in (1, 2)
        ]
        for log in logs:
            await log.append(b"before")
        await servers.stop_node(1)
        monkeypatch.setattr(_FailingFiles, "left", sys.maxsize)
        await servers.start_node(1)
        operations = sys.maxsize - _FailingFiles.left
        await servers.stop_node(1)
        for good in range(0, operations, STEP):
            monkeypatch.setattr(_FailingFiles, "left", good)
            await servers.start_node(1)
            await until(lambda: _kinds(cluster), lambda kinds: Kind.VOLUME_FAILED in kinds)
            await servers.stop_node(1)
        monkeypatch.setattr(_FailingFiles, "left", sys.maxsize)
        await servers.start_node(1)
        for log in logs:
            await log.append(b"after")
            entries = [e.value async for e in log.subscribe(1, await log.tail())]
            assert entries == [b"before", b"after"]


async def _kinds(cluster: Cluster) -> list[str]:
    return [each.kind for each in (await cluster.status()).conditions]


def test_a_node_does_not_start_if_its_only_volume_is_read_only(mounted: Path) -> None:
    remount(mounted, "ro")
    command = program(
        *("vsn", "start", "--cluster-id", "local", "--storage-node-id", str(NODE)),
        *("--volumes", str(mounted), "--mr", "127.0.0.1:1", "--listen", "127.0.0.1:0"),
    )
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"volume {mounted} is not writable (Read-only file system)" in done.stderr
