"""Epochs, as stories: the schedules that break a cluster without them.

Chance alone seldom brings these about: they need two things within a few milliseconds, in a stream
where nothing else happens. So the schedule is written down, and chance only moves its parts. Each
story holds as it is, and goes wrong when the rule that it is about is taken away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

import pytest
from sim_cluster import BOUNDS, METADATA, Shape, SimCluster
from workloads.replicas import check_replicas_alike

from loomlog.client.cluster import Cluster
from loomlog.config import StorageSettings
from loomlog.core.ordered import repair
from loomlog.core.ordered.replica import Replica
from loomlog.core.ordered.rounds import LogRounds, StreamRounds
from loomlog.core.ordered.situation import Nodes
from loomlog.errors import AppendUnknown, LoomError
from loomlog.metadata.ordered.committer import FORGET_EVERY
from loomlog.node.ordered.replica import ReplicaDriver
from loomlog.testing.history import History, check
from loomlog.testing.sim import Process, Simulation, SimulationError
from loomlog.types import Llsn, NodeId, StreamId
from loomlog.wire.info import StreamInfo

LOG = "log"
NODES = 4
SEEDS = 12
ALL_WELL_WITHIN_S = 60.0


class Stage:
    """A cluster of four nodes with one log; what is appended to it is remembered, and judged."""

    def __init__(self, sim: Simulation, process: Process, servers: SimCluster) -> None:
        self.sim = sim
        self.network = sim.network
        self.random = sim.world.random
        self.history = History()
        self._process = process
        self._servers = servers
        self._clients = 0

    async def connect(self) -> Cluster:
        self._clients += 1
        return await self._servers.connect(
            self._process,
            f"-{self._clients}",
            append_timeout_s=5.0,
            request_timeout_s=2.0,
            connect_timeout_s=0.5,
        )

    async def set_up(self, *, streams: int, replicas: int) -> Cluster:
        cluster = await self.connect()
        while not await self._all_alive(cluster):  # noqa: ASYNC110 - it can only be asked
            await asyncio.sleep(0.05)
        await cluster.create_log(LOG, streams=streams, replicas=replicas)
        return cluster

    async def _all_alive(self, cluster: Cluster) -> bool:
        return sum(node.alive for node in (await cluster.status()).nodes) == NODES

    async def append(
        self, cluster: Cluster, *values: bytes, stream: StreamId | None = None
    ) -> None:
        op = str(len(self.history.appends))
        self.history.invoke("client", op, list(values))
        try:
            positions = await cluster.log(LOG).append_many(values, stream=stream)
        except AppendUnknown:
            self.history.unknown(op)
        except LoomError:
            self.history.fail(op)
        else:
            self.history.ack(op, positions)

    async def stream(self, cluster: Cluster, number: int = 0) -> StreamInfo:
        return (await cluster.log(LOG).describe()).streams[number]

    async def until(self, cluster: Cluster, true: Callable[[StreamInfo], bool]) -> StreamInfo:
        while not true(stream := await self.stream(cluster)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return stream

    async def all_is_well(self) -> None:
        """Check, after the faults, that the log runs and that every replica holds what it
        should."""
        self.network.heal()
        for a in self.sim.hosts:
            for b in self.sim.hosts:
                self.network.slow(a, b)
        cluster = await self.connect()
        while not all(map(_runs, (await cluster.log(LOG).describe()).streams)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await self.append(cluster, b"the end")
        log = cluster.log(LOG)
        self.history.reader("final", 1)
        async for entry in log.subscribe(start=1, stop=await log.tail()):
            self.history.see_entries("final", [entry])
        self.history.final("final")
        for stream in (await log.describe()).streams:
            if stream.entries:
                await check_replicas_alike(stream, 1, stream.entries)


def _runs(stream: StreamInfo) -> bool:
    return stream.state == "running" and stream.joining is None


def host(node: NodeId) -> str:
    return f"vsn-{node}"


Story: TypeAlias = Callable[[Stage], Awaitable[None]]


def told(story: Story, seed: int) -> str | None:
    """Run a story; return what went wrong, if anything did."""
    with Simulation(seed) as sim:
        shape = Shape(
            NODES, 1, 1, StorageSettings(), 4096, failure_detection_s=0.4, heartbeat_s=0.1
        )
        servers = SimCluster(sim, shape)
        servers.start()
        stages: list[Stage] = []

        async def main(process: Process) -> None:
            stages.append(Stage(sim, process, servers))
            await story(stages[0])
            await stages[0].all_is_well()

        process = sim.host("clients").start(main)
        try:
            with replace(BOUNDS, nearly_entries=3).in_force():
                sim.run(lambda: process.finished, timeout_s=ALL_WELL_WITHIN_S)
        except SimulationError as error:
            return str(error)
        violations = check(stages[0].history)
        return "\n".join(map(str, violations)) if violations else None


def is_found(story: Story) -> bool:
    return any(told(story, seed) is not None for seed in range(SEEDS))


# ---- the stories


async def an_orphaned_primary(stage: Stage) -> None:
    """A primary that does not know that it was replaced passes a client's append to its backups,
    which have another primary now."""
    unaware = await stage.set_up(streams=1, replicas=3)
    await stage.append(unaware, b"before")
    primary = (await stage.stream(unaware)).replicas[0].node
    stage.network.partition(host(primary), METADATA)
    aware = await stage.connect()
    stream = await stage.until(
        aware, lambda s: s.state == "running" and s.replicas[0].node != primary
    )
    new_primary, backup, _ = (replica.node for replica in stream.replicas)
    await aware.log(LOG).tail()
    stage.network.slow(host(new_primary), host(backup), 200.0)
    async with asyncio.TaskGroup() as group:
        group.create_task(stage.append(aware, b"to the new one"))
        await asyncio.sleep(stage.random.random() * 0.02)
        group.create_task(stage.append(unaware, b"to the old one"))


async def a_replica_that_missed_an_epoch(stage: Stage) -> None:
    """A replica returns with entries that were never committed, where others are in their place.

    No rule is taken away for this one: that `Replica.seal` keeps nothing of an earlier epoch is
    what the copy does again before it begins, so either alone would do.
    """
    cluster = await stage.set_up(streams=1, replicas=2)
    await stage.append(cluster, b"before")
    backup = (await stage.stream(cluster)).replicas[1].node
    stage.network.partition(host(backup), METADATA)
    append = asyncio.ensure_future(stage.append(cluster, b"1", b"2", b"3", b"4"))
    await stage.until(cluster, lambda s: s.state == "running" and s.replicas[1].node != backup)
    await append
    stage.network.heal()
    substitute = (await stage.stream(cluster)).replicas[1].node
    await _insist(lambda: cluster.move_stream(1, substitute, backup))


async def an_append_of_an_epoch_that_is_over(stage: Stage) -> None:
    """The answer is lost while the append is on its way to a backup. The client asks for the
    outcome, and the replica that answers believes that it knows all appends of that epoch."""
    client = await stage.set_up(streams=2, replicas=2)
    await stage.append(client, b"before", stream=1)
    operator = await stage.connect()
    await operator.seal_stream(1)
    await operator.unseal_stream(1)
    primary, backup = (replica.node for replica in (await stage.stream(operator)).replicas)
    stage.network.slow(host(primary), host(backup), 2000.0)
    append = asyncio.ensure_future(stage.append(client, b"late"))
    await asyncio.sleep(stage.random.random() * 0.002)
    stage.network.partition("clients", host(primary))
    stage.network.reset("clients", host(primary))
    await append


async def a_primary_that_comes_back_as_a_newcomer(stage: Stage) -> None:
    """A client still waits there for an entry whose position another one has now."""
    unaware = await stage.set_up(streams=1, replicas=2)
    await stage.append(unaware, b"before")
    primary = (await stage.stream(unaware)).replicas[0].node
    stage.network.partition(host(primary), METADATA)
    stage.network.reset(host(primary), METADATA)  # it never receives what is sent meanwhile
    aware = await stage.connect()
    await aware.unregister_replica(1, primary)
    await stage.until(aware, lambda s: s.state == "running" and len(s.replicas) == 1)
    waiting = asyncio.ensure_future(stage.append(unaware, b"waits"))
    for number in range(10):
        await stage.append(aware, str(number).encode())
    stage.network.heal()
    await _insist(lambda: aware.add_replica(1, primary))
    await waiting


async def _insist(change: Callable[[], Awaitable[object]]) -> None:
    """Ask until the cluster is ready for it; with reason it may never be."""
    for _ in range(60):
        try:
            await change()
        except LoomError:
            await asyncio.sleep(0.05)
        else:
            return


async def a_move_of_all_there_is(stage: Stage) -> None:
    """The only replica moves, its data is deleted, and then the power fails."""
    cluster = await stage.set_up(streams=1, replicas=1)
    for number in range(FORGET_EVERY + 1):  # the metadata repository knows them no more
        await stage.append(cluster, str(number).encode())
    before = (await stage.stream(cluster)).replicas[0].node
    await cluster.move_stream(1, before)
    after = await stage.until(cluster, lambda s: s.replicas[0].node != before)
    newcomer = stage.sim.host(host(after.replicas[0].node))
    await asyncio.sleep(stage.random.random() * 0.05)
    newcomer.crash()
    newcomer.start(stage._servers.servers[newcomer.name])


STORIES = (
    an_orphaned_primary,
    a_replica_that_missed_an_epoch,
    an_append_of_an_epoch_that_is_over,
    a_primary_that_comes_back_as_a_newcomer,
    a_move_of_all_there_is,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_it_ends_well(story: Story) -> None:
    for seed in range(SEEDS):
        assert told(story, seed) is None, f"seed {seed}"


# ---- the rules, taken away


def test_a_backup_that_accepts_any_epoch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check_primary = Replica.check_primary

    def accept_any(self: Replica, epoch: int, next_llsn: Llsn) -> None:
        check_primary(self, self.epoch, next_llsn)

    monkeypatch.setattr(Replica, "check_primary", accept_any)
    assert is_found(an_orphaned_primary)


def test_a_primary_that_takes_appends_of_any_epoch_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ReplicaDriver, "_check_epoch", lambda self, epoch: None)
    assert is_found(an_append_of_an_epoch_that_is_over)


def test_a_newcomer_that_takes_over_before_it_is_whole_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decide = repair.decide

    def swap_early(stream: StreamRounds, nodes: Nodes) -> repair.Action:
        action = decide(stream, nodes)
        if isinstance(action, repair.Synchronise) and action.destination == stream.joining:
            return repair.Swap((action.destination,))
        return action

    monkeypatch.setattr(repair, "decide", swap_early)
    assert is_found(a_move_of_all_there_is)


def test_a_newcomer_that_takes_over_before_it_would_survive_a_power_loss_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    durable = "the newcomer has everything, or all that is left, but not durable"
    without = tuple(rule for rule in repair.SEALED_RULES if rule.when != durable)
    assert len(without) == len(repair.SEALED_RULES) - 1
    monkeypatch.setattr(repair, "SEALED_RULES", without)
    # The round log may still have the commits that the newcomer lost: here it does not.
    monkeypatch.setattr(LogRounds, "lost_commits", lambda *_: False)
    assert is_found(a_move_of_all_there_is)
