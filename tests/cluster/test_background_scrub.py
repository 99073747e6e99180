"""Nodes read all that they store in the background: damage is found before anybody reads it, and
repaired from other nodes."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from loomlog import Cluster
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
    """Flip a bit of each value in the files of a node, which goes on."""
    left = list(values)
    for path in [path for path in directory.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        for value in [value for value in left if value[:100] in content]:
            at = content.index(value[:100])
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([content[at] ^ 1]))
            left.remove(value)
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

        async def is_repaired() -> bool:
            scrub = (await node_of(cluster, 2)).scrub
            return scrub is not None and scrub.repaired > 0 == scrub.unrepaired

        while not await is_repaired():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        node = await node_of(cluster, 2)
        assert node.scrub is not None
        assert node.scrub.bytes > 0
        assert not any("scrub" in condition for condition in node.conditions)
        found = [entry.value async for entry in log.subscribe(positions[0], positions[-1])]
        assert found == written


@pytest.mark.parametrize("protocol", ["ordered", "copyset"])
async def test_damage_that_cannot_be_repaired_is_named(protocol: str, tmp_path: Path) -> None:
    local = ScrubbingCluster(nodes=1, directory=tmp_path)
    async with local as cluster, asyncio.timeout(90):
        log = await cluster.create_log("events", protocol=protocol, replicas=1)
        value = os.urandom(SIZE)
        await log.append(value)
        flip(tmp_path / "vsn-1", [value])

        async def is_named() -> bool:
            node = await node_of(cluster, 1)
            return any("a scrub found damage" in condition for condition in node.conditions)

        while not await is_named():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        scrub = (await node_of(cluster, 1)).scrub
        assert scrub is not None
        assert scrub.unrepaired == 1
        conditions = (await node_of(cluster, 1)).conditions
        place = "LLSN 1 of stream 1" if protocol == "ordered" else "e1n1 of loglet 1"
        assert any(place in condition for condition in conditions)
