"""The public classes Queue and Job: entries of a log as jobs that members take and acknowledge."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Self

from loomlog import limits
from loomlog.client.arguments import check_count, check_member, check_seconds
from loomlog.client.groups.fetcher import PieceFetcher
from loomlog.client.groups.membership import MemberLeases, Membership
from loomlog.client.groups.store import StateStore
from loomlog.client.queues.visits import OPEN_MAX, QueueVisits, passed
from loomlog.core.permissions import Verb
from loomlog.core.queues.state import QueueState
from loomlog.errors import (
    Conflict,
    Corrupt,
    DataLoss,
    Fenced,
    InvalidArgument,
    NotFound,
    Retryable,
    SwapUnknown,
    Trimmed,
)
from loomlog.types import Entry, Gap, Glsn

if TYPE_CHECKING:
    from loomlog.client.log_parts import LogParts

_CHECK_S: Final = 0.25  # how often unacknowledged jobs are checked


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """The arguments of `Log.queue`."""

    visibility_timeout_s: float = 30.0
    attempts_max: int = 5
    prefetch: int = 10
    session_timeout_s: float = limits.GROUP_SESSION_S
    member: str | None = None

    def __post_init__(self) -> None:
        check_seconds("visibility_timeout_s", self.visibility_timeout_s, 0.1)
        check_seconds("session_timeout_s", self.session_timeout_s, 0.5)
        check_member(self.member)
        check_count("attempts_max", self.attempts_max, 1000)
        check_count("prefetch", self.prefetch, 1000)


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """The state of a queue."""

    name: str
    position: Glsn  # every entry up to here was taken at least once
    behind: int | None  # positions from there to the tail; None if the tail is not known
    taken: int  # jobs that a member has
    free: int  # jobs that were taken before and wait to be taken again
    members: tuple[str, ...]  # the names of the members


class Stage(Enum):
    """The state of a job that this member took."""

    HELD = "held"
    LATE = "late"  # not acknowledged in time, so it is being given back
    GIVEN_BACK = "given back"
    DONE = "done"


class Job:
    """An entry to process. It is delivered again unless it is acknowledged in time."""

    def __init__(self, queue: Queue, entry: Entry, attempts: int) -> None:
        self.entry = entry
        self.attempts = attempts  # how often it was taken, including this time
        self._queue = queue
        self.deadline_s: float | None = None  # None: not handed out yet
        self.stage = Stage.HELD

    def __repr__(self) -> str:
        return f"<Job at {self.position}, attempt {self.attempts}>"

    @property
    def position(self) -> Glsn:
        """The position of the entry."""
        return self.entry.position

    @property
    def key(self) -> bytes | None:
        """The key of the entry."""
        return self.entry.key

    @property
    def value(self) -> bytes:
        """The value of the entry."""
        return self.entry.value

    @property
    def headers(self) -> Mapping[str, bytes]:
        """The headers of the entry."""
        return self.entry.headers

    @property
    def timestamp(self) -> datetime:
        """When the writer appended the entry, in UTC."""
        return self.entry.timestamp

    @property
    def timestamp_us(self) -> int:
        """The timestamp of the entry, in microseconds since 1970."""
        return self.entry.timestamp_us

    async def ack(self) -> None:
        """Record that the job is done. A second call does nothing.

        Raise Fenced if the job was given back, or took too long and is delivered again."""
        await self._queue._ack(self)

    async def retry(self) -> None:
        """Give the job back, so that any member can take it again at once. A second call does
        nothing.

        Raise Fenced if the job took too long and is delivered again, and InvalidArgument if it was
        acknowledged."""
        await self._queue._retry(self)


class Queue:
    """A work queue on one log, as returned by `Log.queue`.

    `async with` joins the queue. Then `async for` iterates over jobs; several tasks may do so at
    once. It raises Fenced if this member was replaced, and DataLoss once if entries were lost and
    the queue has passed them: iterate again to continue."""

    def __init__(
        self,
        name: str,
        parts: LogParts,
        store: StateStore[QueueState],
        leases: MemberLeases,
        bury: Callable[[Entry], Awaitable[object]],
        options: QueueOptions,
    ) -> None:
        """`bury` stores the entry of a job that failed too often as a dead letter."""
        self.name = name
        self._parts = parts
        self._store = store
        self._leases = leases
        self._bury = bury
        self._options = options
        self._membership: Membership[QueueState] | None = None
        self._taking = asyncio.Lock()
        self._acking = asyncio.Lock()
        self._wake = asyncio.Event()
        self._reader = PieceFetcher(
            partial(parts.pieces.rows, stop=None, gaps=True, passes_lost_files=False), self._wake
        )
        self._arrived: deque[Entry] = deque()  # entries that were read and not taken yet
        self._gone: Gap | None = None  # lost or trimmed entries that follow those
        self._held: dict[Glsn, Job] = {}  # jobs of this member that are not done
        self._ready: deque[Job] = deque()  # those of them that were not delivered yet
        self._done: set[Glsn] = set()  # acknowledged jobs that are not recorded yet
        self._watch: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} of {self._parts.name!r}>"

    async def __aenter__(self) -> Self:
        if self._membership is not None:
            raise InvalidArgument(f"queue {self.name!r} was joined already: call log.queue again")
        options, log_id = self._options, (await self._parts.cached.fetch(Verb.CHECKPOINT)).log_id
        initial = await self._store.get(log_id)
        if initial is None:
            initial = QueueState(log_id, await self._parts.archived.earliest() - 1)
        membership = Membership(
            log_id, self._store, self._leases, options.session_timeout_s, self._wake.set
        )
        await membership.join(options.member, initial)
        self._membership = membership
        self._watch = asyncio.create_task(self._watch_jobs())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave the queue; others can take the unacknowledged jobs at once."""
        assert self._membership is not None
        assert self._watch is not None
        self._watch.cancel()
        self._reader.close()
        await self._membership.leave()

    # ---- taking

    async def __aiter__(self) -> AsyncGenerator[Job, None]:
        while True:
            yield await self._next()

    async def _next(self) -> Job:
        """Wait for the next job and return it. Raise DataLoss if the next entries are lost; the
        queue has passed them then."""
        membership = self._joined()
        loop = asyncio.get_running_loop()
        while True:
            async with self._taking:
                self._wake.clear()
                if membership.failure is not None:
                    raise membership.failure
                if membership.certain:
                    if not self._ready:
                        await self._take()
                    if self._ready:
                        job = self._ready.popleft()
                        job.deadline_s = loop.time() + self._options.visibility_timeout_s
                        return job
                await self._wake.wait()

    async def _take(self) -> None:
        """Take jobs: one that was given back, or several new ones. First make jobs of those that an
        earlier change took whose answer was lost."""
        membership = self._joined()
        while not self._ready:
            state = membership.state
            if taken := state.owned_by(membership.member) - self._held.keys():
                await self._hold(taken)
            elif free := [p for p in state.free() if p not in self._held]:
                await self._take_again(free[0])
            elif len(state.jobs) < OPEN_MAX and await self._find_new(state.position):
                new = [entry.position for entry in islice(self._arrived, self._options.prefetch)]
                await self._take_new(new, new[-1])
            elif self._gone is not None:
                await self._pass(self._gone)
            else:
                return

    async def _take_again(self, position: Glsn) -> None:
        membership = self._joined()
        await membership.change(lambda state: state.take_again(membership.member, position))

    async def _take_new(self, positions: list[Glsn], through: Glsn) -> None:
        membership = self._joined()
        await membership.change(lambda state: state.take_new(membership.member, positions, through))

    async def _pass(self, gone: Gap) -> None:
        """Let the queue continue after a gap; report a loss unless another member did."""
        is_first = False

        def skip(state: QueueState) -> QueueState:
            nonlocal is_first
            is_first |= state.position < gone.last
            return state.skip(gone.last)

        await self._joined().change(skip)
        self._gone = None
        if is_first and gone.kind == "dataloss":
            raise passed(self.name, self._parts.name, gone.first, gone.last)

    async def _find_new(self, position: Glsn) -> bool:
        """Return whether entries after `position` have arrived, passing over trimmed ones."""
        try:
            return self._has_arrived(position)
        except (DataLoss, Corrupt):  # files of an archive are missing, and may come back
            self._reader.close()
            raise
        except Trimmed:
            self._reader.close()
            await self._take_new([], await self._parts.archived.earliest() - 1)
            return self._has_arrived(self._joined().state.position)

    def _has_arrived(self, position: Glsn) -> bool:
        while True:
            while self._arrived and self._arrived[0].position <= position:
                self._arrived.popleft()
            if self._arrived:
                return True
            if self._gone is not None:
                return False
            piece = self._reader.piece()
            if piece is None:
                self._reader.begin(position + 1)
                return False
            if not isinstance(piece, Gap):
                self._arrived.extend(piece.entries())
            elif piece.kind in ("dataloss", "trim"):
                self._gone = piece

    async def _hold(self, positions: set[Glsn]) -> None:
        """Make jobs of entries that this member has taken."""
        membership = self._joined()
        arrived = {entry.position: entry for entry in self._arrived if entry.position in positions}
        for position in sorted(positions):
            try:
                entry = arrived.get(position) or await self._parts.read(position)
            except (Trimmed, NotFound):
                await self._finish({position})  # there is nothing left to do
                continue
            except DataLoss:
                await self._finish({position})
                raise passed(self.name, self._parts.name, position, position) from None
            attempts = membership.state.jobs[position].attempts
            if attempts > self._options.attempts_max:
                await self._bury(entry)
                await self._finish({position})
                continue
            self._held[position] = job = Job(self, entry, attempts)
            self._ready.append(job)

    # ---- giving back

    async def _ack(self, job: Job) -> None:
        if job.stage is Stage.DONE:
            return
        if job.stage is Stage.GIVEN_BACK:
            raise Fenced(
                f"the job at position {job.position} was given back: it is handed out again"
            )
        self._check(job)
        self._done.add(job.position)
        job.deadline_s = None
        async with self._acking:  # all acknowledgements that wait here are recorded together
            if job.position in self._done:
                done = set(self._done)
                await self._finish(done)
                self._done -= done
        job.stage = Stage.DONE

    async def _finish(self, positions: set[Glsn]) -> None:
        membership = self._joined()
        await membership.change(lambda state: state.finish(membership.member, positions))
        for position in positions:
            self._held.pop(position, None)

    async def _retry(self, job: Job) -> None:
        if job.stage is Stage.GIVEN_BACK:
            return
        if job.stage is Stage.DONE:
            raise InvalidArgument(
                f"the job at position {job.position} is acknowledged: it cannot be given back"
            )
        self._check(job)
        job.stage = Stage.GIVEN_BACK
        await self._give_back([job])

    async def _give_back(self, jobs: list[Job]) -> None:
        membership = self._joined()
        positions = [job.position for job in jobs]
        await membership.change(lambda state: state.give_back(membership.member, positions))
        for position in positions:
            self._held.pop(position, None)
        self._wake.set()

    async def _watch_jobs(self) -> None:
        """Give back jobs that were not acknowledged in time."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_CHECK_S, self._options.visibility_timeout_s / 4))
            for job in self._held.values():
                if job.deadline_s is not None and loop.time() > job.deadline_s:
                    job.stage = Stage.LATE
            if late := [job for job in self._held.values() if job.stage is not Stage.HELD]:
                try:
                    await self._give_back(late)
                except (Retryable, SwapUnknown, Fenced, NotFound):
                    pass  # it will be retried, or the membership reports the failure

    def _check(self, job: Job) -> None:
        if job.stage is Stage.LATE:
            raise Fenced(
                f"the job at position {job.position} was not acknowledged within "
                f"{self._options.visibility_timeout_s:g} s: it is handed out again; set "
                "visibility_timeout_s if jobs take longer"
            )

    def _joined(self) -> Membership[QueueState]:
        if self._membership is None:
            raise InvalidArgument(
                f"join queue {self.name!r} first: `async with log.queue(…) as queue`"
            )
        return self._membership

    # ---- without joining

    @property
    def visits(self) -> QueueVisits:
        """Access to the jobs of the queue without joining it, for short-lived callers."""
        options = self._options
        return QueueVisits(
            self.name,
            self._parts,
            self._store,
            self._leases,
            self._bury,
            options.visibility_timeout_s,
            options.attempts_max,
        )

    # ---- for operators

    async def describe(self) -> QueueInfo:
        """Return the state of the queue. Raise NotFound if the queue does not exist."""
        log = await self._parts.cached.fetch(Verb.CHECKPOINT)
        state = await self._store.get(log.log_id)
        if state is None:
            raise NotFound(f"log {self._parts.name!r} has no queue {self.name!r}")
        tail = await self._parts.known_tail()
        live = await self._leases.live()
        free = len(state.free())
        return QueueInfo(
            self.name,
            state.position,
            None if tail is None else max(0, tail - state.position),
            len(state.jobs) - free,
            free,
            tuple(name for member, name in sorted(state.members.items()) if member in live),
        )

    async def delete(self) -> None:
        """Delete the queue and its state. Raise Conflict while it has members."""
        info = await self.describe()
        if info.members:
            names = ", ".join(info.members)
            raise Conflict(f"queue {self.name!r} has members ({names}): stop them, then delete it")
        await self._store.delete()
