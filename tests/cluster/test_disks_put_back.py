"""Older copies of all disks are used for a while, and then the newer ones are put back. All readers
agree on which entries exist and which are lost."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection
from pathlib import Path

import pytest
from agreeing_readers import LOST, check_times, content

from loomlog.client.log import Log
from loomlog.testing import LocalCluster
from loomlog.types import Glsn

pytestmark = pytest.mark.timeout(120)
NODES = (1, 2, 3)


async def append(log: Log, name: str, count: int) -> dict[Glsn, bytes]:
    values = [f"{name} {number}".encode() for number in range(count)]
    return {(await log.append(value)).position: value for value in values}


class Disks:
    """The disks of all nodes, which are stopped to copy or replace them."""

    def __init__(self, local: LocalCluster, directory: Path) -> None:
        self._local = local
        self._directory = directory

    async def keep(self, name: str) -> None:
        await self._stop()
        for node in NODES:
            shutil.copytree(self._directory / f"vsn-{node}", self._directory / name / f"vsn-{node}")
        await self._start()

    async def replace(self, name: str, nodes: Collection[int] = NODES) -> None:
        await self._stop()
        for node in nodes:
            shutil.rmtree(self._directory / f"vsn-{node}")
            shutil.copytree(self._directory / name / f"vsn-{node}", self._directory / f"vsn-{node}")
        await self._start()

    async def _stop(self) -> None:
        await asyncio.gather(*map(self._local.stop_node, NODES))

    async def _start(self) -> None:
        await asyncio.gather(*map(self._local.start_node, NODES))


@pytest.mark.parametrize("nodes", [NODES, (1, 2)])
@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_all_readers_agree(tmp_path: Path, protocol: str, nodes: Collection[int]) -> None:
    local = LocalCluster(3, directory=tmp_path, sync="none", failure_detection_s=2.5)
    async with local as cluster, asyncio.timeout(100):
        disks = Disks(local, tmp_path)
        log = await cluster.create_log("events", protocol=protocol, streams=1, replicas=2)
        first = await append(log, "first", 5)
        await disks.keep("older")
        second = await append(log, "second", 6)
        await disks.keep("newer")
        await disks.replace("older")
        assert await content(log, [*first, *second]) == {**first, **dict.fromkeys(second, LOST)}
        third = await append(log, "third", 3)
        await check_times(log)
        await disks.replace("newer", nodes)
        fourth = await append(log, "fourth", 3)
        written = {**first, **second, **third, **fourth}
        found = await content(log, [*written])
        await check_times(log)
        assert all(found[p] in (value, LOST) for p, value in written.items())
        assert {p: found[p] for p in fourth} == fourth
        if protocol != "chained":  # there, copies from before a chain started over are not used
            assert {p: found[p] for p in first} == first
        if protocol == "copyset" and nodes == NODES:
            assert found == {**written, **dict.fromkeys(third, LOST)}
