"""The `copyset` logs on a volume, with group commit (group_commit.py). A third worker runs
compactions in the background.

core/copyset/storage.py decides the answers. A record that cannot be read fails only the requests
for it.

A release may be lost in a crash. So readers see it immediately, and it is stored with the next
commit: an append takes one commit instead of two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple, TypeAlias, TypeVar

from loomlog.core.copyset.landmarks import Ages, is_counted
from loomlog.core.copyset.messages import (
    Amend,
    Begin,
    Clean,
    Done,
    EpochEnd,
    Forget,
    Mend,
    NodeAnswer,
    NodeRequest,
    Purge,
    Reassign,
    Refused,
    Release,
    Restore,
    Seal,
    Store,
    Trim,
)
from loomlog.core.copyset.nodeset import Trouble
from loomlog.core.copyset.rebuild import restore
from loomlog.core.copyset.rebuild.restore import RestoreRequest
from loomlog.core.copyset.record import HEAD_BYTES, LSN_MAX, Epoch, Lsn, Record
from loomlog.core.copyset.storage import (
    Change,
    Decision,
    Erase,
    Gone,
    LogStanding,
    Put,
    Rewrite,
    decide,
    epoch_to_purge,
    look_up,
)
from loomlog.core.sizes import Measured
from loomlog.errors import Corrupt, LoomError
from loomlog.storage.files import Finished, Worker
from loomlog.storage.group_commit import GroupCommit
from loomlog.storage.logsdb.recent import RecentBatches, recent_batches
from loomlog.storage.logsdb.rows import nonsense
from loomlog.storage.logsdb.table import LogsTable, MemoryLog, StoredLog
from loomlog.types import Buffer, LogId, ShardId

logger = logging.getLogger(__name__)

Answered: TypeAlias = Callable[[NodeAnswer], None]
Found = TypeVar("Found")

_CHANGING: Final = (
    *(Store, Release, Amend, Begin, Seal, Clean, Purge),
    *(Restore, Reassign, Mend, Trim, Forget),
)

MEASURED_AT_ONCE: Final = 4096  # records, so that other look-ups need not wait long
_BUSY: Final = Refused(
    Trouble.OVERLOADED, "the disk is too slow for what is asked: try again later"
)
_FULL: Final = Refused(Trouble.NO_SPACE, "the disk is full: free space, trim logs, or add nodes")


class Checked(NamedTuple):
    """The result of checking copies."""

    next_lsn: Lsn  # all copies below are checked
    size: int = 0  # in bytes
    damaged: tuple[Record, ...] = ()  # their heads


class LogsStore(GroupCommit[NodeRequest, NodeAnswer, Refused]):
    """The logs on one volume."""

    content = "copies"

    def __init__(
        self,
        me: ShardId,
        table: LogsTable,
        commits: Worker,
        look_ups: Worker,
        upkeep: Worker,
        *,
        on_failure: Callable[[BaseException], None] = lambda error: None,
        sync: bool = True,
    ) -> None:
        super().__init__(commits, look_ups, on_failure)
        self._me = me
        self._table = table
        self._upkeep = upkeep
        self.is_full = False  # refuse new records; set by the owner
        self.version = 0  # of rebuilding; set by the owner
        self.requested_version = 0  # the newest in any request; a donor may know it earlier
        self._sync = sync
        self._tending = False
        self._compacting = False
        self._released: dict[LogId, LogStanding] = {}  # with releases that are not committed yet

    def logs(self) -> list[LogId]:
        return self._table.logs()

    def standing(self, log: LogId) -> LogStanding:
        """Return the standing after the last commit, including uncommitted releases."""
        return self._released.get(log) or self._table.standing(log)

    def stored_bytes(self, log: LogId) -> int:
        return self._table.stored_bytes(log)

    def ask(self, request: NodeRequest, done: Answered) -> None:
        """Call `done` with the answer, on the loop. The batch of a request must not change until
        then."""
        if isinstance(request, Release) and self.failed is None and self._release(request):
            done(Done())
        elif not isinstance(request, _CHANGING):
            self._look(request.log, self._question(request), done)
        elif self.failed is not None:
            done(self.failed)
        elif (reason := nonsense(request)) is not None:
            done(Refused(Trouble.DISABLED, reason))
        elif not self._enqueue(request, _bytes_of(request), done):
            done(_BUSY)

    def _question(self, request: NodeRequest) -> Callable[[StoredLog], NodeAnswer]:
        shown = self._released.get(request.log)

        def question(log: StoredLog) -> NodeAnswer:
            standing = log.standing
            if shown is not None and shown.stamp == standing.stamp:
                standing = standing._replace(released=max(shown.released, standing.released))
            return look_up(request, standing, log, self._me)

        return question

    def _release(self, release: Release) -> bool:
        """Show a release to readers. Return False if it needs a commit, because leftovers of older
        epochs have to be purged."""
        log, lsn = release.log, release.lsn
        standing = self.standing(log)
        if epoch_to_purge(lsn, standing) is not None or not 0 <= lsn <= LSN_MAX:
            return False
        if lsn > standing.released:
            self._released[log] = standing._replace(released=lsn)
            self._add(release, partial(self._release_committed, log, lsn))
        return True

    def _release_committed(self, log: LogId, lsn: Lsn, _: NodeAnswer) -> None:
        """Drop a release that was committed, even if that commit also removed the log."""
        if (shown := self._released.get(log)) is not None and shown.released <= lsn:
            del self._released[log]

    def _note(self) -> None:
        for log, shown in list(self._released.items()):
            standing = self._table.standing(log)
            if standing.released >= shown.released:
                del self._released[log]
            else:
                self._released[log] = standing._replace(released=shown.released)

    def settle(self) -> None:
        """Commit waiting releases: the node stops, or there are few appends."""
        self._hurry()

    def recent(
        self,
        log: LogId,
        now_us: int,
        span_us: int,
        done: Callable[[RecentBatches | Refused], None],
    ) -> None:
        """Call `done` with the batches of the last `span_us` (recent_batches)."""
        self._look(log, lambda stored: recent_batches(stored, now_us, span_us), done)

    def ages(self, log: LogId, before_us: int, done: Callable[[Ages | Refused], None]) -> None:
        """Call `done` with which copies are older than a time (LogsTable.ages)."""
        self._look(log, lambda _: self._table.ages(log, before_us), done)

    def last_copy(self, log: LogId, done: Callable[[Record | Refused | None], None]) -> None:
        """Call `done` with the head of the copy with the highest LSN, or None."""
        self._look(log, lambda stored: stored.last_head(LSN_MAX), done)

    def end_of(
        self, log: LogId, epoch: Epoch, done: Callable[[EpochEnd | Refused | None], None]
    ) -> None:
        """Call `done` with the end of an epoch, or None."""
        self._look(log, lambda stored: stored.end_of(epoch), done)

    def flushed(self, done: Finished) -> None:
        """Call `done` when everything that was decided before is committed."""
        self._commits.run([lambda: None], done)

    def head(self, log: LogId, first: Lsn, done: Callable[[Record | Refused | None], None]) -> None:
        """Call `done` with the head of the copy that begins at this LSN, or None."""

        def find(stored: StoredLog) -> Record | None:
            heads = stored.heads(first, first, 1)
            return heads[0] if heads and heads[0].first == first else None

        self._look(log, find, done)

    def check(
        self, log: LogId, first: Lsn, bytes_max: int, done: Callable[[Checked | Refused], None]
    ) -> None:
        """Read copies from an LSN on, and call `done` with those that are damaged."""

        def find(stored: StoredLog) -> Checked:
            checked = Checked(LSN_MAX + 1)
            for head in stored.scan(first, LSN_MAX):
                if checked.size >= bytes_max:
                    return checked._replace(next_lsn=head.first)
                try:
                    size = HEAD_BYTES + len(stored.load(head).batch)
                    checked = checked._replace(size=checked.size + size)
                except Corrupt:
                    checked = checked._replace(damaged=(*checked.damaged, head))
            return checked

        self._look(log, find, done)

    def measure(
        self,
        log: LogId,
        first: Lsn,
        last: Lsn,
        settled: Lsn,
        done: Callable[[Measured | Refused], None],
    ) -> None:
        """Measure the records of [first, last] that count on this shard (`is_counted`), up to
        `settled`: those above it may never be acknowledged."""
        self._look(log, lambda stored: _measured(stored, self._me, first, last, settled), done)

    def _commit(self, requests: Sequence[NodeRequest], size: int) -> list[NodeAnswer]:
        commit = _LogsCommit(
            self._table, self._me, is_full=self.is_full, newest_version=self._newest_version
        )
        answers = [commit.decide(request) for request in requests]
        if commit.changes:
            self._table.commit(commit.changes, sync=self._sync and commit.is_urgent)
        return answers

    def _newest_version(self, requested: int) -> int:
        self.requested_version = max(self.requested_version, requested)
        return max(self.version, self.requested_version)

    def _disk_failed(self, error: BaseException) -> Refused:
        return _disk_failed(error)

    def _look(
        self,
        log: LogId,
        question: Callable[[StoredLog], Found],
        done: Callable[[Found | Refused], None],
    ) -> None:
        if self.failed is not None:
            done(self.failed)
        elif not self._look_up(partial(self._table.ask, log, question), done, _disk_failed):
            done(_BUSY)

    # ---- upkeep

    def tend(self, now_us: int) -> None:
        """Called every few seconds to create and drop partitions."""
        self.settle()
        if self._tending or self.failed is not None:
            return
        self._tending = True
        self._tend(now_us)

    def _tend(self, now_us: int) -> None:
        more: list[bool] = []

        def finished(error: BaseException | None) -> None:
            if error is not None:
                self._commit_failed(error)
            elif more[0]:
                self._tend(now_us)  # after the commits that are waiting by now
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


_WITH_BATCHES: Final = (Store, Restore, Mend)


def _bytes_of(request: NodeRequest) -> int:
    return len(request.record.batch) if isinstance(request, _WITH_BATCHES) else 0


def _measured(stored: StoredLog, me: ShardId, first: Lsn, last: Lsn, settled: Lsn) -> Measured:
    size = 0
    heads = stored.scan(first, last)
    for head in islice(heads, MEASURED_AT_ONCE):
        if first <= head.first <= settled and is_counted(head, me):
            size += stored.size_of(head)
    following = next(heads, None)
    return Measured(last if following is None else following.first - 1, size)


def _disk_failed(error: BaseException) -> Refused:
    is_full = "no space left" in str(error).lower()
    return Refused(Trouble.NO_SPACE if is_full else Trouble.DISABLED, f"the disk failed: {error}")


class _LogsCommit:
    """Decides requests, and collects their changes to a table."""

    def __init__(
        self, table: LogsTable, me: ShardId, *, is_full: bool, newest_version: Callable[[int], int]
    ) -> None:
        self.changes: list[tuple[LogId, Change]] = []
        self.is_urgent = False  # a caller waits for a change to be durable
        self._table = table
        self._me = me
        self._is_full = is_full
        self._newest_version = newest_version
        self._logs: dict[LogId, UncommittedLog] = {}

    def decide(self, request: NodeRequest) -> NodeAnswer:
        if self._is_full and isinstance(request, Store) and not request.record.recovered:
            return _FULL
        log = self._logs.get(request.log) or self._look(request.log)
        try:
            answer, changes = self._decide(request, log)
        except LoomError as error:  # stored records of this log cannot be read
            return _disk_failed(error)
        for change in changes:
            log.apply(change)
            self.changes.append((request.log, change))
        self.is_urgent |= bool(changes) and not isinstance(request, Release)
        return answer

    def _decide(self, request: NodeRequest, log: UncommittedLog) -> Decision:
        if isinstance(request, RestoreRequest):
            version = self._newest_version(request.version)
            return restore.decide(request, log.standing, log, self._me, version)
        return decide(request, log.standing, log, self._me)

    def _look(self, log: LogId) -> UncommittedLog:
        table = self._table
        uncommitted = UncommittedLog(partial(table.look, log), table.standing(log), table.last(log))
        self._logs[log] = uncommitted
        return uncommitted


class UncommittedLog:
    """A log, including the changes of the commit that is being built, so that later decisions see
    earlier ones. Most records come after all others; then nothing needs to be looked up or
    sorted."""

    def __init__(self, look: Callable[[], StoredLog], standing: LogStanding, last: Lsn) -> None:
        """No stored copy is above `last`."""
        self.standing = standing
        self._look = look
        self._last = last  # no copy is above it
        self._changes: list[Change] = []  # not applied by `_settle` yet
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

    def is_batch_of(self, head: Record, batch: Buffer) -> bool:
        stored = self._settle()
        added = head.first in self._added.by_first
        return (self._added if added else stored).is_batch_of(head, batch)

    def end_of(self, epoch: Epoch) -> EpochEnd | None:
        stored = self._settle()
        return self._added.end_of(epoch) or stored.end_of(epoch)

    def _settle(self) -> StoredLog:
        """Apply the changes to the records in memory. Return the stored log, without them."""
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
        """Return whether a stored copy is neither trimmed nor replaced nor erased."""
        return (
            head.last > self.standing.trimmed
            and head.first not in self._added.by_first
            and not any(erased.first <= head.first <= erased.last for erased in self._erased)
        )
