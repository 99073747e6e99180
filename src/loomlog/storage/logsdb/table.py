"""The port to the storage of `copyset` logs; and a log in memory, for records that are not
committed yet.

Calls of the port block and run in a worker, except `logs`, `standing`, `last` and `stored_bytes`.
One worker calls `commit` and `tend`; others may call `ask` at the same time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, TypeVar

from loomlog.core.copyset.landmarks import Ages
from loomlog.core.copyset.messages import EpochEnd
from loomlog.core.copyset.record import Epoch, Lsn, Record
from loomlog.core.copyset.storage import (
    Change,
    Erase,
    Gone,
    LogStanding,
    Put,
    Records,
    Rewrite,
)
from loomlog.types import Buffer, LogId

Found = TypeVar("Found")


class StoredLog(Records, Protocol):
    """The state of a log after some commit, without trimmed records. Reading raises `Corrupt` where
    stored data is damaged."""

    @property
    def standing(self) -> LogStanding:
        """The standing of the log; LogStanding() if it is not stored here."""

    def scan(self, first: Lsn, last: Lsn) -> Iterator[Record]:
        """Yield the heads of all copies that overlap [first, last], in order."""

    def scan_back(self, last: Lsn) -> Iterator[Record]:
        """Yield the heads of all copies that begin at or before `last`, the last one first."""

    def size_of(self, head: Record) -> int:
        """Return the size in bytes of the batch of a head that `scan` returned."""


class LogsTable(Protocol):
    """All logs on one volume."""

    @property
    def damaged_copies(self) -> Collection[tuple[LogId, Lsn]]:
        """The copies that were found damaged since the table was opened, and are not mended."""

    def logs(self) -> list[LogId]:
        """Return the logs that are stored here, in order."""

    def standing(self, log: LogId) -> LogStanding: ...

    def last(self, log: LogId) -> Lsn:
        """Return an LSN above which no copy of the log is stored."""

    def stored_bytes(self, log: LogId) -> int:
        """Return approximately how many bytes of the log are stored. Trimmed ones count until their
        whole partition is trimmed."""

    def look(self, log: LogId) -> StoredLog:
        """Return a view for the committing worker, valid until its next commit."""

    def ask(self, log: LogId, question: Callable[[StoredLog], Found]) -> Found:
        """Return the answer to a question about one consistent state of the log, in any worker. The
        question may be called several times."""

    def commit(self, changes: Sequence[tuple[LogId, Change]], *, sync: bool) -> None:
        """Apply all changes atomically, in order. With `sync`, they survive a power loss once this
        returns. Readers do not see them earlier."""

    def ages(self, log: LogId, before_us: int) -> Ages:
        """Return which copies are older than this time. All copies in a partition with a younger
        copy of the log count as young."""

    def tend(self, now_us: int) -> bool:
        """Begin a new partition if it is time, and drop trimmed data. Return whether there is more
        to drop; it is called again after waiting commits."""

    def compact(self) -> None:
        """Free the space of rows that were deleted from partitions still in use. May take long, so
        it runs in a worker of its own while everything else continues."""

    def interrupt(self) -> None:
        """Abort a running `compact`: the table is about to be closed."""

    def close(self) -> None: ...


@dataclass
class MemoryLog:
    """A log in memory. Its copies are sorted by their first LSN; they do not overlap."""

    standing: LogStanding = field(default_factory=LogStanding)
    firsts: list[Lsn] = field(default_factory=list)
    by_first: dict[Lsn, Record] = field(default_factory=dict)
    ends: dict[Epoch, EpochEnd] = field(default_factory=dict)

    def heads(self, first: Lsn, last: Lsn, records_max: int) -> list[Record]:
        return list(islice(self.scan(first, last), records_max))

    def last_head(self, last: Lsn) -> Record | None:
        return next(self.scan_back(last), None)

    def load(self, head: Record) -> Record:
        return self.by_first[head.first]

    def size_of(self, head: Record) -> int:
        return len(self.by_first[head.first].batch)

    def is_batch_of(self, head: Record, batch: Buffer) -> bool:
        return bytes(self.by_first[head.first].batch) == bytes(batch)

    def end_of(self, epoch: Epoch) -> EpochEnd | None:
        return self.ends.get(epoch)

    def scan(self, first: Lsn, last: Lsn) -> Iterator[Record]:
        index = bisect_right(self.firsts, first)
        if index and self.by_first[self.firsts[index - 1]].last >= first:
            index -= 1
        for at in range(index, bisect_right(self.firsts, last)):
            yield self._head(at)

    def scan_back(self, last: Lsn) -> Iterator[Record]:
        for at in range(bisect_right(self.firsts, last) - 1, -1, -1):
            yield self._head(at)

    def apply(self, change: Change) -> None:
        match change:
            case Put(record):
                if record.first not in self.by_first:
                    insort(self.firsts, record.first)
                self.by_first[record.first] = record
            case Rewrite(head):
                batch = self.by_first[head.first].batch
                self.by_first[head.first] = head._replace(batch=batch)
            case Erase(first, last):
                self._erase(bisect_left(self.firsts, first), bisect_right(self.firsts, last))
            case LogStanding():
                self.standing = change
                self._trim(change.trimmed)
            case EpochEnd():
                self.ends[change.epoch] = change
            case Gone():
                self._erase(0, len(self.firsts))
                self.ends.clear()
                self.standing = LogStanding()

    def _head(self, index: int) -> Record:
        return self.by_first[self.firsts[index]]._replace(batch=b"")

    def _trim(self, trimmed: Lsn) -> None:
        end = bisect_right(self.firsts, trimmed)
        if end and self.by_first[self.firsts[end - 1]].last > trimmed:
            end -= 1
        self._erase(0, end)

    def _erase(self, begin: int, end: int) -> None:
        for first in self.firsts[begin:end]:
            del self.by_first[first]
        del self.firsts[begin:end]
