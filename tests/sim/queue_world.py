"""Work queues in the world of group_world.py: members crash, are suspended and leave, acknowledge
late or never, clocks jump, and requests are lost or late. The judge sees every job and every state:

- a job is handed out only to the member that has taken it, and never after it was recorded as done;
- every time a job is handed out, its number of attempts is higher, and not above the limit;
- nothing is done or buried that was not handed out before, and only by the member that has it;
- when the faults are over, every entry is done or buried. Lost ones are passed, and no others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from group_world import SESSION_S, CountedPieces, GroupWorld
from violation import Violation

from loomlog.client.groups.membership import MemberLeases
from loomlog.client.groups.store import StateStore
from loomlog.client.kv.registers import Register
from loomlog.client.queues.queue import Job, Queue, QueueOptions
from loomlog.core.queues.state import QueueState
from loomlog.errors import DataLoss, Fenced, Retryable, SwapUnknown
from loomlog.testing.sim import Process
from loomlog.types import Entry, Gap, Glsn

ATTEMPTS_MAX = 4


class QueueJudge:
    """Knows the stored state, and what was handed out."""

    def __init__(self) -> None:
        self.state: QueueState | None = None
        self.attempts: dict[Glsn, int] = {}
        self.holders: dict[Glsn, str] = {}
        self.buried: set[Glsn] = set()
        self.counts: Counter[str] = Counter()

    def hand_out(self, member: str, job: Job) -> None:
        state = self.state
        assert state is not None
        if member in state.members:
            stored = state.jobs.get(job.position)
            if stored is None or stored.owner != member:
                raise Violation(f"{member} gets {job}, which is {stored}")
            if job.attempts <= self.attempts.get(job.position, 0) or job.attempts > ATTEMPTS_MAX:
                raise Violation(f"{job} after attempt {self.attempts.get(job.position, 0)}")
            self.attempts[job.position] = job.attempts
            self.holders[job.position] = member
            self.counts["again"] += job.attempts > 1
        self.counts["handed out"] += 1

    def store(self, value: bytes) -> None:
        before, self.state = self.state, QueueState.decode(value)
        if before is None:
            return
        if self.state.position < before.position:
            raise Violation(f"back from {before.position} to {self.state.position}")
        for position in range(before.position + 1, self.state.position + 1):
            if (position in self.state.jobs) == is_lost(position):
                raise Violation(f"{position} is done without having been a job, or it is lost")
        for position in before.jobs.keys() - self.state.jobs.keys():
            owner = before.jobs[position].owner
            if position not in self.buried and self.holders.get(position) != owner:
                raise Violation(f"{position} is done, which {owner} has not got")
            self.counts["done"] += 1

    def bury(self, position: Glsn) -> None:
        if position not in self.attempts:
            raise Violation(f"{position} is buried untried")
        self.buried.add(position)
        self.counts["buried"] += 1


def is_lost(position: Glsn) -> bool:
    return position % 40 in (17, 18, 39)


class LossyPieces(CountedPieces):
    """The entries of the log from a position on, with gaps where some are lost."""

    def next_ready(self) -> Any:
        last = self._next
        while last <= self._world.tail and is_lost(last):
            last += 1
        if last == self._next or self._closed:
            return super().next_ready()
        first, self._next = self._next, last
        return Gap(first, last - 1, "dataloss")

    def _last(self) -> Glsn:
        last = self._next
        while last < self._world.tail and not is_lost(last + 1):
            last += 1
        return min(last, self._world.tail)


class QueueWorld(GroupWorld):
    """A queue of some programs, from one seed."""

    def _judge(self) -> QueueJudge:
        return QueueJudge()

    def _is_all_done(self) -> bool:
        state = self.judge.state
        if state is None or state.position < self.calm_tail:
            return False
        return min(state.jobs, default=self.tail) >= self.calm_tail

    def _rows(
        self, start: Glsn, stop: None, *, gaps: bool = False, passes_lost_files: bool | None = None
    ) -> CountedPieces:
        assert gaps
        assert passes_lost_files is False, "files of an archive may come back"
        return LossyPieces(self, start)

    async def _consume(self, group: Any) -> None:
        """Consume jobs until it is time to leave, also after losses."""
        while True:
            try:
                await self._work(group)
                return
            except DataLoss:
                self.judge.counts["lost"] += 1

    async def _work(self, group: Any) -> None:
        left = self.random.randint(1, 100)
        async for job in group:
            self.judge.hand_out(group._joined().member, job)
            fate = self.random.random() if self.faulty else 1.0
            if fate < 0.2:
                await asyncio.sleep(self.random.uniform(0.0, 2.0))
            if fate < 0.03:
                await self._try(job.retry)
            elif fate > 0.06:
                await self._try(job.ack)
            left -= self.faulty
            if not left:
                return

    async def _try(self, action: Any) -> None:
        try:
            await action()
        except Fenced:
            self.judge.counts["told"] += 1
        except (Retryable, SwapUnknown):
            pass

    def _joiner(self, process: Process) -> Queue:
        async def bury(entry: Entry) -> None:
            await asyncio.sleep(0.01)
            self.judge.bury(entry.position)

        client = self._client()
        register = Register("queue/log/q", client.metadata, client.rng)
        store = StateStore("queue q", register, QueueState.decode)
        leases = MemberLeases("queue/log/q/", client)
        options = QueueOptions(
            visibility_timeout_s=1.0,
            attempts_max=ATTEMPTS_MAX,
            prefetch=self.random.choice((1, 3, 10)),
            session_timeout_s=SESSION_S,
            member=process.host.name,
        )
        return Queue("q", self._parts(), store, leases, bury, options)
