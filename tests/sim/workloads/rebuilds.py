"""Nodes of `copyset` logs stop, lose their disks, come back midway or never, are drained, given up
and removed, several at once and under load, and logs get other segments; servers and the network
fail meanwhile.

    an act: clients append and follow while things break; then all faults end, the operator does
    what the status asks for, and the cluster must become healthy

Each log keeps all that was acknowledged, once each, or, if more disks were lost at once than its
entries have copies, says of exactly the lost ones that they are. Whenever the status shows no
condition, every entry has all its copies; after an act it shows none, unless something may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final

from rebuilding_judge import LogJudge, RebuildingJudge
from sim_cluster import VOLUME, Shape, SimCluster

from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.errors import InvalidArgument, LoomError, NotFound, Timeout
from loomlog.testing.history import History
from loomlog.testing.sim.faults import FaultPlan, Nemesis
from loomlog.testing.sim.host import Host, Main, Process
from loomlog.testing.sim.simulation import Simulation
from loomlog.types import Glsn, NodeId, SyncMode
from loomlog.wire.info import ClusterStatus
from workloads.cluster import SLOWNESS, Troublemaker, finish
from workloads.takeovers import METADATA as REPOSITORIES
from workloads.takeovers import LeaderNemesis

LOGS_MAX: Final = 2
ACTS_MAX: Final = 3
REPLICATED: Final = 0.2  # of the runs: with several metadata repositories
DISASTERS: Final = 0.3  # of the runs: any number of disks is lost at once
SWITCHES: Final = 0.2  # of the runs: logs get other segments, and the old ones are closed
SEGMENTS_MAX: Final = 4
TROUBLE_S: Final = (1.0, 3.0, 6.0)
HARM_EVERY_S: Final = (0.1, 0.4, 1.0)  # on average
AWAY_S: Final = (0.1, 1.0, 5.0)  # at most
STRIKE_TURNS_MAX: Final = 300
STRIKE_CHANGES_MAX: Final = 30
CLOCK_JUMP_MAX_S: Final = 5.0
APPEND_PAUSES_S: Final = (0.01, 0.1, 0.4)
APPEND_S: Final = 3.0  # then it is left undecided
LOOK_S: Final = 0.25
SET_UP_S: Final = 60.0
HEALTHY_S: Final = 100.0
READ_S: Final = 60.0


def rebuilding(sim: Simulation, plan: FaultPlan) -> History:
    """Run the workload of this module."""
    random = sim.world.random
    drawn = Shape.draw(random, power_losses=True)
    shape = replace(
        drawn,
        nodes=random.choice((3, 4, 4, 5, 6)),
        replicas=random.choice((2, 2, 2, 3, 3, 1)),
        storage=replace(drawn.storage, sync=SyncMode.ALWAYS),
        replace_after_s=None,
        rebuild_after_s=random.choice((0.3, 1.0, 3.0)),
        metadata=REPOSITORIES if random.random() < REPLICATED else 1,
        leader_silence_s=random.choice((0.3, 0.8)),
    )
    servers = SimCluster(sim, shape)
    servers.slow_down(random.choice(SLOWNESS[:3]), random.choice(SLOWNESS[:3]))
    nemeses: list[Troublemaker] = [Nemesis(sim, plan, servers.servers, nodes=servers.node_names)]
    if shape.metadata > 1:
        nemeses.insert(0, LeaderNemesis(servers))
    with shape.bounds.in_force():
        _Rebuilding(sim, servers, nemeses).run()
    return History()


class _Rebuilding:
    def __init__(self, sim: Simulation, servers: SimCluster, nemeses: list[Troublemaker]) -> None:
        self._sim = sim
        self._servers = servers
        self._nemeses = nemeses
        self._random = random = sim.world.random
        self._replicas = replicas = servers.shape.replicas
        self._least = random.choice((replicas, min(replicas, max(2, replicas - 1))))
        self._nodeset = random.choice((None, random.randint(replicas, servers.shape.nodes)))
        self._is_disaster = random.random() < DISASTERS
        self._logs = [LogJudge(f"log-{n}") for n in range(random.randint(1, LOGS_MAX))]
        self._judge = RebuildingJudge(servers, self._logs)
        self._endangered: set[str] = set()  # lost their disks since the cluster was healthy
        self._draining: set[str] = set()
        self._switches = Random(f"{sim.world.seed} switches")  # all else as without them
        self._is_switched = self._switches.random() < SWITCHES
        self._may_have_lost = False
        self._is_calm = True
        self._is_over = False

    def run(self) -> None:
        self._servers.start()
        self._do(self._create, SET_UP_S)
        self._sim.run(self._judge.knows_all_logs, timeout_s=SET_UP_S)
        self._look_now_and_then()
        for judge in self._logs:
            self._sim.host(f"{judge.name}-follower").start(partial(self._follow, judge))
        for _ in range(self._random.randint(1, ACTS_MAX)):
            self._trouble()
            self._do(self._become_healthy, HEALTHY_S)
            if complaint := self._judge.missing(lost=False):
                raise AssertionError(f"after an act, {complaint}")
            self._endangered.clear()
            self._do(self._read, READ_S)
        self._sim.run(lambda: all(j.is_followed for j in self._logs), timeout_s=READ_S)
        for judge in self._logs:
            judge.check_follower()
        self._is_over = True
        if self._judge.verdict:
            raise AssertionError(self._judge.verdict)

    def _do(self, work: Callable[[Cluster], Awaitable[None]], within_s: float) -> None:
        finish(self._sim, [self._sim.host("admin").start(self._client(work))], within_s)

    def _client(self, work: Callable[[Cluster], Awaitable[None]]) -> Main:
        async def main(process: Process) -> None:
            async with await self._servers.connect(
                process, compression="none", request_timeout_s=2.0, connect_timeout_s=1.0
            ) as cluster:
                await work(cluster)

        return main

    def _look_now_and_then(self) -> None:
        if not self._is_over:
            self._judge.look()
            self._sim.world.after(LOOK_S, self._look_now_and_then)

    # ---- an act

    def _trouble(self) -> None:
        self._is_calm = False
        writers = [
            self._sim.host(f"{judge.name}-writer").start(self._client(partial(self._write, judge)))
            for judge in self._logs
        ]
        operator = self._sim.host("operator").start(self._client(self._operate))
        for nemesis in self._nemeses:
            nemesis.start()
        every_s = self._random.choice(HARM_EVERY_S)
        self._harm_now_and_then(every_s)
        self._sim.run(self._sim.world.now + self._random.choice(TROUBLE_S))
        self._is_calm = True
        for nemesis in self._nemeses:
            nemesis.stop()
        for name, main in self._servers.servers.items():
            self._sim.host(name).strike_after(None)
            if not self._sim.host(name).running and not self._is_empty(name):
                self._sim.host(name).start(main)
        finish(self._sim, [*writers, operator], SET_UP_S)

    def _harm_now_and_then(self, every_s: float) -> None:
        if not self._is_calm:
            self._harm()
            delay_s = self._random.expovariate(1.0 / every_s)
            self._sim.world.after(delay_s, self._harm_now_and_then, every_s)

    def _harm(self) -> None:
        random = self._random
        host = self._sim.host(random.choice(self._servers.node_names))
        match random.choices(range(5), (4, 3, 2, 1, 1))[0]:
            case 0:
                self._stop_soon(host, self._stop)
            case 1 if self._may_wipe(host.name):
                self._stop_soon(host, self._wipe)
            case 2:
                self._stop_soon(self._sim.host(random.choice([*self._servers.servers])), self._stop)
            case 3:
                host.jump_clock(random.uniform(0, CLOCK_JUMP_MAX_S))
            case 4:
                host.set_wall_clock(random.uniform(-CLOCK_JUMP_MAX_S, CLOCK_JUMP_MAX_S))

    def _stop_soon(self, host: Host, stop: Callable[[Host], None]) -> None:
        match self._random.choice(("now", "turns", "changes")):
            case "turns":
                turns = self._random.randint(1, STRIKE_TURNS_MAX)
                host.strike_after(partial(stop, host), turns=turns)
            case "changes":
                changes = self._random.randint(1, STRIKE_CHANGES_MAX)
                host.strike_after(partial(stop, host), changes=changes)
            case _:
                stop(host)

    def _stop(self, host: Host) -> None:
        if not host.running:
            return
        if host.name in self._servers.node_names:
            self._judge.node_stops(host.name)
        if self._random.random() < 0.5:
            host.crash()
        else:
            host.kill()
        self._start_later(host)

    def _start_later(self, host: Host) -> None:
        away_s = self._random.random() * self._random.choice(AWAY_S)
        self._sim.world.after(away_s, self._start, host)

    def _start(self, host: Host) -> None:
        if not host.running:
            host.start(self._servers.servers[host.name])

    # ---- lost disks

    def _may_wipe(self, name: str) -> bool:
        return self._is_disaster or len(self._endangered | {name}) < self._least

    def _wipe(self, host: Host) -> None:
        if self._is_calm or not self._may_wipe(host.name) or host.disk.settings.error:
            return
        self._judge.node_stops(host.name)
        if host.running:
            host.kill()
        host.strike_after(None)  # else it may strike what empties the disk
        self._judge.disk_is_lost(host.name)
        host.disk.restore(None)
        files = host.disk.mount()
        files.make_directory(VOLUME)
        files.sync_directory("/")
        self._sim.world.note(host.name, "empty disk")
        self._endangered.add(host.name)
        self._may_have_lost |= len(self._endangered) >= self._least
        if self._random.random() < 0.5:
            self._start_later(host)

    def _is_empty(self, name: str) -> bool:
        """Return whether a node has lost its disk, and has not registered since."""
        return name in self._servers.node_names and not self._sim.host(name).disk.below(VOLUME)

    # ---- clients

    async def _create(self, cluster: Cluster) -> None:
        for judge in self._logs:
            while True:
                try:
                    await cluster.create_log(
                        judge.name,
                        protocol="copyset",
                        replicas=self._replicas,
                        min_replicas=self._least,
                        nodeset=self._nodeset,
                    )
                    break
                except LoomError:
                    await asyncio.sleep(0.1)  # nodes are just starting

    async def _write(self, judge: LogJudge, cluster: Cluster) -> None:
        log = cluster.log(judge.name)
        pause_s = self._random.choice(APPEND_PAUSES_S)
        while not self._is_calm:
            await asyncio.sleep(self._random.random() * pause_s)
            value = judge.next_value()
            try:
                async with asyncio.timeout(APPEND_S):
                    judge.acknowledged(value, (await log.append(value)).position)
            except (LoomError, TimeoutError):
                pass  # it may have happened
            if self._random.random() < 0.02 and (position := judge.trim()):
                with suppress(LoomError):
                    await log.trim(position)

    async def _follow(self, judge: LogJudge, process: Process) -> None:
        cluster = await self._servers.connect(process, request_timeout_s=2.0)
        while True:
            try:
                async for item in cluster.log(judge.name).subscribe(judge.following, gaps=True):
                    judge.follow(item)
            except LoomError:
                await asyncio.sleep(0.05)

    async def _read(self, cluster: Cluster) -> None:
        for judge in self._logs:
            log = cluster.log(judge.name)
            head, tail = await log.head(), await self._tail(log)
            items = []
            if head <= tail:
                items = [item async for item in log.subscribe(head, tail, gaps=True)]
            judge.check_all(items, tail, may_lose=self._may_have_lost)

    async def _tail(self, log: Log) -> Glsn:
        """Ask again after a time-out: a connection that a fault broke may still be half open, and
        a recovery needs it. Whoever calls this limits how long that may take."""
        while True:
            with suppress(Timeout):
                return await log.tail()

    # ---- the operator

    async def _operate(self, cluster: Cluster) -> None:
        """Drain nodes, and give up or replace those whose disks are lost, at any time."""
        while not self._is_calm:
            await asyncio.sleep(self._random.random())
            name = self._random.choice(self._servers.node_names)
            with suppress(LoomError):
                await self._change(cluster, name, _node_id(name))
            if self._is_switched:
                with suppress(LoomError):
                    await self._switch(cluster)

    async def _switch(self, cluster: Cluster) -> None:
        name = self._switches.choice(self._logs).name
        size = self._switches.randint(self._replicas, self._servers.shape.nodes)
        if len((await cluster.log(name).describe()).segments) < SEGMENTS_MAX:
            await cluster.switch_log(name, nodeset=size)

    async def _change(self, cluster: Cluster, name: str, node: NodeId) -> None:
        if self._is_empty(name):
            changes = cluster.replace_node, cluster.mark_unrecoverable
            await self._random.choice(changes)(node)
        elif name in self._draining:
            await cluster.undrain_node(node)
            self._draining.discard(name)
        elif self._random.random() < 0.5:
            self._draining.add(name)
            await cluster.drain_node(node)

    async def _become_healthy(self, cluster: Cluster) -> None:
        """Do what the status asks for until it shows nothing else than what may be lost."""
        dead = self._choose_dead()
        found: list[tuple[str, str]] = []
        try:
            async with asyncio.timeout(HEALTHY_S - 5.0):
                while True:
                    with suppress(LoomError):
                        status = await cluster.status()
                        found = [(c.kind, c.sentence) for c in status.conditions]
                        if not dead and self._is_well(status):
                            return
                        await self._help(cluster, status, dead)
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise AssertionError(f"still not healthy: {found}; {dead} are removed") from None

    def _choose_dead(self) -> set[str]:
        """Choose nodes that are removed, and whose numbers are used again."""
        dead: set[str] = set()
        for name in filter(self._is_empty, self._servers.node_names):
            left = self._servers.shape.nodes - len(dead) - 1
            is_down = not self._sim.host(name).running
            if is_down and left >= self._replicas and self._random.random() < 0.5:
                dead.add(name)
            else:
                self._start(self._sim.host(name))
        return dead

    def _is_well(self, status: ClusterStatus) -> bool:
        found = {condition.kind for condition in status.conditions} - {"clock-skew", "node-avoided"}
        if not self._may_have_lost:
            return not found and not status.rebuilds
        is_left = found <= {"data-lost"} and not status.rebuilds
        return is_left and not self._judge.missing(lost=False)  # copies of others may be under way

    async def _help(self, cluster: Cluster, status: ClusterStatus, dead: set[str]) -> None:
        known = {node.id: node for node in status.nodes}
        for name in [n for n in self._servers.node_names if n not in dead]:
            self._start(self._sim.host(name))  # it may have ended because the old one was known
        for name in sorted(dead):
            node = _node_id(name)
            if node not in known:
                dead.discard(name)
                self._start(self._sim.host(name))
            elif not known[node].alive:
                with suppress(InvalidArgument, NotFound):
                    await cluster.remove_node(node, force=True)
        for condition in status.conditions:
            node = condition.node or 0
            if condition.kind == "node-replacement" and f"vsn-{node}" not in dead:
                with suppress(InvalidArgument):
                    await cluster.replace_node(node)
        for name in sorted(self._draining):
            info = known.get(_node_id(name))
            is_drained = info is None or not info.replicas
            if is_drained or self._random.random() < 0.1:
                with suppress(NotFound):
                    await cluster.undrain_node(_node_id(name))
                self._draining.discard(name)


def _node_id(name: str) -> NodeId:
    return int(name.removeprefix("vsn-"))
