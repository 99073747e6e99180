"""The log under faults: clients append, read, follow, trim and make other logs, and an
operator moves things about meanwhile.

The story of a run: a cluster comes up and gets a log; clients work on it while the nemesis breaks
things; then everything must heal by itself within `HEALED_WITHIN_S`, every client must get one more
append acknowledged, every follower must reach the tail, two final readers read all there is, and
all replicas of a stream hold the same.

All hosts share this process, so the workload knows at once what each of them saw: trims take
only what every reader has passed.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

from keepers import stream_records
from sim_cluster import Shape, SimCluster

from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.errors import AppendUnknown, LoomError, NotFound, Retryable, RolledBack, Trimmed
from loomlog.metadata.ordered.records import StreamRecords
from loomlog.node.ordered.service import OrderedService
from loomlog.testing.history import History
from loomlog.testing.sim.faults import FaultPlan, Nemesis
from loomlog.testing.sim.host import Main, Process
from loomlog.testing.sim.simulation import Simulation
from loomlog.types import Entry, Gap, Glsn, Llsn, Position, StreamId
from loomlog.wire.info import LogInfo, StreamInfo
from workloads.operators import RestlessOperator
from workloads.replicas import check_replicas_alike

LOG = "log"
TROUBLE_S = 3.0  # how long the nemesis is at work
CLIENTS_MAX = 3
OPERATIONS_MAX = 20  # of a worker
WORKERS = 3  # per client, side by side
PAUSES_MAX_S = (0.02, 0.1, 0.3)
SLOWNESS = (1.0, 1.0, 10.0, 50.0)  # of network and disks: the slower, the more is under way
TRIM_PAUSE_MAX_S = 1.5
SET_UP_WITHIN_S = 30.0
ENDED_WITHIN_S = 60.0  # operations that were under way when the faults stopped
HEALED_WITHIN_S = 60.0
HOLE_TIMEOUT_S = 0.2  # so short that writers are overtaken now and then


def cluster(sim: Simulation, plan: FaultPlan) -> History:
    """Run the workload of this module."""
    random = sim.world.random
    shape = Shape.draw(random, power_losses="crash" in plan.kinds)
    servers = SimCluster(sim, shape)
    servers.slow_down(random.choice(SLOWNESS), random.choice(SLOWNESS))
    nemesis = Nemesis(sim, plan, servers.servers, nodes=servers.node_names)
    with shape.bounds.in_force():
        return run_cluster(sim, servers, nemesis)


Work: TypeAlias = "Callable[[Run, Process], Awaitable[None]]"


class Troublemaker(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None:
        """Stop: repair what is broken."""


def run_cluster(
    sim: Simulation,
    servers: SimCluster,
    *nemeses: Troublemaker,
    clients_max: int = CLIENTS_MAX,
    trouble_s: float = TROUBLE_S,
    beside: Mapping[str, Work] | None = None,
    protocol: str = "ordered",
    mortals: Callable[[Run], Sequence[Troublemaker]] = lambda run: (),
) -> History:
    """Run the scenario of this module. `beside` are more hosts, which run until all is calm;
    `protocol`: the first one of the log; `mortals`: clients that die."""
    run = Run(sim, servers, protocol)
    nemeses += tuple(mortals(run))
    random = run.random
    servers.start()
    finish(sim, [sim.host("admin").start(run.create_log)], SET_UP_WITHIN_S)
    clients = [
        Client(run, f"client-{i}") for i in range(random.randint(clients_max - 1, clients_max))
    ]
    working = [sim.host(client.name).start(client.work) for client in clients]
    for i in range(random.randint(1, 2)):
        sim.host(f"reader-{i}").start(run.follower(f"reader-{i}", from_start=i == 0))
    if random.random() < 0.5:
        working.append(sim.host("trimmer").start(run.trim))
    if random.random() < 0.3:
        working.append(sim.host("other").start(run.other_logs))
    if random.random() < 0.7:
        working.append(sim.host("operator").start(run.operate))

    for name, work in (beside or {}).items():
        working.append(sim.host(name).start(partial(work, run)))
    for nemesis in nemeses:
        nemesis.start()
    sim.run(sim.world.now + trouble_s)
    run.calm = True
    for nemesis in nemeses:
        nemesis.stop()
    finish(sim, working, ENDED_WITHIN_S)

    finish(sim, [sim.host("admin").start(run.healed)], HEALED_WITHIN_S)
    finish(sim, [sim.host(client.name).start(client.last_words) for client in clients], 30.0)
    finals = [sim.host(name).start(run.final(name)) for name in ("final-0", "final-1")]
    finish(sim, finals, 30.0)
    sim.run(run.all_caught_up, timeout_s=30.0)
    return run.history


def finish(sim: Simulation, processes: Iterable[Process], timeout_s: float) -> None:
    processes = list(processes)
    sim.run(lambda: all(process.finished for process in processes), timeout_s=timeout_s)


class Run:
    """The state that all hosts of a run share."""

    def __init__(self, sim: Simulation, servers: SimCluster, protocol: str = "ordered") -> None:
        self.protocol = protocol
        self.random = sim.world.random
        self.servers = servers
        self.history = History()
        self.calm = False  # the faults have stopped
        self.tail: Glsn = 0  # the highest position acknowledged or seen
        self.next_of: dict[str, Glsn] = {}  # what each follower waits for

    async def connect(self, process: Process) -> Cluster:
        random = self.random
        return await self.servers.connect(
            process,
            append_timeout_s=random.choice((2.0, 5.0)),
            request_timeout_s=2.0,
            connect_timeout_s=1.0,
            compression=random.choice(("none", "none", "lz4", "zstd")),
            append_batch_bytes=random.choice((256, 4096, 256 * 1024)),
            append_buffer_bytes_max=random.choice((1024, 64 * 1024 * 1024)),
            appends_in_flight_max=random.choice((1, 8)),
            read_ahead_bytes=random.choice((512, 4096, 8 * 1024 * 1024)),
            hole_timeout_s=HOLE_TIMEOUT_S,
        )

    def heard_of(self, position: Glsn) -> None:
        self.tail = max(self.tail, position)

    # ---- the log

    async def create_log(self, process: Process) -> None:
        shape = self.servers.shape
        async with await self.connect(process) as cluster:
            while not await self._all_alive(cluster):  # noqa: ASYNC110 - it can only be asked
                await asyncio.sleep(0.05)
            streams = 1 if self.protocol == "copyset" else shape.streams
            await cluster.create_log(
                LOG, protocol=self.protocol, streams=streams, replicas=shape.replicas
            )

    async def _all_alive(self, cluster: Cluster) -> bool:
        nodes = (await cluster.status()).nodes
        return sum(node.alive for node in nodes) == self.servers.shape.nodes

    async def healed(self, process: Process) -> None:
        """Wait until every stream runs, every node has what it should, and deleted logs are
        gone."""
        async with await self.connect(process) as cluster:
            while complaints := await self._complaints(cluster):
                process.loop.world.tell(process.host.name, f"not healed: {complaints}")
                await asyncio.sleep(0.1)

    async def _complaints(self, cluster: Cluster) -> list[str]:
        try:
            status = await cluster.status()
        except (Retryable, RolledBack) as error:
            return [str(error)]
        streams = [stream for log in status.logs for stream in log.streams]
        active = {log.segments[-1].id for log in status.logs}
        found = [
            f"stream {s.id} is {s.state}: {s.condition}"
            for s in streams
            if s.state != ("running" if s.segment in active and not s.removing else "sealed")
            or s.joining is not None
            or (s.protocol != "ordered" and s.condition)
        ]
        found += [
            f"{log.name} is switched: {log.switching}" for log in status.logs if log.switching
        ]
        for name, node in self.servers.nodes.items():
            ordered = node.protocols["ordered"]
            assert isinstance(ordered, OrderedService)
            number, held = int(name.removeprefix("vsn-")), set(ordered.held)
            wanted = {
                s.id
                for s in streams
                if s.protocol == "ordered" and number in {r.node for r in s.replicas}
            }
            if not wanted <= held:  # more is fine: a replaced replica leaves its data
                found.append(f"{name} has streams {sorted(held)}, not {sorted(wanted)}")
        leader = self.servers.leader
        if leader is None:
            return [*found, "no metadata repository leads"]
        return found + _left_over(stream_records(self.servers.repositories[leader]))

    # ---- readers

    def follower(self, name: str, *, from_start: bool) -> Main:
        async def main(process: Process) -> None:
            cluster = await self.connect(process)
            lowest = self.history.trimmed + 1
            start = lowest if from_start else self.random.randint(lowest, max(lowest, self.tail))
            slow = self.random.random() < 0.2
            self.history.reader(name, start)
            self.next_of[name] = start
            while True:
                try:
                    start = self.next_of[name]
                    async for item in cluster.log(LOG).subscribe(start, gaps=True):
                        self._see(name, item)
                        if slow and not self.calm:
                            await asyncio.sleep(self.random.random() * 0.02)
                except (Retryable, RolledBack):
                    await asyncio.sleep(0.05)

        return main

    def _see(self, name: str, item: Entry | Gap) -> None:
        self.history.see_entries(name, [item])
        last = item.last if isinstance(item, Gap) else item.position
        self.next_of[name] = last + 1
        if not (isinstance(item, Gap) and item.kind == "bridge"):  # that leads beyond the tail
            self.heard_of(last)

    def all_caught_up(self) -> bool:
        return all(following > self.tail for following in self.next_of.values())

    def final(self, name: str) -> Main:
        read = _read_entries if name.endswith("0") else _read_arrow

        async def main(process: Process) -> None:
            async with await self.connect(process) as cluster:
                log = cluster.log(LOG)
                head, tail = await log.head(), await log.tail()
                assert head <= self.history.trimmed + 1, f"the log begins at {head}"
                assert tail >= self.tail, f"the log ends at {tail}, {self.tail} was there"
                self.history.reader(name, head)
                if head <= tail:
                    async for item in read(log, head, tail):
                        self.history.see_entries(name, [item])
                self.history.final(name)
                info = await log.describe()
                check_segments(info, self.history.readers[name].seen)
                for stream in info.streams:
                    await self._read_stream(log, stream, self.history.readers[name].seen)

        return main

    async def _read_stream(
        self, log: Log, stream: StreamInfo, seen: list[tuple[Glsn, StreamId, Llsn, bytes]]
    ) -> None:
        """Check that every replica of a stream has what the whole log has of it."""
        expected = [sight for sight in seen if sight[1] == stream.id]
        if expected:
            first, last = expected[0][2], expected[-1][2]
            found = [
                (entry.position, entry.stream, entry.llsn, entry.value)
                async for entry in log.subscribe_stream(stream.id, first, last)
            ]
            assert found == expected, f"stream {stream.id} by itself: {found}, not {expected}"
            if stream.protocol == "ordered":
                await self._check_replicas(log, stream, first, last)

    async def _check_replicas(self, log: Log, stream: StreamInfo, first: Llsn, last: Llsn) -> None:
        while True:
            try:
                await check_replicas_alike(stream, first, last)
            except (Retryable, RolledBack, NotFound):  # it is still being moved
                await asyncio.sleep(0.1)
                streams = (await log.describe()).streams
                stream = next(found for found in streams if found.id == stream.id)
            else:
                return

    # ---- trims, other logs, operators

    async def operate(self, process: Process) -> None:
        cluster = await self.connect(process)
        operator = RestlessOperator(cluster, LOG, self.servers.shape.nodes, self.random)
        await operator.work(lambda: self.calm)

    async def trim(self, process: Process) -> None:
        cluster = await self.connect(process)
        while not self.calm:
            await asyncio.sleep(self.random.random() * TRIM_PAUSE_MAX_S)
            passed = min(min(self.next_of.values(), default=1) - 1, self.tail)
            if passed > self.history.trimmed and not self.calm:
                position = self.random.randint(self.history.trimmed + 1, passed)
                self.history.trim(position)
                try:
                    await cluster.log(LOG).trim(position)
                except (Retryable, RolledBack):
                    pass

    async def other_logs(self, process: Process) -> None:
        cluster = await self.connect(process)
        number = 0
        while not self.calm:
            number += 1
            name = f"other-{number}"
            try:
                await cluster.create_log(name, streams=self.random.randint(1, 2), replicas=2)
                async with asyncio.TaskGroup() as group:
                    following = group.create_task(self._follow_other(cluster.log(name)))
                    await self._use_other(cluster, name)
                    following.cancel()
            except* LoomError:
                await asyncio.sleep(0.1)

    async def _use_other(self, cluster: Cluster, name: str) -> None:
        at = await cluster.log(name).append(name.encode())
        assert at.position == 1, f"the first append to {name} is at {at}"
        await asyncio.sleep(self.random.random() * 0.5)
        if self.random.random() < 0.8:
            await cluster.delete_log(name)

    async def _follow_other(self, log: Log) -> None:
        """Follow the other log, which may be deleted meanwhile."""
        async for entry in log.subscribe():
            assert entry.value == log.name.encode(), f"{entry} in {log}"


class Client:
    """Appends, and reads here and there."""

    def __init__(self, run: Run, name: str) -> None:
        self.name = name
        self._run = run
        self._history = run.history
        self._count = 0
        self._pause_max_s = run.random.choice(PAUSES_MAX_S)
        self._padding = b"." * run.random.choice((0, 0, 50, 400))

    async def work(self, process: Process) -> None:
        async with await self._run.connect(process) as cluster:
            log = cluster.log(LOG)
            async with asyncio.TaskGroup() as group:
                for _ in range(WORKERS):
                    group.create_task(self._worker(log))

    async def last_words(self, process: Process) -> None:
        """Append once more at the end; it must be acknowledged."""
        async with await self._run.connect(process) as cluster:
            while not await self._append_many(cluster.log(LOG), 1):  # noqa: ASYNC110 - a pause between attempts
                await asyncio.sleep(0.05)

    async def _worker(self, log: Log) -> None:
        random = self._run.random
        for _ in range(OPERATIONS_MAX):
            if self._run.calm:
                return
            match random.choice(("burst", "burst", "many", "read")):
                case "burst":
                    await self._append_burst(log, random.choice((1, 1, 3, 12)))
                case "many":
                    await self._append_many(log, random.choice((1, 2, 5, 20)))
                case "read":
                    await self._read(log)
            await asyncio.sleep(random.random() * self._pause_max_s)

    # ---- appending

    async def _append_burst(self, log: Log, count: int) -> None:
        keyed = self._run.random.random() < 0.3
        ops = [self._invoke(1) for _ in range(count)]
        appends = [log.append(value, key=op.encode() if keyed else None) for op, (value,) in ops]
        for (op, _), append in zip(ops, appends, strict=True):
            await self._end(op, _one(append))

    async def _append_many(self, log: Log, count: int) -> bool:
        op, values = self._invoke(count)
        keys = [op.encode(), *[None] * (count - 1)] if self._run.random.random() < 0.3 else None
        return await self._end(op, log.append_many(values, keys))

    def _invoke(self, count: int) -> tuple[str, list[bytes]]:
        self._count += 1
        op = f"{self.name}-{self._count}"
        values = [f"{op}-{i}".encode() + self._padding for i in range(count)]
        self._history.invoke(self.name, op, values)
        return op, values

    async def _end(self, op: str, append: Awaitable[list[Position]]) -> bool:
        try:
            positions = await append
        except AppendUnknown:
            self._history.unknown(op)
            return False
        except LoomError:
            self._history.fail(op)
            return False
        self._history.ack(op, positions)
        self._run.heard_of(positions[-1].position)
        return True

    # ---- reading

    async def _read(self, log: Log) -> None:
        """Read an entry that is there unless it was trimmed."""
        history, tail = self._history, self._run.tail
        if tail <= history.trimmed:
            return
        position = self._run.random.randint(history.trimmed + 1, tail)
        try:
            entry = await log.read(position)
        except Trimmed:
            assert position <= history.trimmed, f"{position} was not trimmed"
        except NotFound:
            self._saw(position, Gap(position, position, "hole"))
        except (Retryable, RolledBack):
            pass
        else:
            self._saw(position, entry)

    def _saw(self, position: Glsn, item: Entry | Gap) -> None:
        self._count += 1
        reader = f"{self.name}-read-{self._count}"
        self._history.reader(reader, position)
        self._history.see_entries(reader, [item])


def check_segments(info: LogInfo, seen: list[tuple[Glsn, StreamId, Llsn, bytes]]) -> None:
    """Check that segments are contiguous and that each entry is in a stream of its segment."""
    ends = [segment.end for segment in info.segments]
    starts = [segment.start for segment in info.segments]
    assert starts[0] <= info.head, f"{info.segments}"
    assert starts[1:] == [end + 1 for end in ends if end is not None], f"{info.segments}"
    segment_of = {stream.id: stream.segment for stream in info.streams}
    for position, stream, *_ in seen:
        holder = info.segments[bisect_right(starts, position) - 1]
        assert segment_of[stream] == holder.id, f"{position} is in stream {stream}, not in {holder}"


def _left_over(records: StreamRecords) -> list[str]:
    """Return records of operations that neither finished nor were undone."""
    logs, abandoned = records.catalog.logs.values(), records.abandoned.values()
    left = [stream for stream in abandoned if stream.holders or not records.counts(stream)]
    return [
        *(f"{log.name} is still being created or deleted" for log in logs if log.unfinished),
        *(f"stream {s.stream_id} is on nodes {s.holders}" for s in left),
    ]


async def _one(append: Awaitable[Position]) -> list[Position]:
    return [await append]


async def _read_entries(log: Log, head: Glsn, tail: Glsn) -> AsyncIterator[Entry | Gap]:
    async for item in log.subscribe(head, tail, gaps=True):
        yield item


async def _read_arrow(log: Log, head: Glsn, tail: Glsn) -> AsyncIterator[Entry | Gap]:
    async for batch in log.subscribe_arrow(head, tail, gaps=True):
        if isinstance(batch, Gap):
            yield batch
            continue
        columns: list[list[Any]] = [
            batch.column(name).to_pylist() for name in ("position", "stream", "llsn", "value")
        ]
        for position, stream, llsn, value in zip(*columns, strict=True):
            yield Entry(position, stream, llsn, 0, None, value)
