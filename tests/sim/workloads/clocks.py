"""A log with a short retention, while clocks jump in both directions and servers fail.

Any metadata repository and up to half of the storage nodes may have a wrong clock at any time, and
clients all the time. Yet no entry may be trimmed that is younger than the retention, by its
timestamp or by when it was appended; and when all clocks are right again, what is too old must go.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from sim_cluster import Shape, SimCluster

from loomlog.client.append.appender import GatheredBatch
from loomlog.errors import LoomError, Retryable
from loomlog.metadata.logs.admin import Admin
from loomlog.testing.history import History, OpId
from loomlog.testing.sim.determinism import WALL_CLOCK_START_S
from loomlog.testing.sim.faults import FaultPlan, Nemesis
from loomlog.testing.sim.host import Process
from loomlog.testing.sim.simulation import Simulation
from loomlog.types import Glsn
from workloads.cluster import (
    ENDED_WITHIN_S,
    HEALED_WITHIN_S,
    LOG,
    SET_UP_WITHIN_S,
    SLOWNESS,
    Client,
    Run,
    finish,
)

RETENTIONS_S = (1, 1, 2)
TROUBLE_S = 5.0
CLIENTS = 3
REPLICATED = 0.3  # of the runs: with several metadata repositories
JUMPS_S = (0.5, 5.0, 60.0, 3600.0, 86_400.0)  # about so far
JUMP_EVERY_S = 0.4  # on average
SMALL_ERROR_S = 0.01  # of a clock that is right
GONE_WITHIN_S = 60.0


def clocks(sim: Simulation, plan: FaultPlan) -> History:
    """Run the workload of this module on an `ordered` log."""
    return _run(sim, plan, "ordered")


def clocks_chained(sim: Simulation, plan: FaultPlan) -> History:
    return _run(sim, plan, "chained")


def clocks_copyset(sim: Simulation, plan: FaultPlan) -> History:
    return _run(sim, plan, "copyset")


def _run(sim: Simulation, plan: FaultPlan, protocol: str) -> History:
    random = sim.world.random
    shape = replace(
        Shape.draw(random, power_losses="crash" in plan.kinds),
        metadata=3 if random.random() < REPLICATED else 1,
        leader_silence_s=random.choice((0.3, 0.8)),
        retention_interval_s=random.choice((0.05, 0.3)),
    )
    servers = SimCluster(sim, shape)
    servers.slow_down(random.choice(SLOWNESS), random.choice(SLOWNESS))
    run = Run(sim, servers, protocol)
    judge = _Judge(run, random.choice(RETENTIONS_S))
    run.history = judge.history
    directions = random.choice(((1.0,), (-1.0,), (1.0, -1.0)))
    jumps = ClockNemesis(sim, servers, directions)
    nemesis = Nemesis(sim, replace(plan, kinds=_without_clock(plan)), servers.servers)
    with shape.bounds.in_force(), judge.watching():
        _story(sim, run, judge, jumps, nemesis)
    return judge.history


def _without_clock(plan: FaultPlan) -> tuple[str, ...]:
    """Return the faults without jumps of the monotonic clock, which would move both clocks."""
    return tuple(kind for kind in plan.kinds if kind != "clock")


def _story(sim: Simulation, run: Run, judge: _Judge, jumps: ClockNemesis, nemesis: Nemesis) -> None:
    clients = [Client(run, f"client-{i}") for i in range(CLIENTS)]
    jumps.set_up([client.name for client in clients])
    run.servers.start()
    finish(sim, [sim.host("admin").start(run.create_log)], SET_UP_WITHIN_S)
    finish(sim, [sim.host("admin").start(judge.set_retention)], SET_UP_WITHIN_S)
    working = [sim.host(client.name).start(client.work) for client in clients]
    for trouble in (jumps, nemesis):
        trouble.start()
    sim.run(sim.world.now + TROUBLE_S)
    run.calm = True
    for trouble in (nemesis, jumps):
        trouble.stop()
    finish(sim, working, ENDED_WITHIN_S)
    finish(sim, [sim.host("admin").start(run.healed)], HEALED_WITHIN_S)
    finish(sim, [sim.host("admin").start(judge.keep_everything)], SET_UP_WITHIN_S)
    finals = [sim.host(name).start(run.final(name)) for name in ("final-0", "final-1")]
    finish(sim, finals, 30.0)
    if not jumps.any_ahead:
        finish(sim, [sim.host("admin").start(judge.set_retention)], SET_UP_WITHIN_S)
        finish(sim, [sim.host("admin").start(judge.is_empty)], GONE_WITHIN_S)
    judge.check()


class ClockNemesis:
    """Sets wall clocks. More than half of the nodes, and the admin, always have the right time."""

    def __init__(self, sim: Simulation, servers: SimCluster, directions: Sequence[float]) -> None:
        self._sim = sim
        self._servers = servers
        self._random = sim.world.random
        self._directions = directions
        self._victims: list[str] = []
        self._active = False
        self.any_ahead = False  # what was stamped then stays for long

    def set_up(self, clients: Sequence[str]) -> None:
        """Set the clocks of clients wrong; they only stamp what the clients append."""
        nodes = self._servers.node_names
        unreliable = self._random.sample(nodes, len(nodes) // 2)
        self._victims = [*self._servers.metadata_names, *unreliable]
        for name in (*self._servers.servers, *clients, "admin", "final-0", "final-1"):
            self._sim.host(name).set_wall_clock(self._random.uniform(0.0, SMALL_ERROR_S))
        for name in clients[1:]:
            if self._random.random() < 0.5:
                self._set_wrong(name)

    def start(self) -> None:
        self._active = True
        self._next()

    def stop(self) -> None:
        """Set all clocks right."""
        self._active = False
        for name in self._victims:
            self._sim.host(name).set_wall_clock(0.0)

    def _next(self) -> None:
        self._sim.world.after(self._random.expovariate(1.0 / JUMP_EVERY_S), self._act)

    def _act(self) -> None:
        if self._active:
            victim = self._random.choice(self._victims)
            if self._random.random() < 0.3:
                self._sim.host(victim).set_wall_clock(0.0)
            else:
                self._set_wrong(victim)
            self._next()

    def _set_wrong(self, name: str) -> None:
        error_s = self._random.choice(JUMPS_S) * self._random.uniform(0.5, 1.5)
        error_s *= self._random.choice(self._directions)
        self.any_ahead |= error_s > 0
        self._sim.host(name).set_wall_clock(error_s)


@dataclass(frozen=True, slots=True)
class _Trim:
    position: Glsn
    at_s: float  # by a clock that is right


class _TimedHistory(History):
    """Knows the timestamps of what is appended, and when that was."""

    def __init__(self, true_s: Callable[[], float]) -> None:
        super().__init__()
        self._true_s = true_s
        self.stamped_s: dict[OpId, float] = {}  # or a moment before
        self.invoked_s: dict[OpId, float] = {}

    def invoke(
        self, client: str, op: OpId, values: Sequence[bytes], expected: Glsn | None = None
    ) -> None:
        super().invoke(client, op, values, expected)
        self.stamped_s[op] = time.time()
        self.invoked_s[op] = self._true_s()

    def joined(self, batch: GatheredBatch) -> None:
        """Note that single appends have the timestamp of the batch that they join, which is
        earlier."""
        for value in batch.values:
            if (append := self.owner(value)) is not None:
                self.stamped_s[append.op] = batch.timestamp_us / 1e6


class _Judge:
    """Sets the retention, and sees what it takes."""

    def __init__(self, run: Run, retention_s: int) -> None:
        self.history = _TimedHistory(self._true_s)
        self._run = run
        self._retention_s = retention_s
        self._trims: list[_Trim] = []

    def _true_s(self) -> float:
        return WALL_CLOCK_START_S + self._run.servers.sim.world.now

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note every trim when it is decided, and every timestamp."""
        trim: Callable[..., Any] = Admin._trim
        encode: Callable[..., Any] = GatheredBatch.encode

        def noted_batch(batch: GatheredBatch, *args: Any) -> Any:
            self.history.joined(batch)
            return encode(batch, *args)

        async def noted(admin: Admin, name: str, position: Glsn) -> Any:
            self._trims.append(_Trim(position, self._true_s()))
            self.history.trim(position)
            return await trim(admin, name, position)

        with (
            patch.object(Admin, "_trim", noted),
            patch.object(GatheredBatch, "encode", noted_batch),
        ):
            yield

    async def set_retention(self, process: Process) -> None:
        await self._set(process, self._retention_s)

    async def keep_everything(self, process: Process) -> None:
        await self._set(process, None)

    async def _set(self, process: Process, retention_s: int | None) -> None:
        async with await self._run.connect(process) as cluster:
            while True:
                try:
                    await cluster.log(LOG).set_retention(retention_s)
                except Retryable:
                    await asyncio.sleep(0.1)
                else:
                    return

    async def is_empty(self, process: Process) -> None:
        """Wait until all is gone that was there when the faults stopped."""
        async with await self._run.connect(process) as cluster:
            log = cluster.log(LOG)
            while not await self._is_past(log.head):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.1)

    async def _is_past(self, head: Callable[[], Any]) -> bool:
        try:
            return bool(await head() > self._run.tail)
        except LoomError:
            return False

    def check(self) -> None:
        for op, append in self.history.appends.items():
            for at in append.positions or ():
                self._check(op, at.position)

    def _check(self, op: OpId, position: Glsn) -> None:
        covering = (trim for trim in self._trims if trim.position >= position)
        trim = next(covering, None)
        since_s = max(self.history.stamped_s[op], self.history.invoked_s[op])
        kept_until_s = since_s + self._retention_s
        if trim is not None and trim.at_s + SMALL_ERROR_S < kept_until_s:
            raise AssertionError(
                f"{op} at {position} was trimmed {kept_until_s - trim.at_s:.3f} s early, by a trim "
                f"to {trim.position}"
            )
