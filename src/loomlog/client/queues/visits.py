"""Short visits to a work queue, such as those of HTTP requests, which cannot stay members.

Each visit takes jobs as a member of its own, whose lease lasts for the visibility timeout and is
not renewed. Any process that has the receipt, which is the id of that member, may acknowledge the
jobs. Once the lease has expired, the next member or visit removes that member, and its remaining
jobs are delivered again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Set
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from loomlog.client.arguments import check_count, check_each, check_member, check_text
from loomlog.client.groups.membership import MemberLeases
from loomlog.client.groups.store import StateStore
from loomlog.client.kv.leases import Lease
from loomlog.client.subscribe.pieces import entries
from loomlog.core.permissions import Verb
from loomlog.core.queues.state import QueueState
from loomlog.errors import DataLoss, NotFound, Trimmed
from loomlog.types import Entry, Gap, Glsn, LogId

if TYPE_CHECKING:
    from loomlog.client.log_parts import LogParts

JOBS_MAX: Final = 1000  # of one visit
OPEN_MAX: Final = 5000  # unfinished jobs of a queue: each change writes all of them


class TakenJob(NamedTuple):
    """An entry to process."""

    entry: Entry
    attempts: int  # how often it was taken, including this time


class Taken(NamedTuple):
    """The jobs that a visit took; the receipt is empty if there are none."""

    receipt: str
    jobs: list[TakenJob]


class QueueVisits:
    """Takes and acknowledges jobs of one queue without joining it."""

    def __init__(
        self,
        name: str,
        parts: LogParts,
        store: StateStore[QueueState],
        leases: MemberLeases,
        bury: Callable[[Entry], Awaitable[object]],
        visibility_timeout_s: float,
        attempts_max: int,
    ) -> None:
        self._name = name
        self._parts = parts
        self._store = store
        self._leases = leases
        self._bury = bury
        self._visibility_timeout_s = visibility_timeout_s
        self._attempts_max = attempts_max

    async def take(self, count: int, name: str = "visit") -> Taken:
        """Take up to `count` jobs, beginning with those that were given back; return at once if
        there are none. The first visit creates the queue. `name` is shown to operators.

        Raise DataLoss if the next entries are lost; the queue has passed them then."""
        check_count("count", count, JOBS_MAX)
        check_member(name)
        log_id = (await self._parts.cached.fetch(Verb.CHECKPOINT)).log_id
        while True:
            state = await self._store.get(log_id)
            if state is None:
                state = QueueState(log_id, await self._parts.archived.earliest() - 1)
            gone = state.members.keys() - (await self._leases.live()).keys()
            new, lost = await self._arrived(state.position, count)
            if not (gone or state.free() or new):
                if lost is not None:
                    skip = partial(QueueState.skip, through=lost.last)
                    await self._store.change(log_id, skip, state)
                    raise passed(self._name, self._parts.name, lost.first, lost.last)
                return Taken("", [])
            member, lease = await self._leases.take_one(self._visibility_timeout_s)
            step = partial(_take, member=member, name=name, gone=gone, new=new, count=count)
            after = await self._store.change(log_id, step, state)
            owned = after.owned_by(member)
            try:
                jobs = await self._jobs(after, member)
            except DataLoss:
                await self._leave(log_id, member, lease)
                raise
            if jobs:
                return Taken(member, jobs)
            await self._leave(log_id, member, lease)
            if not owned and after.position == state.position:
                return Taken("", [])
            # Others took the entries, or nothing was left of them to process: try again.

    async def _leave(self, log_id: LogId, member: str, lease: Lease) -> None:
        await self._store.change(log_id, lambda state: state.remove([member]))
        await lease.release()

    async def ack(self, receipt: str, positions: Iterable[Glsn]) -> list[Glsn]:
        """Record that jobs are done, and return the positions of those that are; jobs that were
        given back or delivered again are not. Raise Fenced if the receipt has expired."""
        done = _checked(receipt, positions)
        state = await self._change(lambda state: state.finish(receipt, done))
        return [p for p in done if p not in state.jobs and p <= state.position]

    async def retry(self, receipt: str, positions: Iterable[Glsn]) -> None:
        """Give jobs back, so that they can be taken again at once."""
        returned = _checked(receipt, positions)
        await self._change(lambda state: state.give_back(receipt, returned))

    async def _change(self, step: Callable[[QueueState], QueueState]) -> QueueState:
        log_id = (await self._parts.cached.fetch(Verb.CHECKPOINT)).log_id
        return await self._store.change(log_id, step)

    async def _arrived(self, position: Glsn, count: int) -> tuple[list[Glsn], Gap | None]:
        """Return the positions of up to `count` entries after `position`, up to the first loss, and
        that loss."""
        first, last = position + 1, await self._parts.tail()
        first = max(first, await self._parts.archived.earliest())
        arrived: list[Glsn] = []
        if first > last:
            return arrived, None
        pieces = self._parts.pieces.rows(
            first, last, payloads=False, gaps=True, passes_lost_files=False
        )
        async with aclosing(entries(pieces)) as items:
            async for item in items:
                if not isinstance(item, Gap):
                    arrived.append(item.position)
                elif item.kind == "dataloss":
                    return arrived, item
                if len(arrived) >= count:
                    break
        return arrived, None

    async def _jobs(self, state: QueueState, member: str) -> list[TakenJob]:
        """Return the jobs of a member; those that failed too often become dead letters."""
        jobs, ended = [], []
        lost: DataLoss | None = None
        for position in sorted(state.owned_by(member)):
            try:
                entry = await self._parts.read(position)
            except (Trimmed, NotFound):
                ended.append(position)  # there is nothing left to do
                continue
            except DataLoss:
                ended.append(position)
                lost = lost or passed(self._name, self._parts.name, position, position)
                continue
            attempts = state.jobs[position].attempts
            if attempts > self._attempts_max:
                await self._bury(entry)
                ended.append(position)
            else:
                jobs.append(TakenJob(entry, attempts))
        if ended:
            await self.ack(member, ended)
        if lost is not None:
            raise lost
        return jobs


def _checked(receipt: str, positions: Iterable[Glsn]) -> list[Glsn]:
    check_text("receipt", receipt)
    return check_each("positions", positions, int)


def passed(queue: str, log: str, first: Glsn, last: Glsn) -> DataLoss:
    """Return the error that a queue raises once for lost entries."""
    return DataLoss(
        f"positions {first} to {last} of log {log!r} are lost, and queue {queue!r} has passed "
        "them: take the next job"
    )


def _take(
    before: QueueState, *, member: str, name: str, gone: Set[str], new: list[Glsn], count: int
) -> QueueState:
    """Let a new member take up to `count` jobs: those of members that are gone, free ones, and new
    ones."""
    after = before.remove(gone & before.members.keys()).join(member, name)
    for position in after.free()[:count]:
        after = after.take_again(member, position)
    fits = min(count - len(after.owned_by(member)), OPEN_MAX - len(after.jobs))
    some = [position for position in new if position > after.position][: max(fits, 0)]
    return after.take_new(member, some, some[-1]) if some else after
