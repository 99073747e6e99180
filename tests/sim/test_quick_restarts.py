"""The cluster continues without a node at once if its process ends, and after a second of silence.
No data is copied if the node is back soon. A story goes wrong when its rule is taken away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import pytest
import stories
from seed_chunks import chunks
from sim_cluster import Shape, SimCluster

from loomlog import Log
from loomlog.client.cluster import Cluster
from loomlog.config import StorageSettings
from loomlog.core.copyset.nodeset import Exclusions
from loomlog.core.copyset.sequencer import SequencerSettings
from loomlog.core.presence import ANSWER_S, QUIET_S, Presence, Standing
from loomlog.metadata import term
from loomlog.metadata.nodes.connected_nodes import RECONNECT_GRACE_S
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.testing.sim import Process, Simulation

SEEDS = 5
QUICK = 2  # seeds in every run
NODES = 4
LEAST = 3  # nodes: as many as replicas
DETECTION_S = 3.0
WAVE_S = SequencerSettings().store_timeout_s
PROTOCOLS = [ORDERED, CHAINED, COPYSET]


class Stage:
    """Four nodes with the times of a real cluster, and a log of three replicas."""

    def __init__(self, sim: Simulation, process: Process, nodes: int = NODES) -> None:
        self.sim = sim
        self._process = process
        self._nodes = nodes
        shape = Shape(
            *(nodes, 1, 3, StorageSettings(), 4096),
            failure_detection_s=DETECTION_S,
            heartbeat_s=1.0,
        )
        self.servers = SimCluster(sim, shape)

    async def set_up(self, protocol: str) -> tuple[Cluster, Log]:
        self.servers.start()
        cluster = await self.servers.connect(self._process)
        while sum(n.alive for n in (await cluster.status()).nodes) < self._nodes:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        log = await cluster.create_log("log", protocol, replicas=3)
        await log.append(b"before")
        return cluster, log

    def kill(self, node: int) -> None:
        self.sim.host(f"vsn-{node}").kill()

    async def streams(self, log: Log) -> dict[int, list[int]]:
        """Return the nodes of each stream of the log."""
        return {s.id: [r.node for r in s.replicas] for s in (await log.describe()).streams}

    async def restart(self, node: int, cluster: Cluster) -> None:
        name = f"vsn-{node}"
        self.sim.host(name).start(self.servers.servers[name])
        while not all(n.alive for n in (await cluster.status()).nodes):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


Story: TypeAlias = Callable[[Stage], Awaitable[None]]


def went_wrong(story: Story, seed: int) -> str | None:
    return stories.went_wrong(Stage, story, seed)


# ---- a node ends


async def appends_continue(protocol: str, node: int, stage: Stage) -> None:
    _, log = await stage.set_up(protocol)
    loop = asyncio.get_running_loop()
    killed_s = loop.time()
    stage.kill(node)
    at = await log.append(b"meanwhile")
    took_s = loop.time() - killed_s
    assert took_s < RECONNECT_GRACE_S / 2, f"appends waited for {took_s:.2f} s"
    values = [entry.value async for entry in log.subscribe(start=1, stop=at.position)]
    assert values == [b"before", b"meanwhile"]


@pytest.mark.parametrize("seed", chunks(SEEDS, quick=QUICK))
@pytest.mark.parametrize("node", range(1, NODES + 1))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_appends_continue_at_once_when_a_process_ends(protocol: str, node: int, seed: int) -> None:
    assert went_wrong(partial(appends_continue, protocol, node), seed) is None


@pytest.mark.parametrize("seed", chunks(SEEDS, quick=QUICK))
@pytest.mark.parametrize("node", range(1, LEAST + 1))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_same_without_a_spare(protocol: str, node: int, seed: int) -> None:
    """The cluster is that of `loom up` with its defaults: three nodes, three replicas."""
    stage = partial(Stage, nodes=LEAST)
    assert stories.went_wrong(stage, partial(appends_continue, protocol, node), seed) is None


@pytest.mark.parametrize("protocol", [ORDERED, COPYSET])
def test_without_a_probe_they_wait_until_the_node_is_silent(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unanswered(address: str, timeout_s: float) -> bool:
        return False

    monkeypatch.setattr(term, "is_refused", unanswered)
    nodes = range(1, NODES + 1)
    assert any(went_wrong(partial(appends_continue, protocol, node), 0) for node in nodes)


# ---- a node stops and says nothing


async def appends_continue_without_a_silent_node(node: int, stage: Stage) -> None:
    _, log = await stage.set_up(ORDERED)
    loop = asyncio.get_running_loop()
    stopped_s = loop.time()
    stage.sim.host(f"vsn-{node}").pause(4 * DETECTION_S)
    at = await log.append(b"meanwhile")
    took_s = loop.time() - stopped_s
    assert took_s < QUIET_S + 0.5, f"appends waited for {took_s:.2f} s"
    values = [entry.value async for entry in log.subscribe(start=1, stop=at.position)]
    assert values == [b"before", b"meanwhile"]


@pytest.mark.parametrize("seed", chunks(SEEDS, quick=QUICK))
@pytest.mark.parametrize("node", range(1, NODES + 1))
def test_appends_continue_soon_when_a_node_stops(node: int, seed: int) -> None:
    assert went_wrong(partial(appends_continue_without_a_silent_node, node), seed) is None


def test_without_a_question_they_wait_until_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Presence, "ask", lambda presence, now_s: False)
    nodes = range(1, NODES + 1)
    stories = (partial(appends_continue_without_a_silent_node, node) for node in nodes)
    assert any(went_wrong(story, 0) for story in stories)


async def a_silent_node_costs_one_wave(stage: Stage) -> None:
    """Sequencers that store copies on it find out before the metadata repository does."""
    _, log = await stage.set_up(COPYSET)
    [stream] = (await log.describe()).streams
    assert stream.copyset is not None
    stopped = next(n for n in range(1, NODES + 1) if n != stream.copyset.sequencer)
    loop = asyncio.get_running_loop()
    stage.sim.host(f"vsn-{stopped}").pause(4 * DETECTION_S)
    waits_s = []
    for _ in range(100):
        began_s = loop.time()
        await log.append(b"meanwhile")
        waits_s.append(loop.time() - began_s)
    assert sum(waits_s) < DETECTION_S, "else it counts as silent, and this proves nothing"
    slow_s = [wait_s for wait_s in waits_s if wait_s >= WAVE_S]
    assert len(slow_s) == 1, f"so many appends waited for it: {len(slow_s)}"
    assert slow_s[0] < 1.5 * WAVE_S


@pytest.mark.parametrize("seed", chunks(SEEDS, quick=QUICK))
def test_a_node_that_stops_costs_one_wave(seed: int) -> None:
    assert went_wrong(a_silent_node_costs_one_wave, seed) is None


def test_without_a_list_of_silent_nodes_more_appends_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exclusions, "silent", lambda exclusions, shards, metadata, now: None)
    assert any(went_wrong(a_silent_node_costs_one_wave, seed) for seed in range(SEEDS))


async def a_slow_node_stays(stage: Stage) -> None:
    """The node stops again and again, each time for less than it is given to answer."""
    _, log = await stage.set_up(ORDERED)
    for _ in range(5):
        for node in range(1, NODES + 1):
            stage.sim.host(f"vsn-{node}").pause(ANSWER_S / 2)
        await asyncio.sleep(1.0)
    (stream,) = (await log.describe()).streams
    assert stream.epoch == 1, f"it was sealed, and runs in epoch {stream.epoch}"


@pytest.mark.parametrize("seed", chunks(SEEDS, quick=QUICK))
def test_a_node_that_is_only_slow_is_not_missed(seed: int) -> None:
    assert went_wrong(a_slow_node_stays, seed) is None


# ---- it is soon back


async def nothing_is_copied(protocol: str, node: int, stage: Stage) -> None:
    """The node is back before it is silent, and nobody appends meanwhile."""
    cluster, log = await stage.set_up(protocol)
    before = await stage.streams(log)
    stage.kill(node)
    await asyncio.sleep(RECONNECT_GRACE_S / 2)
    assert not stage.servers.repositories["vmr"].term.nodes.alive(node)  # type: ignore[union-attr]
    await stage.restart(node, cluster)
    await log.append(b"after")
    await asyncio.sleep(2 * DETECTION_S)
    after = await stage.streams(log)
    for stream, replicas in before.items():
        assert after[stream] == replicas, f"it has {after[stream]}, and had {replicas}"


@pytest.mark.parametrize("seed", chunks(SEEDS, quick=QUICK))
@pytest.mark.parametrize("node", range(1, NODES + 1))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_quick_restart_copies_nothing(protocol: str, node: int, seed: int) -> None:
    assert went_wrong(partial(nothing_is_copied, protocol, node), seed) is None


def test_replicas_would_be_dropped_if_a_missed_node_counted_as_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standing = Presence.standing

    def hasty(presence: Presence, now_s: float) -> Standing:
        return Standing.SILENT if presence.ended else standing(presence, now_s)

    monkeypatch.setattr(Presence, "standing", hasty)
    nodes = range(1, NODES + 1)
    assert any(went_wrong(partial(nothing_is_copied, CHAINED, node), 0) for node in nodes)
