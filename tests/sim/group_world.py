"""Consumer groups in a world where members crash, are suspended and leave, clocks jump, and
requests to the metadata repository are slow, lost, or done after their sender gave up.

The client's whole driver runs, and the registers and leases of the real metadata repository; only
the log is a counter, and requests travel without a network. A judge sees every entry that is handed
out and every state that is stored:

- an entry that is committed is never handed out again, except by a member that was removed;
- nobody but the owner hands out a shard, in order; only what it handed out itself is committed;
- a member that releases a shard has committed all that it handed out of it;
- when the faults are over, everything is committed and the shards are spread evenly.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
from violation import Violation

from loomlog.client.groups.group import GroupOptions
from loomlog.client.groups.groups import Groups
from loomlog.client.subscribe.with_archive import Archived
from loomlog.columns import SCHEMA
from loomlog.columns.key_shards import shard_of_key
from loomlog.core.groups.state import GroupState
from loomlog.errors import Fenced, LoomError, Retryable, SwapUnknown, Unavailable
from loomlog.metadata.leases import ClusterLeases
from loomlog.metadata.registers import ClusterRegisters, RegisterRecord
from loomlog.metadata.store.contract import ItemChange
from loomlog.metadata.store.memory import MemoryStore
from loomlog.testing.sim import Process, Simulation
from loomlog.types import Entry, Glsn
from loomlog.wire import loomlog_pb2 as pb

LOG: Final = "log"
LOG_ID: Final = 7
REQUEST_TIMEOUT_S: Final = 2.0
FAULTS_S: Final = 40.0
SETTLED_WITHIN_S: Final = 60.0
SESSION_S: Final = 3.0


class Judge:
    """Knows the stored state, and what every member has handed out."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.state: GroupState | None = None
        self.handed_out: dict[tuple[str, int], list[Glsn]] = defaultdict(list)
        self.counts: Counter[str] = Counter()

    def hand_out(self, member: str, entry: Entry) -> None:
        state, shard = self.state, shard_of(entry.position, self.shards)
        assert state is not None
        if member in state.members:
            if state.shards[shard].owner != member:
                raise Violation(f"{member} hands out {entry.position} of another's shard {shard}")
            if state.shards[shard].position >= entry.position:
                raise Violation(f"{member} hands out {entry.position}, which is committed")
        else:
            self.counts["fenced"] += 1
        before = self.handed_out[member, shard]
        if before and before[-1] >= entry.position:
            raise Violation(f"{member} hands out {entry.position} after {before[-1]}")
        before.append(entry.position)
        self.counts["handed out"] += 1

    def store(self, value: bytes) -> None:
        """Compare a state that was stored with the one before."""
        after, before, self.state = GroupState.decode(value), self.state, GroupState.decode(value)
        if before is None:
            return
        for number, (old, new) in enumerate(zip(before.shards, after.shards, strict=True)):
            done = self.handed_out[old.owner, number]
            if new.position < old.position:
                raise Violation(f"shard {number} goes back from {old.position} to {new.position}")
            missing = [
                position
                for position in range(old.position + 1, new.position + 1)
                if shard_of(position, self.shards) == number and position not in done
            ]
            if missing:
                raise Violation(f"{old.owner} commits {missing} without having handed them out")
            is_released = old.owner != new.owner and old.owner in after.members
            if is_released and done and done[-1] > new.position:
                raise Violation(f"{old.owner} releases shard {number} before it commits {done[-1]}")
            self.counts["released"] += is_released
            self.counts["taken over"] += old.owner != "" and old.owner not in after.members

    def is_settled(self, members: int, tail: Glsn) -> bool:
        state = self.state
        if state is None or len(state.members) != members:
            return False
        owned = [len(state.owned_by(member)) for member in state.members]
        return (
            max(owned) - min(owned) <= 1
            and not any(state.moving_from(member) for member in state.members)
            and all(shard.position >= tail for shard in state.shards)
        )


def shard_of(position: Glsn, shards: int) -> int:
    key = key_of(position)
    return position % shards if key is None else shard_of_key(key, shards)


def key_of(position: Glsn) -> bytes | None:
    return None if position % 3 == 0 else b"key %d" % (position % 11)


class MetadataServer:
    """Registers and leases on a host that is restarted, suspended, and whose clock jumps."""

    def __init__(self, sim: Simulation, world: GroupWorld) -> None:
        self._world = world
        self._store = MemoryStore()
        self._store.watch("register/", self._stored)
        self.host = sim.host("vmr")
        self._registers: ClusterRegisters | None = None

    async def run(self, process: Process) -> None:
        self._leases = await ClusterLeases.load(self._store)
        self._registers = ClusterRegisters(self._store, self._leases)
        await asyncio.Event().wait()

    def _stored(self, change: ItemChange) -> None:
        assert change.item is not None
        value = RegisterRecord.decode(change.key, change.item.value).value
        assert value is not None
        try:
            self._world.judge.store(value)
        except Violation as violation:
            self._world.violation = self._world.violation or violation

    async def answer(self, frame: pb.Frame) -> pb.Frame:
        registers = self._registers
        assert registers is not None
        match frame.WhichOneof("body"):
            case "get_register":
                return pb.Frame(register_value=await registers.get(frame.get_register))
            case "swap_register":
                return pb.Frame(register_value=await registers.swap(frame.swap_register))
            case "change_lease":
                return pb.Frame(lease=await self._leases.change(frame.change_lease))
            case "list_leases":
                return pb.Frame(lease_list=self._leases.list(frame.list_leases))
        raise AssertionError(frame)


class Connection:
    """A member's way to the metadata repository."""

    def __init__(self, sim: Simulation, server: MetadataServer, world: GroupWorld) -> None:
        self._world = sim.world
        self._random = sim.world.random
        self._server = server
        self._of = world

    async def request(self, frame: pb.Frame, **_: bool) -> pb.Frame:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[pb.Frame] = loop.create_future()

        def deliver() -> None:
            process = self._server.host.process
            if process is not None and self._server._registers is not None:
                process.loop.call_soon(lambda: process.loop.create_task(serve()))

        async def serve() -> None:
            try:
                result: pb.Frame | LoomError = await self._server.answer(frame)
            except LoomError as error:
                result = error
            if not self._is_lost():
                self._world.after(self._latency_s(), loop.call_soon, settle, result)

        def settle(result: pb.Frame | LoomError) -> None:
            if answer.done():
                return
            if isinstance(result, LoomError):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        if not self._is_lost():
            self._world.after(self._latency_s(), deliver)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise Unavailable("no answer") from None

    def _is_lost(self) -> bool:
        return self._of.faulty and self._random.random() < 0.02

    def _latency_s(self) -> float:
        """Return the delay of a message. A few are so late that their sender has given up."""
        if self._of.faulty and self._random.random() < 0.02:
            return self._random.uniform(0.5, 3 * REQUEST_TIMEOUT_S)
        return self._random.uniform(0.0005, 0.02)


class CountedPieces:
    """The entries of the log from a position on."""

    def __init__(self, world: GroupWorld, start: Glsn) -> None:
        self._world = world
        self._next = start
        self._closed = False

    async def next(self) -> Archived | None:
        while (piece := self.next_ready()) is None and not self._closed:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return piece

    def next_ready(self) -> Archived | None:
        last = min(self._last(), self._next + self._world.random.randint(0, 20))
        if self._closed or last < self._next:
            return None
        positions = range(self._next, last + 1)
        self._next = last + 1
        columns = [
            pa.array(positions, pa.int64()),
            pa.array([1] * len(positions), pa.int32()),
            pa.array(positions, pa.int64()),
            pa.array([0] * len(positions), pa.int64()).view(pa.timestamp("us", "UTC")),
            pa.array(map(key_of, positions), pa.binary()),
            pa.array([b""] * len(positions), pa.binary()),
            pa.nulls(len(positions), pa.binary()),
        ]
        return Archived(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))

    def _last(self) -> Glsn:
        """Return the last position that may be in the next piece."""
        return self._world.tail

    def close(self) -> None:
        self._closed = True


class GroupWorld:
    """A group of some programs, from one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.tail: Glsn = 0
        self.faulty = True
        self.violation: Violation | None = None

    def run(self) -> Counter[str]:
        with Simulation(self.seed) as sim:
            self._begin(sim)
            self._harm()
            sim.run(lambda: self._is_over(FAULTS_S), timeout_s=FAULTS_S + 5)
            self.faulty, self.calm_tail = False, self.tail
            for host in (self._server.host, *self._hosts):
                self._start(host)
            sim.run(self._is_settled, timeout_s=SETTLED_WITHIN_S)
        if self.violation is not None:
            raise self.violation
        counts: Counter[str] = self.judge.counts
        return counts

    def seconds_to_replace(self, *, members: int = 3) -> float:
        """Return how long it takes until a member that was killed is replaced, without faults."""
        self.faulty = False
        with Simulation(self.seed) as sim:
            self._begin(sim, members)
            sim.run(self._is_settled, timeout_s=SETTLED_WITHIN_S)
            victim = self.random.choice(self._hosts)
            victim.kill()
            died_s = sim.world.now
            sim.run(
                lambda: victim.name not in self.judge.state.members.values(),
                timeout_s=SETTLED_WITHIN_S,
            )
            return sim.world.now - died_s

    def _begin(self, sim: Simulation, members: int | None = None) -> None:
        self.random = sim.world.random
        self._sim = sim
        self.judge = self._judge()
        self._server = MetadataServer(sim, self)
        self._server.host.start(self._server.run)
        count = members or self.random.randint(1, 4)
        self._hosts = [sim.host(f"member-{n}") for n in range(count)]
        for host in self._hosts:
            sim.world.after(self.random.uniform(0.1, 5.0), self._start, host)
        self._append()

    def _is_over(self, end_s: float) -> bool:
        return self.violation is not None or self._sim.world.now >= end_s

    def _is_settled(self) -> bool:
        return self.violation is not None or self._is_all_done()

    def _judge(self) -> Any:
        return Judge(self.random.choice((1, 3, 4, 8)))

    def _is_all_done(self) -> bool:
        return bool(self.judge.is_settled(len(self._hosts), self.tail - 20))

    def _append(self) -> None:
        self.tail += self.random.randint(0, 4)
        self._sim.world.after(self.random.uniform(0.05, 0.3), self._append)

    def _start(self, host: Any) -> None:
        if not host.running:
            host.start(self._server.run if host is self._server.host else self._member)

    def _harm(self) -> None:
        if not self.faulty:
            return
        choose, random = self.random.choice, self.random
        host = choose(self._hosts)
        match choose(("kill", "pause", "pause", "jump", "restart", "jump-vmr", "pause-vmr")):
            case "kill":
                host.kill()
                self._sim.world.after(random.uniform(0.1, 8.0), self._start, host)
            case "pause":
                host.pause(random.uniform(0.5, 3 * SESSION_S))
            case "jump":
                host.jump_clock(random.uniform(0.1, 2 * SESSION_S))
            case "restart":
                self._server.host.kill()
                self._sim.world.after(random.uniform(0.1, 2.0), self._start, self._server.host)
            case "jump-vmr":
                self._server.host.jump_clock(random.uniform(0.1, 2 * SESSION_S))
            case "pause-vmr":
                self._server.host.pause(random.uniform(0.1, 3.0))
        self._sim.world.after(random.uniform(0.5, 5.0), self._harm)

    # ---- a member

    async def _member(self, process: Process) -> None:
        while True:
            group = self._joiner(process)
            try:
                async with group:
                    await self._consume(group)
            except Fenced:
                self.judge.counts["told"] += 1
            except (Retryable, SwapUnknown):
                pass
            except Violation as violation:
                self.violation = self.violation or violation
                return
            await asyncio.sleep(self.random.uniform(0.01, 0.5))

    async def _consume(self, group: Any) -> None:
        left = self.random.randint(1, 200)
        async for entry in group:
            self.judge.hand_out(group.member, entry)
            if self.faulty and self.random.random() < 0.3:
                await asyncio.sleep(self.random.uniform(0.0, 0.2))
            if group._options.commit_every_s is None and self._is_time_to_commit():
                await group.commit()
            left -= self.faulty
            if not left:
                return

    def _is_time_to_commit(self) -> bool:
        return not self.faulty or self.random.random() < 0.2

    def _client(self) -> Any:
        connection = Connection(self._sim, self._server, self)
        return SimpleNamespace(metadata=connection, rng=random.Random(self.random.random()))

    def _parts(self) -> Any:
        async def read(position: Glsn) -> Entry:
            await asyncio.sleep(0.01)
            return Entry(position, 1, position, 0, key_of(position), b"")

        return SimpleNamespace(
            name=LOG,
            cached=SimpleNamespace(fetch=_returning(SimpleNamespace(log_id=LOG_ID))),
            archived=SimpleNamespace(earliest=_returning(1)),
            pieces=SimpleNamespace(rows=self._rows),
            read=read,
        )

    def _rows(self, start: Glsn, stop: None) -> CountedPieces:
        return CountedPieces(self, start)

    def _joiner(self, process: Process) -> Any:
        """Return the group that a program joins."""
        every_s = self.random.choice((None, 0.3, 1.0))
        options = GroupOptions(
            self.judge.shards,
            session_timeout_s=SESSION_S,
            commit_every_s=every_s,
            member=process.host.name,
        )
        return Groups(self._parts(), self._client()).group("g", options)


def _returning(value: Any) -> Callable[..., Awaitable[Any]]:
    async def answer(*_: object) -> Any:
        return value

    return answer
