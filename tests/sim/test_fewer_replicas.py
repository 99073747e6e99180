"""A log of three replicas has two while a node is away. What is appended then is read if one of the
two disks forgets its last writes. If both do, exactly these entries of an `ordered` log are said to
be lost: the metadata repository has their rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial

import pytest
import stories
from sim_cluster import Shape, SimCluster

from loomlog import Log
from loomlog.config import StorageSettings
from loomlog.metadata.nodes import registration
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.testing.sim import Process, Simulation
from loomlog.testing.sim.disk import DiskImage
from loomlog.types import Gap, Glsn

SEEDS = 3
APPENDS = 3


class Stage:
    """Three nodes, and a log of three replicas."""

    def __init__(self, sim: Simulation, process: Process) -> None:
        self.sim = sim
        self._process = process
        shape = Shape(*(3, 1, 3, StorageSettings(), 4096), failure_detection_s=0.8, heartbeat_s=0.1)
        self._servers = SimCluster(sim, shape)
        self.sim.excused.update(self._servers.servers)  # they log what disks forgot

    async def set_up(self, protocol: str) -> Log:
        self._servers.start()
        cluster = await self._servers.connect(self._process)
        await self._servers.create_log(cluster, "log", protocol)
        return cluster.log("log")

    def lose_power(self, really: Mapping[str, DiskImage]) -> None:
        """Let all nodes crash and start again, some with what their disks really have."""
        for name in self._servers.node_names:
            self.sim.host(name).crash()
        for name, image in really.items():
            self.sim.host(name).disk.restore(image)
            self.sim.host(name).disk.crash()
        for name in self._servers.node_names:
            self.sim.host(name).start(self._servers.servers[name])


async def append(log: Log) -> list[Glsn]:
    return [(await log.append(b"value")).position for _ in range(APPENDS)]


async def read(log: Log, last: Glsn) -> tuple[list[Glsn], list[Gap]]:
    """Return the positions that are read, and what is said to be lost."""
    found, lost = [], []
    async with asyncio.timeout(stories.WITHIN_S / 2):
        async for item in log.subscribe(1, last, gaps=True):
            if not isinstance(item, Gap):
                found.append(item.position)
            elif item.kind == "dataloss":
                lost.append(item)
    return found, lost


async def two_replicas(protocol: str, forgetful: Collection[str], stage: Stage) -> None:
    """vsn-3 is away; the power fails, and disks forget what was appended last."""
    log = await stage.set_up(protocol)
    kept = await append(log)
    stage.sim.host("vsn-3").kill()
    kept += await append(log)
    really = {name: stage.sim.host(name).disk.copy() for name in sorted(forgetful)}
    last = await append(log)
    stage.lose_power(really)
    found, lost = await read(log, last[-1])
    if len(forgetful) == 1:
        assert (found, lost) == ([*kept, *last], [])
    else:
        assert (found, lost) == (kept, [Gap(last[0], last[-1], "dataloss")])


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("forgetful", ["vsn-1", "vsn-2"])
@pytest.mark.parametrize("protocol", [ORDERED, CHAINED, COPYSET])
def test_what_one_of_two_disks_forgot_is_read_from_the_other(
    protocol: str, forgetful: str, seed: int
) -> None:
    assert stories.went_wrong(Stage, partial(two_replicas, protocol, [forgetful]), seed) is None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_exactly_what_both_forgot_is_lost(seed: int) -> None:
    story = partial(two_replicas, ORDERED, ["vsn-1", "vsn-2"])
    assert stories.went_wrong(Stage, story, seed) is None


def test_it_would_be_missing_if_nodes_were_believed_after_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "life_of", lambda claim, known: 1)
    told = [partial(two_replicas, CHAINED, [name]) for name in ("vsn-1", "vsn-2")]
    tries = ((story, seed) for seed in range(10) for story in told)
    assert any(stories.went_wrong(Stage, story, seed) is not None for story, seed in tries)
