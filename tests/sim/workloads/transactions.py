"""Transactions under faults: writers that die at any moment, logs of all protocols, and readers.

Each writer appends entries that name their transaction and all its parts to several logs at once.
Witnesses read one log; when they see a part, they read the other logs up to the tails that those
have then, and must find all other parts. In the end every transaction is there as a whole or not at
all, those that were acknowledged are at their positions, and those that failed for certain are not
there.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from typing import Final

from sim_cluster import Shape, SimCluster

from loomlog.client.cluster import Cluster
from loomlog.client.transactions.transaction import Transaction
from loomlog.errors import AppendUnknown, NotFound, Retryable, RolledBack, Sealed
from loomlog.testing.history import History
from loomlog.testing.sim.faults import FaultPlan, Nemesis
from loomlog.testing.sim.host import Host, Process
from loomlog.testing.sim.simulation import Simulation
from workloads.cluster import (
    ENDED_WITHIN_S,
    HEALED_WITHIN_S,
    SET_UP_WITHIN_S,
    SLOWNESS,
    Run,
    finish,
)

PROTOCOLS: Final = ("ordered", "chained", "copyset")
LOGS_MAX: Final = 3
WRITERS: Final = 2
WITNESSES: Final = 2
TROUBLE_S: Final = 2.5
PAUSE_MAX_S: Final = 0.05
LIVES_S: Final = (0.05, 0.3, 1.0)  # of a writer, on average
ABORTED: Final = (Retryable, Sealed, NotFound, RolledBack)  # for certain


def transactions(sim: Simulation, plan: FaultPlan) -> History:
    """Run the workload of this module."""
    random = sim.world.random
    shape = Shape.draw(random, power_losses="crash" in plan.kinds)
    return run_in(shape, sim, plan, Transactions)


def run_in(shape: Shape, sim: Simulation, plan: FaultPlan, kind: type[Transactions]) -> History:
    random = sim.world.random
    servers = SimCluster(sim, shape)
    servers.slow_down(random.choice(SLOWNESS), random.choice(SLOWNESS))
    nemesis = Nemesis(sim, plan, servers.servers, nodes=servers.node_names)
    with shape.bounds.in_force():
        return kind(sim, servers).run(nemesis)


class Transactions:
    """Writers and witnesses of transactions."""

    def __init__(self, sim: Simulation, servers: SimCluster) -> None:
        self._sim = sim
        self._random = random = sim.world.random
        self._servers = servers
        self._run = Run(sim, servers)
        count = random.randint(2, LOGS_MAX)
        self._logs = {f"log-{i}": random.choice(PROTOCOLS) for i in range(count)}
        self._begun = 0
        self._acked: dict[str, dict[str, int]] = {}  # positions of each transaction, by log
        self._failed: set[str] = set()
        self._passed: list[tuple[str, int, dict[str, frozenset[str]]]] = []  # by witnesses

    def run(self, nemesis: Nemesis) -> History:
        sim, run = self._sim, self._run
        self._servers.start()
        finish(sim, [sim.host("admin").start(self._create_logs)], SET_UP_WITHIN_S)
        writers = [sim.host(f"writer-{i}") for i in range(WRITERS)]
        for writer in writers:
            writer.start(self._write)
        witnesses = [sim.host(f"witness-{i}").start(self._witness) for i in range(WITNESSES)]
        nemesis.start()
        self._strike(writers)
        sim.run(sim.world.now + TROUBLE_S)
        run.calm = True
        nemesis.stop()
        for writer in writers:
            if writer.running and self._random.random() < 0.5:
                writer.kill()
        sim.run(lambda: not any(w.running for w in writers), timeout_s=ENDED_WITHIN_S)
        finish(sim, witnesses, ENDED_WITHIN_S)
        finish(sim, [sim.host("admin").start(run.healed)], HEALED_WITHIN_S)
        finish(sim, [sim.host("last").start(partial(self._write, once=True))], ENDED_WITHIN_S)
        finish(sim, [sim.host("final").start(self._judge)], ENDED_WITHIN_S)
        return run.history

    def _strike(self, writers: list[Host]) -> None:
        if self._run.calm:
            return
        writer = self._random.choice(writers)
        if writer.running and self._random.random() < 0.3:
            writer.pause(self._random.random() * 2.0)
        elif writer.running:
            writer.kill()
        if not writer.running:
            writer.start(self._write)
        after_s = self._random.expovariate(1.0 / self._random.choice(LIVES_S))
        self._sim.world.after(after_s, partial(self._strike, writers))

    async def _create_logs(self, process: Process) -> None:
        async with await self._run.connect(process) as cluster:
            while not await self._run._all_alive(cluster):  # noqa: ASYNC110 - it can only be asked
                await asyncio.sleep(0.05)
            for name, protocol in self._logs.items():
                await cluster.create_log(name, protocol, replicas=self._servers.shape.replicas)

    async def _write(self, process: Process, *, once: bool = False) -> None:
        async with await self._run.connect(process) as cluster:
            while once or not self._run.calm:
                done = await self._append(cluster)
                if once and done:
                    return
                await asyncio.sleep(self._random.random() * PAUSE_MAX_S)

    async def _append(self, cluster: Cluster) -> bool:
        self._begun += 1
        name = f"t{self._begun}"
        logs = self._random.sample(list(self._logs), self._random.randint(2, len(self._logs)))
        transaction: Transaction = cluster.transaction()
        for log in logs:
            for row in range(self._random.choice((1, 1, 3))):
                transaction.append(log, f"{name}/{row}/{','.join(logs)}".encode())
        try:
            await transaction.commit()
        except AppendUnknown:
            return False
        except ABORTED:
            self._failed.add(name)
            return False
        places = {log: at[0].position for log, at in transaction.positions.items()}
        self._acked[name] = places
        return True

    # ---- readers

    async def _witness(self, process: Process) -> None:
        """Look at the other logs as soon as a part is seen in one."""
        cluster = await self._run.connect(process)
        log = self._random.choice(list(self._logs))
        start, passed = 1, dict[str, frozenset[str]]()
        while not self._run.calm:
            try:
                stop = await cluster.log(log).tail()
                seen = await self._parts(cluster, log, start, stop)
                others = {part for logs in seen.values() for part in logs} - {log}
                found = {
                    other: await self._parts(cluster, other, 1, await cluster.log(other).tail())
                    for other in sorted(others)
                }
                for name, logs in seen.items():
                    for other in logs - {log}:
                        assert name in found[other], f"{name} is in {log}, but not in {other}"
                start = stop + 1
                passed |= seen
            except (Retryable, RolledBack):
                pass
            await asyncio.sleep(self._random.random() * PAUSE_MAX_S)
        self._passed.append((log, start, passed))

    async def _parts(
        self, cluster: Cluster, log: str, start: int, stop: int
    ) -> dict[str, frozenset[str]]:
        """Return the transactions that a log has, and the logs of each."""
        found: dict[str, frozenset[str]] = {}
        if start <= stop:
            async for entry in cluster.log(log).subscribe(start, stop):
                name, _, logs = entry.value.decode().split("/")
                found[name] = frozenset(logs.split(","))
        return found

    async def _judge(self, process: Process) -> None:
        async with await self._run.connect(process) as cluster:
            seen: dict[str, dict[str, int]] = defaultdict(dict)
            rows: dict[str, set[str]] = {}
            for log in self._logs:
                tail = await cluster.log(log).tail()
                async for entry in cluster.log(log).subscribe(1, tail):
                    name, row, logs = entry.value.decode().split("/")
                    rows[name] = set(logs.split(","))
                    assert row != "0" or log not in seen[name], f"{name} is twice in {log}"
                    seen[name].setdefault(log, entry.position)
                    again = await cluster.log(log).read(entry.position)
                    assert again.value == entry.value
        for name, places in seen.items():
            assert set(places) == rows[name], f"{name} is only in {set(places)}"
            assert name not in self._failed, f"{name} is seen, though it failed"
        for log, end, passed in self._passed:
            there = {name for name, places in seen.items() if places.get(log, end) < end}
            assert there == set(passed), f"a reader of {log} missed {there ^ set(passed)}"
        for name, places in self._acked.items():
            assert seen.get(name) == places, f"{name} was acknowledged at {places}"
