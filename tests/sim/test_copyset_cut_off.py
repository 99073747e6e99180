"""A node that sequences a copyset log cannot reach the other storage nodes, while the metadata
repository and the clients reach it: another node takes its place, and keeps it."""

from __future__ import annotations

import asyncio

import pytest
import stories
from sim_cluster import Shape, SimCluster

from loomlog import Log
from loomlog.client.cluster import Cluster
from loomlog.config import StorageSettings
from loomlog.core.copyset.nodeset import ranked
from loomlog.core.copyset.replacements import AVOIDED, PATIENCE, Replacements
from loomlog.errors import LoomError
from loomlog.protocol_names import COPYSET
from loomlog.testing.sim import Process, Simulation

SEEDS = 5
NODES = 5  # of which three are there and reach each other, as many as replicas
QUIET_S = 300.0  # in which the new sequencer keeps its place
WITHIN_S = 1200.0  # of simulated time


class Stage:
    def __init__(self, sim: Simulation, process: Process) -> None:
        self.sim = sim
        self._process = process
        shape = Shape(
            *(NODES, 1, 3, StorageSettings(), 4096), failure_detection_s=3.0, heartbeat_s=1.0
        )
        self.servers = SimCluster(sim, shape)

    async def set_up(self) -> tuple[Cluster, Log]:
        self.servers.start()
        cluster = await self.servers.connect(self._process)
        while sum(n.alive for n in (await cluster.status()).nodes) < NODES:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        log = await cluster.create_log("log", COPYSET, replicas=3)
        await log.append(b"before")
        return cluster, log

    def cut_off(self, node: int) -> None:
        for other in range(1, NODES + 1):
            if other != node:
                self.sim.network.partition(f"vsn-{node}", f"vsn-{other}")


async def epochs(cluster: Cluster) -> tuple[int, int | None]:
    """Return the newest epoch of the log, and who sequences it."""
    [stream] = (await cluster.status()).logs[0].streams
    assert stream.copyset is not None
    return stream.epoch, stream.copyset.sequencer


async def a_cut_off_node_is_replaced(stage: Stage) -> None:
    cluster, log = await stage.set_up()
    loop = asyncio.get_running_loop()
    first, second, third, *_ = ranked(
        (await log.describe()).id, dict.fromkeys(range(1, NODES + 1), 1.0)
    )
    assert (await epochs(cluster))[1] == first
    stage.cut_off(second)
    stage.sim.host(f"vsn-{first}").kill()
    killed_s = loop.time()
    while (await epochs(cluster))[1] != third:
        await asyncio.sleep(1.0)
        assert loop.time() < killed_s + PATIENCE.first_s + 15.0, "nobody replaces it"
    at = await _append(log)
    values = [entry.value async for entry in log.subscribe(start=1, stop=at)]
    assert (values[0], values[-1]) == (b"before", b"after")
    epoch, _ = await epochs(cluster)
    while loop.time() < killed_s + QUIET_S:
        await _append(log)
        await asyncio.sleep(20.0)
    assert (await epochs(cluster)) == (epoch, third), "it lost its place"


async def _append(log: Log) -> int:
    async with asyncio.timeout(10.0):
        while True:
            try:
                return (await log.append(b"after")).position
            except LoomError:
                await asyncio.sleep(0.5)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_node_that_is_cut_off_is_replaced_and_stays_so(seed: int) -> None:
    assert AVOIDED.first_s > QUIET_S
    error = stories.went_wrong(Stage, a_cut_off_node_is_replaced, seed, within_s=WITHIN_S)
    assert error is None, error


def test_otherwise_it_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replacements, "is_due", lambda *_: False)
    error = stories.went_wrong(Stage, a_cut_off_node_is_replaced, 0, within_s=WITHIN_S)
    assert error is not None
    assert "nobody replaces it" in error


def test_unless_others_are_told_it_comes_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replacements, "avoided", lambda *_: [])
    error = stories.went_wrong(Stage, a_cut_off_node_is_replaced, 0, within_s=WITHIN_S)
    assert error is not None
