"""A reader that is cut off while its segment ends and is trimmed continues with the next one, and
one whose log is deleted fails. Neither waits forever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import pytest
import stories
from sim_cluster import Shape, SimCluster

from loomlog import Log
from loomlog.client.cluster import Cluster
from loomlog.config import StorageSettings
from loomlog.core.copyset.reader_sources import ReadSources
from loomlog.errors import NotFound
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.testing.sim import Process, Simulation

AWAY_S = 5.0  # longer than a question waits for its answer, and nodes take to forget a segment
NODES = 3
READER = "reader"
PROTOCOLS = [ORDERED, CHAINED, COPYSET]


class Stage:
    """Three nodes, a log with one entry, and a reader that has seen it and waits for more."""

    def __init__(self, sim: Simulation, process: Process) -> None:
        self.sim = sim
        self._process = process
        shape = Shape(
            *(NODES, 1, 2, StorageSettings(), 4096), failure_detection_s=3.0, heartbeat_s=1.0
        )
        self._servers = SimCluster(sim, shape)
        self.seen: list[bytes] = []
        self.error: Exception | None = None

    async def set_up(self, protocol: str) -> tuple[Cluster, Log]:
        self._servers.start()
        cluster = await self._servers.connect(self._process)
        while sum(n.alive for n in (await cluster.status()).nodes) < NODES:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        log = await cluster.create_log("log", protocol, replicas=2)
        await log.append(b"before")
        self.sim.host(READER).start(self._read)
        await self.until(lambda: self.seen == [b"before"])
        return cluster, log

    async def _read(self, process: Process) -> None:
        cluster = await self._servers.connect(process)
        try:
            async for entry in cluster.log("log").subscribe(1):
                self.seen.append(entry.value)
        except Exception as error:
            self.error = error

    async def until(self, reached: Callable[[], bool]) -> None:
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


Story: TypeAlias = Callable[[Stage], Awaitable[None]]


def went_wrong(story: Story, seed: int = 1) -> str | None:
    return stories.went_wrong(Stage, story, seed)


async def switched(protocol: str, stage: Stage) -> None:
    cluster, log = await stage.set_up(protocol)
    stage.sim.network.isolate(READER)
    last = await log.tail()
    await cluster.switch_log("log", protocol=protocol, streams=1, replicas=3)
    await log.append(b"after")
    await log.trim(last)
    while [segment.id for segment in (await log.describe()).segments] != [2]:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await asyncio.sleep(AWAY_S)
    stage.sim.network.heal()
    await stage.until(lambda: len(stage.seen) > 1 or stage.error is not None)
    assert (stage.seen, stage.error) == ([b"before", b"after"], None)


async def deleted(protocol: str, stage: Stage, *, absent: bool) -> None:
    cluster, _ = await stage.set_up(protocol)
    if absent:
        stage.sim.network.isolate(READER)
    await cluster.delete_log("log")
    await asyncio.sleep(AWAY_S)
    stage.sim.network.heal()
    await stage.until(lambda: stage.error is not None)
    assert isinstance(stage.error, NotFound), stage.error


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_reader_continues_after_a_segment_that_is_gone_when_it_returns(protocol: str) -> None:
    assert went_wrong(partial(switched, protocol)) is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("absent", [True, False])
def test_a_reader_fails_when_its_log_is_deleted(protocol: str, absent: bool) -> None:
    assert went_wrong(partial(deleted, protocol, absent=absent)) is None


def test_a_reader_that_takes_forgetful_nodes_for_idle_ones_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ReadSources, "is_known", lambda *_: True)
    wrong = went_wrong(partial(switched, COPYSET))
    assert wrong is not None
    assert "did not happen in time" in wrong
