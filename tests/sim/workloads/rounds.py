"""The quorum round log by itself: members on hosts that fail, and everybody wants to lead.

No cluster is around it: each host takes the next epoch now and then, opens the log, notes what it
finds, appends for a while, and lets go, or learns that it was replaced. One host may lose its disk
now and then. The history holds what was acknowledged at which place, and what every leader found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

from loomlog.core.quorum.member import Configuration, Leader, MemberId
from loomlog.errors import LoomError, NotLeader
from loomlog.metadata.rounds.quorum_member import QuorumMember
from loomlog.metadata.rounds.quorum_round_log import QuorumRoundLog
from loomlog.net.endpoints import connect
from loomlog.testing.history import History
from loomlog.testing.sim.faults import FaultPlan, Nemesis
from loomlog.testing.sim.host import Main, Process
from loomlog.testing.sim.simulation import Simulation
from loomlog.types import Position
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Handler, Server, Service

PORT = 7400
DIRECTORY = "/vmr/rounds"
FAULTY_S = 3.0
CALM_S = 60.0  # within which all must be well afterwards
CODEC = Codec("vmr")


def rounds(sim: Simulation, plan: FaultPlan) -> History:
    quorum = _Quorum(sim)
    nemesis = Nemesis(sim, plan, quorum.servers)
    for name, main in quorum.servers.items():
        sim.host(name).start(main)
    nemesis.start()
    if {"crash", "all"} & set(plan.kinds):
        quorum.lose_disks_now_and_then()
    sim.run(sim.world.now + FAULTY_S)
    quorum.calm = True
    nemesis.stop()
    sim.run(lambda: quorum.settled, timeout_s=CALM_S)
    return quorum.history


class _Quorum:
    """The state that all hosts share: the members and the next epoch."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.random = sim.world.random
        self.history = History()
        self.configuration = Configuration(frozenset(range(1, self.random.choice((4, 6)))))
        self.addresses = {m: f"vmr-{m}:{PORT}" for m in self.configuration.everybody}
        self.servers: dict[str, Main] = {
            f"vmr-{member}": partial(self._serve, member) for member in self.addresses
        }
        self.file_bytes = self.random.choice((256, 1024, 16384))
        self.in_flight_max = self.random.choice((1, 4, 20))
        self.newest_open = 0
        self.calm = False  # faults are over: the first leader leads to the end
        self.settled = False
        self._epoch = 0
        self._appends = 0
        self._started: set[MemberId] = set()
        self._members: dict[MemberId, QuorumMember] = {}  # of the lives that run, or ran last
        self._wiped: MemberId | None = None

    async def next_epoch(self) -> int:
        """Take the next epoch, as if by compare-and-swap in a shared store."""
        await asyncio.sleep(self.random.random() * 0.002)
        self._epoch += 1
        epoch = self._epoch
        await asyncio.sleep(self.random.random() * 0.002)
        return epoch

    def next_value(self) -> bytes:
        self._appends += 1
        return b"%d" % self._appends

    # ---- hosts

    async def _serve(self, member_id: MemberId, process: Process) -> None:
        member = QuorumMember.open(
            member_id,
            process.files,
            DIRECTORY,
            process.worker(),
            create=member_id not in self._started,
            file_bytes=self.file_bytes,
        )
        self._started.add(member_id)
        self._members[member_id] = member
        service = Service(CODEC, member.routes(CODEC))
        server = Server(CODEC, service)
        await server.start(self.addresses[member_id])
        while not self.settled:
            await asyncio.sleep(self.random.random() * (2.0 if self.calm else 0.8))
            await self._try_to_lead(member_id, member)
        await service.stop()
        await server.stop()

    async def _try_to_lead(self, member_id: MemberId, member: QuorumMember) -> None:
        leader = Leader(await self.next_epoch(), member_id, self.addresses[member_id])
        try:
            async with asyncio.timeout(self.random.uniform(0.2, 3.0)):
                log = await QuorumRoundLog.open(
                    leader,
                    self.configuration,
                    self.addresses,
                    member,
                    _connect,
                    file_bytes=self.file_bytes,
                )
        except (TimeoutError, LoomError):
            return
        try:
            await _Term(self, leader, log).lead()
        except NotLeader:
            pass
        finally:
            log.close()

    # ---- disks

    def lose_disks_now_and_then(self) -> None:
        self.sim.world.after(self.random.expovariate(0.7), self._lose_a_disk)

    def _lose_a_disk(self) -> None:
        """Lose one disk at a time: the next when the last one is filled again."""
        if self.calm:
            return
        if self._wiped is not None and not self._members[self._wiped].state.lost:
            self._wiped = None
        if self._wiped is None:
            self._wipe(self.random.choice(sorted(self._started)))
        self.lose_disks_now_and_then()

    def _wipe(self, member_id: MemberId) -> None:
        self._wiped = member_id
        member = self._members[member_id]
        member._state = member.state._replace(lost=True)  # until the next life says otherwise
        host = self.sim.host(f"vmr-{member_id}")
        host.crash()
        files = host.disk.mount()
        if files.exists(DIRECTORY):
            files.remove_tree(DIRECTORY)
        host.start(self.servers[host.name])


class _Term:
    """One leader's time."""

    def __init__(self, quorum: _Quorum, leader: Leader, log: QuorumRoundLog) -> None:
        self._quorum = quorum
        self._leader = leader
        self._log = log
        self._values = _replay(log.read())
        self._in_flight = 0

    async def lead(self) -> None:
        quorum, random = self._quorum, self._quorum.random
        quorum.newest_open = max(quorum.newest_open, self._leader.epoch)
        self._note(f"epoch {self._leader.epoch}")
        self._log.begin(lambda: [_snapshot(self._values)])
        end = asyncio.get_running_loop().time() + random.uniform(0.05, 2.0)
        while asyncio.get_running_loop().time() < end or quorum.calm:
            if quorum.calm and self._all_follow():
                await self._log.confirm()  # it may have been replaced long ago
                self._note("final")
                quorum.history.final("final")
                quorum.settled = True
                return
            await self._do_something(random)

    def _all_follow(self) -> bool:
        behind = [s for s in self._log.standing() if not s.reachable or s.lag]
        return bool(self._values) and not behind and not self._in_flight

    async def _do_something(self, random: Random) -> None:
        for _ in range(random.randint(1, 5)):
            if self._in_flight < self._quorum.in_flight_max and not self._quorum.calm:
                self._append()
        if not self._values and not self._in_flight:
            self._append()
        if random.random() < 0.3:
            newest = self._quorum.newest_open
            await self._log.confirm()
            assert newest <= self._leader.epoch, f"{newest} was open, {self._leader} confirmed"
        await asyncio.sleep(random.random() * 0.02)

    def _append(self) -> None:
        history, value = self._quorum.history, self._quorum.next_value()
        history.invoke(f"epoch {self._leader.epoch}", value.decode(), [value])
        try:
            self._log.append(self._leader.epoch, value, self._done(value))
        except NotLeader:
            history.fail(value.decode())
            raise
        self._in_flight += 1

    def _done(self, value: bytes) -> Callable[[BaseException | None], None]:
        def done(error: BaseException | None) -> None:
            self._in_flight -= 1
            if error is None:
                self._values.append(value)
                place = len(self._values)
                self._quorum.history.ack(value.decode(), [Position(place, 1, place)])
            else:
                self._quorum.history.unknown(value.decode())

        return done

    def _note(self, reader: str) -> None:
        """Note what this leader has recovered and committed so far."""
        self._quorum.history.reader(reader)
        for place, value in enumerate(self._values, 1):
            self._quorum.history.see(reader, place, 1, place, value)


async def _connect(address: str, handler: Handler) -> Connection:
    return await connect(address, CODEC, handler, 1.0)


def _snapshot(values: list[bytes]) -> bytes:
    return b"snapshot " + b" ".join(values)


def _replay(records: list[bytes]) -> list[bytes]:
    values: list[bytes] = []
    for record in records:
        if record.startswith(b"snapshot"):
            values = record.split()[1:]
        else:
            values.append(record)
    return values
