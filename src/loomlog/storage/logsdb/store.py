"""Logs of `copyset` on a volume: requests in, answers out, one synced commit for all that waited.

    commits    requests that may change something, in the order they came, decided one after the
               other in a worker; then ONE commit; then the answers
    look-ups   in a worker of their own, so that they do not wait for those that wait for a
               commit; they see only what is committed
    upkeep     in a third one: compactions, which nobody waits for

What may be asked and what it means is core/copyset/storage.py's matter. After a failed commit
nothing is answered but `Refused`: a failed sync says nothing about what reached the disk. A record
that cannot be read fails only the requests for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple, TypeAlias, TypeVar

from loomlog.core.copyset.landmarks import Ages
from loomlog.core.copyset.messages import (
    Amend,
    Begin,
    Clean,
    EpochEnd,
    Forget,
    NodeAnswer,
    NodeRequest,
    Purge,
    Refused,
    Release,
    Seal,
    Store,
    Trim,
)
from loomlog.core.copyset.nodeset import Trouble
from loomlog.core.copyset.record import LSN_MAX, Epoch, Lsn, Record
from loomlog.core.copyset.storage import (
    Change,
    Erase,
    Gone,
    LogStanding,
    Put,
    Rewrite,
    decide,
    look_up,
)
from loomlog.errors import LoomError
from loomlog.limits import MIB
from loomlog.storage.files import Worker
from loomlog.storage.logsdb.recent import RecentBatches, recent_batches
from loomlog.storage.logsdb.rows import nonsense
from loomlog.storage.logsdb.table import LogsTable, MemoryLog, StoredLog
from loomlog.types import LogId, NodeId

logger = logging.getLogger(__name__)

Answered: TypeAlias = Callable[[NodeAnswer], None]
Found = TypeVar("Found")

_CHANGING = Begin | Store | Amend | Release | Seal | Clean | Purge | Trim | Forget

WAITING_BYTES_MAX: Final = 128 * MIB  # batches waiting for the disk; more are refused
LOOK_UPS_MAX: Final = 4096  # waiting for the disk; more are refused
_BUSY: Final = Refused(
    Trouble.OVERLOADED, "the disk is too slow for what is asked: try again later"
)
_FULL: Final = Refused(Trouble.NO_SPACE, "the disk is nearly full: trim logs, or add nodes")


class _Waiting(NamedTuple):
    request: NodeRequest
    done: Answered


class LogsStore:
    """Lives on the loop; the workers do what blocks."""

    def __init__(
        self,
        me: NodeId,
        table: LogsTable,
        commits: Worker,
        look_ups: Worker,
        upkeep: Worker,
        *,
        on_failure: Callable[[BaseException], None] = lambda error: None,
        sync: bool = True,
    ) -> None:
        """`on_failure` is called when a commit fails."""
        self._me = me
        self._table = table
        self._commits = commits
        self._look_ups = look_ups
        self._upkeep = upkeep
        self.is_full = False  # take only what frees space; set by the owner
        self._on_failure = on_failure
        self._sync = sync
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._under_way = False
        self._looking = 0
        self._tending = False
        self._compacting = False
        self._failed: Refused | None = None

    @property
    def failed(self) -> bool:
        return self._failed is not None

    def logs(self) -> list[LogId]:
        return self._table.logs()

    def standing(self, log: LogId) -> LogStanding:
        """Return the standing as of the last commit."""
        return self._table.standing(log)

    def stored_bytes(self, log: LogId) -> int:
        return self._table.stored_bytes(log)

    def ask(self, request: NodeRequest, done: Answered) -> None:
        """Call `done` with the answer, on the loop. A batch must not change until then."""
        if isinstance(request, _CHANGING):
            self._enqueue(_Waiting(request, done))
        else:
            self._look(request.log, lambda log: look_up(request, log.standing, log, self._me), done)

    def recent(
        self,
        log: LogId,
        now_us: int,
        span_us: int,
        done: Callable[[RecentBatches | Refused], None],
    ) -> None:
        """Call `done` with the batches of the last `span_us`, if they are not too many."""
        self._look(log, lambda stored: recent_batches(stored, now_us, span_us), done)

    def ages(self, log: LogId, before_us: int, done: Callable[[Ages | Refused], None]) -> None:
        """Call `done` with the copies that are older than a time (LogsTable.ages)."""
        self._look(log, lambda _: self._table.ages(log, before_us), done)

    def last_copy(self, log: LogId, done: Callable[[Record | Refused | None], None]) -> None:
        """Find the copy with the highest LSN."""
        self._look(log, lambda stored: stored.last_head(LSN_MAX), done)

    # ---- commits

    def _enqueue(self, asked: _Waiting) -> None:
        if self._failed is not None:
            asked.done(self._failed)
            return
        size = _bytes_of(asked.request)
        if (reason := nonsense(asked.request)) is not None:
            asked.done(Refused(Trouble.DISABLED, reason))
            return
        if self._waiting and self._waiting_bytes + size > WAITING_BYTES_MAX:
            asked.done(_BUSY)
            return
        self._waiting.append(asked)
        self._waiting_bytes += size
        self._start()

    def _start(self) -> None:
        if self._under_way or not self._waiting:
            return
        group, self._waiting, self._waiting_bytes = self._waiting, [], 0
        answers: list[NodeAnswer] = []
        self._under_way = True
        self._commits.run(
            [partial(self._commit, group, answers)], partial(self._committed, group, answers)
        )

    def _commit(self, group: list[_Waiting], answers: list[NodeAnswer]) -> None:
        """Runs in the worker."""
        if self._failed is None:
            view = _Commit(self._table, self._me, is_full=self.is_full)
            answers += (view.decide(asked.request) for asked in group)
            if view.changes:
                self._table.commit(view.changes, sync=self._sync and view.is_urgent)

    def _committed(
        self, group: list[_Waiting], answers: list[NodeAnswer], error: BaseException | None
    ) -> None:
        if error is not None:
            self._commit_failed(error)
        self._under_way = False
        self._start()
        failed = self._failed
        for index, asked in enumerate(group):
            asked.done(failed or answers[index])

    def _commit_failed(self, error: BaseException) -> None:
        self.fail(error)
        self._on_failure(error)

    def fail(self, error: BaseException) -> None:
        """Refuse everything from now on."""
        if self._failed is None:
            # Not the error itself: its traceback would keep the table open.
            logger.error("copies cannot be written any more: %s", str(error))
            self._failed = _disk_failed(error)

    # ---- look-ups

    def _look(
        self,
        log: LogId,
        question: Callable[[StoredLog], Found],
        done: Callable[[Found | Refused], None],
    ) -> None:
        if self._failed is not None:
            done(self._failed)
            return
        if self._looking >= LOOK_UPS_MAX:
            done(_BUSY)
            return
        found: list[Found] = []
        self._looking += 1

        def step() -> None:
            found.append(self._table.ask(log, question))

        def finished(error: BaseException | None) -> None:
            self._looking -= 1
            unreadable = _disk_failed(error) if error is not None else None
            done(self._failed or unreadable or found[0])

        self._look_ups.run([step], finished)

    # ---- upkeep

    def tend(self, now_us: int) -> None:
        """Called every few seconds to create and drop partitions."""
        if self._tending or self._failed is not None:
            return
        self._tending = True
        self._tend(now_us)

    def _tend(self, now_us: int) -> None:
        more: list[bool] = []

        def finished(error: BaseException | None) -> None:
            if error is not None:
                self._commit_failed(error)
            elif more[0]:
                self._tend(now_us)  # behind what waits by now
            else:
                self._tending = False
                self._compact()

        self._commits.run([lambda: more.append(self._table.tend(now_us))], finished)

    def stop(self) -> None:
        """Called before the workers finish."""
        if self._compacting:
            self._table.interrupt()

    def _compact(self) -> None:
        if not self._compacting:
            self._compacting = True
            self._upkeep.run([self._table.compact], self._compacted)

    def _compacted(self, error: BaseException | None) -> None:
        if error is not None:
            logger.warning(
                "what was trimmed still takes space, it could not be compacted: %s", error
            )
        self._compacting = False


def _bytes_of(request: NodeRequest) -> int:
    return len(request.record.batch) if isinstance(request, Store) else 0


def _disk_failed(error: BaseException) -> Refused:
    is_full = "no space left" in str(error).lower()
    return Refused(Trouble.NO_SPACE if is_full else Trouble.DISABLED, f"the disk failed: {error}")


class _Commit:
    """A table and the changes that a commit is going to make, in their order."""

    def __init__(self, table: LogsTable, me: NodeId, *, is_full: bool) -> None:
        self.changes: list[tuple[LogId, Change]] = []
        self.is_urgent = False  # a caller waits for a change to be durable
        self._table = table
        self._me = me
        self._is_full = is_full
        self._logs: dict[LogId, UncommittedLog] = {}

    def decide(self, request: NodeRequest) -> NodeAnswer:
        if self._is_full and _bytes_of(request):
            return _FULL
        log = self._logs.get(request.log) or self._look(request.log)
        try:
            answer, changes = decide(request, log.standing, log, self._me)
        except LoomError as error:  # what is here of this log cannot be read
            return _disk_failed(error)
        for change in changes:
            log.apply(change)
            self.changes.append((request.log, change))
        self.is_urgent |= bool(changes) and not isinstance(request, Release)
        return answer

    def _look(self, log: LogId) -> UncommittedLog:
        table = self._table
        found = UncommittedLog(partial(table.look, log), table.standing(log), table.last(log))
        self._logs[log] = found
        return found


class UncommittedLog:
    """A log with what the commit under way is going to change, in its order: what is decided next
    sees what was decided before. Most records come behind all others: then nothing is looked for,
    and nothing put in order."""

    def __init__(self, look: Callable[[], StoredLog], standing: LogStanding, last: Lsn) -> None:
        """`last`: no stored copy is above it."""
        self.standing = standing
        self._look = look
        self._last = last  # no copy is above it
        self._changes: list[Change] = []  # those that `_settle` has not put in order yet
        self._looked: StoredLog | None = None
        self._added = MemoryLog()
        self._rewritten: dict[Lsn, Record] = {}
        self._erased: list[Erase] = []

    def apply(self, change: Change) -> None:
        match change:
            case Put(record):
                self._last = max(self._last, record.last)
            case LogStanding():
                self.standing = change
            case Gone():
                self.standing = LogStanding()
        self._changes.append(change)

    def heads(self, first: Lsn, last: Lsn, records_max: int) -> list[Record]:
        if first > self._last:
            return []
        stored = self._still_here(self._settle().scan(first, last))
        return list(islice(merge(stored, self._added.scan(first, last)), records_max))

    def last_head(self, last: Lsn) -> Record | None:
        stored = next(self._still_here(self._settle().scan_back(last)), None)
        added = self._added.last_head(last)
        return max(filter(None, (added, stored)), default=None)

    def load(self, head: Record) -> Record:
        stored = self._settle()
        if head.first in self._added.by_first:
            return self._added.load(head)
        return head._replace(batch=stored.load(head).batch)

    def end_of(self, epoch: Epoch) -> EpochEnd | None:
        stored = self._settle()
        return self._added.end_of(epoch) or stored.end_of(epoch)

    def _settle(self) -> StoredLog:
        """Put the changes in order; return the log without them."""
        if self._looked is None:
            self._looked = self._look()
        for change in self._changes:
            match change:
                case Rewrite(head) if head.first not in self._added.by_first:
                    self._rewritten[head.first] = head
                    continue
                case Erase():
                    self._erased.append(change)
                case Gone():
                    self._looked = MemoryLog()
            self._added.apply(change)
        self._changes.clear()
        return self._looked

    def _still_here(self, heads: Iterator[Record]) -> Iterator[Record]:
        return (self._rewritten.get(head.first, head) for head in heads if self._is_here(head))

    def _is_here(self, head: Record) -> bool:
        """Return whether a stored one is neither trimmed nor replaced nor erased."""
        return (
            head.last > self.standing.trimmed
            and head.first not in self._added.by_first
            and not any(erased.first <= head.first <= erased.last for erased in self._erased)
        )
