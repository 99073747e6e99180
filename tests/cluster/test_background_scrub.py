"""Nodes read all stored data in the background, so that damage is found before readers meet it, and
repaired from other nodes."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from poll import until

from loomlog import Cluster, limits
from loomlog.config import NodeSettings
from loomlog.testing import LocalCluster
from loomlog.types import NodeId
from loomlog.wire.info import NodeInfo

pytestmark = pytest.mark.timeout(120)

PROTOCOLS = ["ordered", "chained", "copyset"]
ENTRIES = 10
SIZE = 100_000
MB = 1_000_000


class ScrubbingCluster(LocalCluster):
    def node_settings(self, node_id: NodeId) -> NodeSettings:
        return replace(super().node_settings(node_id), scrub_bytes_per_s=100 * MB)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loomlog.node.scrubber.BEGIN_S", 0.1)
    monkeypatch.setattr("loomlog.node.scrubber.BETWEEN_S", 0.1)
    monkeypatch.setattr("loomlog.node.scrubber.LATE_S", 0.001)
    monkeypatch.setattr("loomlog.node.scrubber.BUSY_S", 0.0)


def flip(directory: Path, values: list[bytes]) -> None:
    """Flip a bit of each value in the files of a node, which goes on: wherever it is, because it
    may have been written again by a recovery."""
    left = set(values)
    for path in [path for path in directory.rglob("*") if path.is_file()]:
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # a temporary one
            continue
        for value in values:
            for found in re.finditer(re.escape(value[:100]), content):
                with path.open("r+b") as file:
                    file.seek(found.start())
                    file.write(bytes([value[0] ^ 1]))
                left.discard(value)
    assert not left


async def node_of(cluster: Cluster, node: NodeId) -> NodeInfo:
    return next(info for info in (await cluster.status()).nodes if info.id == node)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_damage_that_nobody_reads_is_repaired(protocol: str, tmp_path: Path) -> None:
    local = ScrubbingCluster(nodes=3, directory=tmp_path, failure_detection_s=20.0)
    async with local as cluster, asyncio.timeout(90):
        log = await cluster.create_log("events", protocol=protocol, replicas=3)
        written = [b"%07d" % number + os.urandom(SIZE) for number in range(ENTRIES)]
        positions = [(await log.append(value)).position for value in written]
        flip(tmp_path / "vsn-2", written[3:5])

        def is_repaired(node: NodeInfo) -> bool:
            scrub = node.scrub
            is_done = scrub is not None and scrub.repaired > 0 == scrub.unrepaired
            return is_done and not any("scrub" in condition for condition in node.conditions)

        node = await until(lambda: node_of(cluster, 2), is_repaired)
        assert node.scrub is not None
        assert node.scrub.bytes > 0
        found = [entry.value async for entry in log.subscribe(positions[0], positions[-1])]
        assert found == written


def holds(directory: Path, values: list[bytes]) -> bool:
    files = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    return all(any(value[:100] in content for content in files) for value in values)


@pytest.mark.parametrize(
    ("protocol", "directory"),
    [("ordered", "lsid=*"), ("chained", "chains"), ("copyset", "logs")],
)
async def test_what_is_gone_as_a_whole_is_made_again(
    protocol: str, directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "VOLUME_LOOK_S", 0.2)
    local = ScrubbingCluster(nodes=3, directory=tmp_path, failure_detection_s=20.0)
    async with local as cluster, asyncio.timeout(90):
        log = await cluster.create_log("events", protocol=protocol, replicas=3)
        written = [b"%07d" % number + os.urandom(SIZE) for number in range(ENTRIES)]
        positions = [(await log.append(value)).position for value in written]
        volume = tmp_path / "vsn-2" / "cid=local" / "snid=2"
        for gone in volume.glob(directory):
            shutil.rmtree(gone)
        assert not holds(volume, written)

        async def is_well() -> bool:
            found = {condition.kind for condition in (await cluster.status()).conditions}
            return holds(volume, written) and found <= {"data-left-over"}

        while not await is_well():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await log.append(b"more")
        found = [entry.value async for entry in log.subscribe(positions[0], positions[-1])]
        assert found == written


async def test_copies_that_may_be_the_last_are_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "VOLUME_LOOK_S", 0.2)
    local = ScrubbingCluster(nodes=1, directory=tmp_path)
    async with local as cluster, asyncio.timeout(90):
        log = await cluster.create_log("events", protocol="copyset", replicas=1)
        await log.append(b"only one")
        copies = tmp_path / "vsn-1" / "cid=local" / "snid=1" / "logs"
        shutil.move(copies, tmp_path / "away")

        async def is_named() -> bool:
            conditions = (await node_of(cluster, 1)).conditions
            return any("is missing, and cannot be restored" in each for each in conditions)

        while not await is_named():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert not copies.exists()


@pytest.mark.parametrize("protocol", ["ordered", "copyset"])
async def test_damage_that_cannot_be_repaired_is_named(protocol: str, tmp_path: Path) -> None:
    local = ScrubbingCluster(nodes=1, directory=tmp_path)
    async with local as cluster, asyncio.timeout(90):
        log = await cluster.create_log("events", protocol=protocol, replicas=1)
        value = os.urandom(SIZE)
        await log.append(value)
        flip(tmp_path / "vsn-1", [value])

        place = "LLSN 1 of stream 1" if protocol == "ordered" else "e1n1 of loglet 1"

        def is_named(node: NodeInfo) -> bool:
            is_counted = node.scrub is not None and node.scrub.unrepaired == 1
            said = "; ".join(node.conditions)
            return is_counted and "a scrub found damage" in said and place in said

        await until(lambda: node_of(cluster, 1), is_named)
