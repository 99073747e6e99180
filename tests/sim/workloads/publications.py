"""Publishing under faults: writers that die at any moment, and several processes that are the same.

Each process stages rows of its own for the number that is next, and publishes them; the other
processes of that writer do the same. In the end every number of a writer is there once, with the
rows of one process, whole and in order, whatever was killed, paused, cut off, sealed, moved or
trimmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from sim_cluster import Shape, SimCluster

from loomlog.client.append.appender import positions
from loomlog.client.log import Log
from loomlog.client.publish.writer import Published, Writer
from loomlog.errors import (
    AppendUnknown,
    InvalidArgument,
    LoomError,
    Retryable,
    Sealed,
    Trimmed,
)
from loomlog.testing.history import History
from loomlog.testing.sim.faults import FaultPlan, Nemesis
from loomlog.testing.sim.host import Host, Process
from loomlog.testing.sim.simulation import Simulation
from loomlog.types import Position
from workloads.cluster import (
    ENDED_WITHIN_S,
    HEALED_WITHIN_S,
    LOG,
    SET_UP_WITHIN_S,
    SLOWNESS,
    TROUBLE_S,
    Client,
    Run,
    finish,
)
from workloads.operators import LEGAL_WORDS
from workloads.protocols import SWITCHED, switch

WRITERS: Final = {"one-0": "one", "one-1": "one", "two-0": "two"}  # hosts and who they are
ROWS: Final = (1, 3, 40)
PAUSE_MAX_S: Final = 0.05
CLOCK_ERRORS_S: Final = (0.0, -2 * 86_400.0, 2 * 86_400.0)  # more than a writer may be silent
Refusals: TypeAlias = tuple[type[LoomError], ...]
REFUSALS: Final[Refusals] = (InvalidArgument,)  # of rows that are too old
STRUCK_EVERY_S: Final = (0.1, 0.5, 2.0)  # on average


def publishing(sim: Simulation, plan: FaultPlan) -> History:
    """Run the workload of this module."""
    return _publishing(sim, plan, "ordered")


def publishing_chained(sim: Simulation, plan: FaultPlan) -> History:
    """Publish to a log that starts as `chained` and may be switched meanwhile."""
    return _publishing(sim, plan, "chained")


def publishing_copyset(sim: Simulation, plan: FaultPlan) -> History:
    """Publish to a log that starts as `copyset`."""
    return _publishing(sim, plan, "copyset")


def publishing_clocks(sim: Simulation, plan: FaultPlan) -> History:
    """Publish with writers and a trimmer whose clocks are days apart."""
    random = sim.world.random
    for name in (*WRITERS, "trimmer"):
        sim.host(name).set_wall_clock(random.choice(CLOCK_ERRORS_S))
    protocol = random.choice(("ordered", "chained", "copyset"))
    return _publishing(sim, plan, protocol, refusals=(*REFUSALS, Trimmed))


def _publishing(
    sim: Simulation, plan: FaultPlan, protocol: str, refusals: Refusals = REFUSALS
) -> History:
    random = sim.world.random
    shape = Shape.draw(random, power_losses="crash" in plan.kinds)
    servers = SimCluster(sim, shape)
    servers.slow_down(random.choice(SLOWNESS), random.choice(SLOWNESS))
    nemesis = Nemesis(sim, plan, servers.servers, nodes=servers.node_names)
    with shape.bounds.in_force():
        return _run(sim, servers, nemesis, protocol, refusals)


def _run(
    sim: Simulation, servers: SimCluster, nemesis: Nemesis, protocol: str, refusals: Refusals
) -> History:
    run = Run(sim, servers, protocol)
    servers.start()
    finish(sim, [sim.host("admin").start(run.create_log)], SET_UP_WITHIN_S)
    identities = [_Identity(run, sim.host(host), name, refusals) for host, name in WRITERS.items()]
    for identity in identities:
        identity.host.start(identity.work)
    client = Client(run, "client")
    others = [sim.host(client.name).start(client.work), sim.host("trimmer").start(run.trim)]
    others.append(sim.host("operator").start(run.operate))
    if protocol != "ordered" and run.random.random() < SWITCHED:
        others.append(sim.host("switcher").start(partial(switch, run)))
    sim.host("reader").start(run.follower("reader", from_start=True))

    striker = _Striker(sim, identities)
    nemesis.start()
    striker.start()
    sim.run(sim.world.now + TROUBLE_S)
    run.calm = True
    striker.stop()
    nemesis.stop()
    finish(sim, others, ENDED_WITHIN_S)
    sim.run(lambda: not any(i.host.running for i in identities), timeout_s=ENDED_WITHIN_S)

    finish(sim, [sim.host("admin").start(run.healed)], HEALED_WITHIN_S)
    finish(sim, [i.host.start(i.last_words) for i in identities], ENDED_WITHIN_S)
    finish(sim, [sim.host("final-0").start(run.final("final-0"))], 30.0)
    sim.run(run.all_caught_up, timeout_s=30.0)
    for name in set(WRITERS.values()):
        _check_numbers(run.history, name)
    return run.history


class _Identity:
    """A host on which a writer runs, one life after the other."""

    def __init__(self, run: Run, host: Host, writer: str, refusals: Refusals) -> None:
        self.host = host
        self._refusals = refusals
        self._run = run
        self._writer = writer
        self._count = 0

    async def work(self, process: Process) -> None:
        random = self._run.random
        async with await self._run.connect(process) as cluster:
            log = cluster.log(LOG)
            while not self._run.calm:
                await self._publish_next(log)
                await asyncio.sleep(random.random() * PAUSE_MAX_S)

    async def last_words(self, process: Process) -> None:
        """Publish once more at the end; it must succeed."""
        async with await self._run.connect(process) as cluster:
            while not await self._publish_next(cluster.log(LOG)):  # noqa: ASYNC110 - between attempts
                await asyncio.sleep(0.05)

    async def _publish_next(self, log: Log) -> bool:
        try:
            writer = await log.writer(self._writer)
            sequence = await writer.sequence() + 1
        except InvalidArgument:  # too few nodes are there for a staging log
            return False
        except LoomError as error:
            _tolerate(error)
            return False
        return await self._publish(log, writer, sequence)

    async def _publish(self, log: Log, writer: Writer, sequence: int) -> bool:
        import pyarrow as pa

        history = self._run.history
        self._count += 1
        op = f"{self.host.name}-{self._count}"
        count = self._run.random.choice(ROWS)
        values = [f"{self._writer}/{sequence}/{op}/{i}".encode() for i in range(count)]
        history.invoke(self.host.name, op, values)
        try:
            staged = await log.stage(pa.record_batch({"value": pa.array(values, pa.binary())}))
        except (Retryable, Sealed, AppendUnknown):
            history.fail(op)
            return False
        try:
            published = await writer.publish(sequence, staged)
        except self._refusals:  # others published twice meanwhile: these rows are too old
            history.fail(op)
            return False
        except LoomError as error:
            _tolerate(error)
            return False
        await self._note(log, op, values, published)
        return True

    async def _note(self, log: Log, op: str, values: list[bytes], published: Published) -> None:
        """Note the rows, ours or those of a faster process."""
        first = published.first
        if not first:
            return
        try:
            entry = await log.read(first)
        except (Retryable, Trimmed):
            return
        if entry.value != values[0]:
            self._run.history.fail(op)
            return
        assert published.last == first + len(values) - 1, f"{op}: {published}"
        self._run.history.ack(op, list(positions(Position(*entry[:3]), len(values))))
        self._run.heard_of(published.last)


def _tolerate(error: LoomError) -> None:
    """Accept errors that may occur during faults; raise others."""
    if not isinstance(error, Retryable) and not any(words in str(error) for words in LEGAL_WORDS):
        raise error


class _Striker:
    """Kills, pauses and starts the writers' processes."""

    def __init__(self, sim: Simulation, identities: list[_Identity]) -> None:
        self._world = sim.world
        self._random = sim.world.random
        self._identities = identities
        self._every_s = self._random.choice(STRUCK_EVERY_S)
        self._active = False

    def start(self) -> None:
        self._active = True
        self._next(self._strike)

    def stop(self) -> None:
        self._active = False

    def _next(self, act: Callable[[], None]) -> None:
        self._world.after(self._random.expovariate(1.0 / self._every_s), act)

    def _strike(self) -> None:
        if not self._active:
            return
        struck = self._random.choice(self._identities)
        if not struck.host.running:
            struck.host.start(struck.work)
        elif self._random.random() < 0.3:
            struck.host.pause(self._random.random() * 2.0)
        else:
            struck.host.kill()
            if self._random.random() < 0.8:
                struck.host.start(struck.work)
        self._next(self._strike)


def _check_numbers(history: History, writer: str) -> None:
    """Check that each number is there once, by one process, in order. (The history checks its
    rows.)"""
    chosen: dict[int, bytes] = {}
    last = 0
    for *_, value in history.readers["final-0"].seen:
        name, *rest = value.split(b"/")
        if name.decode() != writer:
            continue
        sequence, op = int(rest[0]), rest[1]
        assert sequence >= last, f"{writer}: {sequence} stands behind {last}"
        assert chosen.setdefault(sequence, op) == op, f"{writer}: {sequence} was published twice"
        last = sequence
