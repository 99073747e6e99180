"""The quorum round log without a clock, a disk or a network: only what may happen, by chance.

Each step does one thing that may happen next: a message arrives, a job on a disk begins or ends, a
connection breaks, a member loses power or its disk, a member wants to lead. Pauses are steps that
others take. What a broken connection had under way may still arrive, after what its successor
brought.

Judged while it runs:
- what was acknowledged has one place in the log, and every later leader finds it there;
- nothing is acknowledged that a newer leader does not know;
- a leader that was told that its epoch holds was not replaced before it asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from quorum_parts import Channel, LeaderProcess, Member, Request
from violation import Violation

from loomlog.core.quorum.member import Configuration, Leader, MemberId

STEPS = 800
CALM_STEPS = 6000  # within which all must be well when the faults are over
SLOW = 0.05  # how often something happens where all is slow


class QuorumWorld:
    def __init__(
        self, seed: int, *, disks_get_lost: bool = False, members: int | None = None
    ) -> None:
        self.random = Random(seed)
        count = members or self.random.choice((3, 3, 3, 5))
        self.configuration = Configuration(frozenset(range(1, count + 1)))
        self.file_bytes = self.random.choice((150, 400, 4000))
        self._harm = self.random.choice((0.01, 0.02, 0.06))  # how often
        self._appends_under_way_max = self.random.choice((1, 4, 10))
        self._slow: set[MemberId] = set()  # whose disk and leader are slow now
        self._apart: set[MemberId] = set()  # who reach each other, but not the rest
        self.members = {member: Member() for member in self.configuration.everybody}
        self.leaders: list[LeaderProcess] = []
        self.zombies: list[Channel] = []
        self.epoch = 0
        self.last_value = 0
        self.newest_open = 0
        self.acknowledgements = 0
        self.takeovers = 0
        self._disks_get_lost = disks_get_lost
        self._calm = False  # nobody appends any more
        self._places: dict[int, tuple[int, int]] = {}  # place in the log -> value, epoch
        self._found: dict[int, list[int]] = {}  # open epochs -> what their leaders found

    # ---- judging

    def opened(self, leader: LeaderProcess) -> None:
        epoch = leader.identity.epoch
        self.newest_open = max(self.newest_open, epoch)
        self.takeovers += 1
        self._found[epoch] = list(leader.values)
        for place, (value, acknowledged_in) in self._places.items():
            if acknowledged_in < epoch:
                self._check(leader.values, place, value, acknowledged_in, epoch)

    def acknowledged(self, leader: LeaderProcess) -> None:
        epoch, place = leader.identity.epoch, len(leader.values) - 1
        value = leader.values[place]
        self.acknowledgements += 1
        before = self._places.setdefault(place, (value, epoch))
        if before[0] != value:
            raise Violation(f"place {place}: {before[0]} in epoch {before[1]}, {value} in {epoch}")
        for newer, found in self._found.items():
            if newer > epoch:
                self._check(found, place, value, epoch, newer)

    def _check(self, found: list[int], place: int, value: int, epoch: int, newer: int) -> None:
        if place >= len(found) or found[place] != value:
            raise Violation(f"epoch {newer} does not know {value} at {place} of epoch {epoch}")

    def confirmed(self, leader: LeaderProcess, newest_when_asked: int) -> None:
        if newest_when_asked > leader.identity.epoch:
            raise Violation(f"epoch {leader.identity.epoch} confirmed after {newest_when_asked}")

    # ---- what may happen

    def run(self) -> None:
        for _ in range(STEPS):
            self._step(faults=True)
        for _ in range(CALM_STEPS):
            if self._all_is_well():
                return
            self._calm = self._newest_has_appended()
            self._step(faults=False)
        raise Violation("nobody leads although all is well")

    def _step(self, *, faults: bool) -> None:
        chance = self.random.random()
        if chance < self._harm:
            self._do_harm() if faults else self._mend()
        elif chance < 0.12:
            self._connect_somebody()
        elif chance < 0.25:
            self._use_a_leader()
        else:
            self._deliver()

    def _deliver(self) -> None:
        """Deliver a message, or let a disk make progress."""
        random = self.random
        channels = [c for leader in self.leaders for c in leader.channels.values()]
        busy = [m for m in self.members.values() if m.up and (m.job or m.queue)]
        asking = [c for c in [*channels, *self.zombies] if c.requests and self._passes(c)]
        answering = [c for c in channels if c.answers and self._passes(c)]
        kinds: list[Sequence[Member | Channel]]
        kinds = [kind for kind in (busy, asking, answering) if kind]
        if not kinds:
            return
        kind = random.choice(kinds)
        chosen = random.choice(kind)
        if self._is_slow(chosen):
            return
        if isinstance(chosen, Member):
            chosen.finish_job() if chosen.job else chosen.begin_job()
        elif kind is answering:
            chosen.leader.take_answer(chosen)
        else:
            self._arrive(chosen)

    def _passes(self, channel: Channel) -> bool:
        return self._reach(channel.leader.identity.member, channel.member)

    def _reach(self, one: MemberId, other: MemberId) -> bool:
        return (one in self._apart) == (other in self._apart)

    def _is_slow(self, chosen: Member | Channel) -> bool:
        """Return whether the next event takes its time."""
        if isinstance(chosen, Member):
            where = next(m for m, member in self.members.items() if member is chosen)
        else:
            where = chosen.leader.identity.member
        return where in self._slow and self.random.random() > SLOW

    def _arrive(self, channel: Channel) -> None:
        message = channel.requests.popleft()
        member = self.members[channel.member]
        if member.up and not channel.broken:
            member.queue.append(Request(channel, message))

    def _use_a_leader(self) -> None:
        if not self.leaders:
            return
        leader = self.random.choice(self.leaders)
        if not leader.core.open or self._calm:
            return
        if self.random.random() < 0.2:
            leader.confirm()
        elif len(leader.undone) < self._appends_under_way_max:
            self.last_value += 1
            leader.append(self.last_value)

    def _connect_somebody(self) -> None:
        if self.leaders:
            leader = self.random.choice(self.leaders)
            if leader.notice_broken():
                return
            here = leader.identity.member
            missing = [
                m
                for m, member in self.members.items()
                if member.up and m not in leader.channels and self._reach(here, m)
            ]
            if missing:
                leader.connect(self.random.choice(missing))

    def _do_harm(self) -> None:
        random = self.random
        chance = random.random()
        up = [m for m, member in self.members.items() if member.up]
        if chance < 0.25 or not self.leaders:
            self.new_leader()
        elif chance < 0.35:
            random.choice(self.leaders).disconnect(random.choice(list(self.members)))
        elif chance < 0.5:
            self._slow ^= {random.choice(list(self.members))}
        elif chance < 0.65:
            self._apart = set(random.sample(list(self.members), random.randrange(3)))
        elif chance < 0.75 and up:
            at_work = [m for m in up if self.members[m].job is not None]
            self.crash(random.choice(random.choice((at_work or up, up))))
        elif chance < 0.8 and self._disks_get_lost and up:
            self.lose(random.choice(up))
        elif chance < 0.82:
            self.end(random.choice(self.leaders))
        else:
            self.restart()

    def _mend(self) -> None:
        self._slow.clear()
        self._apart.clear()
        self.restart()
        if not self.leaders or (self.random.random() < 0.2 and not self._newest_leads()):
            self.new_leader()

    def new_leader(self) -> None:
        up = [m for m, member in self.members.items() if member.up]
        if up:
            self.lead(self.random.choice(up))

    def crash(self, member: MemberId) -> None:
        self.members[member].crash(self.random)
        for leader in list(self.leaders):
            if leader.identity.member == member:
                self.end(leader)
            elif member in leader.channels:
                leader.channels[member].broken = True
        for channel in self.zombies:
            channel.broken = channel.broken or channel.member == member

    def lose(self, member: MemberId) -> None:
        lost = {m for m, found in self.members.items() if found.state.lost} | {member}
        if 2 * len(lost) < len(self.members):
            self.crash(member)
            self.members[member].lose_disk()

    def restart(self) -> None:
        for member in self.members.values():
            if not member.up:
                member.up = True
                return

    def lead(self, member: MemberId) -> LeaderProcess:
        """Let this member lead in the next epoch."""
        self.epoch += 1
        leader = LeaderProcess(
            self, Leader(self.epoch, member, ""), self.configuration, self.file_bytes
        )
        self.leaders.append(leader)
        return leader

    def end(self, leader: LeaderProcess) -> None:
        """End a leader, which gives up or dies; what it sent may still arrive."""
        if leader in self.leaders:
            self.leaders.remove(leader)
            self.zombies += leader.channels.values()

    def _newest_leads(self) -> bool:
        return max(self.leaders, key=lambda leader: leader.identity.epoch).core.open

    def _newest_has_appended(self) -> bool:
        leader = max(self.leaders, key=lambda leader: leader.identity.epoch, default=None)
        known = self._found.get(leader.identity.epoch) if leader else None
        return leader is not None and known is not None and len(leader.values) > len(known)

    def _all_is_well(self) -> bool:
        """Return whether the newest leader leads, got a record acknowledged, and all members
        follow."""
        if not self._newest_has_appended():
            return False
        core = max(self.leaders, key=lambda leader: leader.identity.epoch).core
        return all(p.stored_index >= core.done_index for p in core.members.values()) and not any(
            member.state.lost for member in self.members.values()
        )
