"""The port to where the records of `copyset` logs are kept; and logs in memory.

Calls of the port block and run in a worker, except `logs`, `standing`, `last` and `stored_bytes`.
One worker commits and tends; others may ask at the same time.

The table in memory is for simulations. It has no partitions: what is trimmed goes at once, and a
log is trimmed by time to the record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol, TypeVar

from loomlog.core.copyset.landmarks import Ages
from loomlog.core.copyset.messages import EpochEnd
from loomlog.core.copyset.record import LSN_MAX, Epoch, Lsn, Record
from loomlog.core.copyset.storage import (
    Change,
    Erase,
    Gone,
    LogStanding,
    Put,
    Records,
    Rewrite,
)
from loomlog.storage.logsdb.rows import ages, share_of
from loomlog.types import LogId

Found = TypeVar("Found")


class StoredLog(Records, Protocol):
    """A log as of one commit. What is trimmed does not show. Reading raises `Corrupt` where the
    disk does not give back what was written."""

    @property
    def standing(self) -> LogStanding:
        """The standing of the log; the initial one if it is not stored here."""

    def scan(self, first: Lsn, last: Lsn) -> Iterator[Record]:
        """Yield the heads of all copies that overlap [first, last], in order."""

    def scan_back(self, last: Lsn) -> Iterator[Record]:
        """Yield the heads of all copies that begin at `last` or before, the last one first."""


class LogsTable(Protocol):
    """All logs on one volume."""

    @property
    def damaged_copies(self) -> int:
        """Return how many copies were found to be damaged since it was opened."""

    def logs(self) -> list[LogId]:
        """Return the logs that are stored here, in order."""

    def standing(self, log: LogId) -> LogStanding: ...

    def last(self, log: LogId) -> Lsn:
        """Return an LSN above which no copy of the log is stored."""

    def stored_bytes(self, log: LogId) -> int:
        """Return about how much was stored of it and is not trimmed, in whole partitions."""

    def look(self, log: LogId) -> StoredLog:
        """Return a view for the committing worker, valid for one commit."""

    def ask(self, log: LogId, question: Callable[[StoredLog], Found]) -> Found:
        """Answer as of one commit, in any worker. The question may be called several times."""

    def commit(self, changes: Sequence[tuple[LogId, Change]], *, sync: bool) -> None:
        """Apply all changes atomically, in order; with `sync` they survive a power loss once this
        returns. No reader sees a change earlier."""

    def ages(self, log: LogId, before_us: int) -> Ages:
        """Return which copies are older than this time. A partition with a younger copy of the log
        counts as young as a whole."""

    def tend(self, now_us: int) -> bool:
        """Between commits: begin a new partition if it is time, drop what is trimmed. True: there
        is more to be dropped; commits may come first."""

    def compact(self) -> None:
        """Give back what was dropped out of partitions that stay. May take long; in a worker of its
        own, while everything else continues."""

    def interrupt(self) -> None:
        """Give up a `compact` that is under way: the table is about to be closed."""

    def close(self) -> None: ...


@dataclass
class MemoryLog:
    """Copies by their first LSN: they do not overlap, so that is their order."""

    standing: LogStanding = field(default_factory=LogStanding)
    firsts: list[Lsn] = field(default_factory=list)
    by_first: dict[Lsn, Record] = field(default_factory=dict)
    ends: dict[Epoch, EpochEnd] = field(default_factory=dict)

    @property
    def last(self) -> Lsn:
        return self.by_first[self.firsts[-1]].last if self.firsts else 0

    def heads(self, first: Lsn, last: Lsn, records_max: int) -> list[Record]:
        return list(islice(self.scan(first, last), records_max))

    def last_head(self, last: Lsn) -> Record | None:
        return next(self.scan_back(last), None)

    def load(self, head: Record) -> Record:
        return self.by_first[head.first]

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

    def copy(self) -> MemoryLog:
        return replace(
            self, firsts=list(self.firsts), by_first=dict(self.by_first), ends=dict(self.ends)
        )

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


class MemoryLogs:
    """Loses what was not synced when the power fails."""

    damaged_copies = 0

    def __init__(self) -> None:
        self._logs: dict[LogId, MemoryLog] = {}
        self._durable: dict[LogId, MemoryLog] | None = None  # if it is not all

    def logs(self) -> list[LogId]:
        return sorted(self._logs)

    def standing(self, log: LogId) -> LogStanding:
        return self.look(log).standing

    def last(self, log: LogId) -> Lsn:
        return self.look(log).last

    def stored_bytes(self, log: LogId) -> int:
        return sum(len(record.batch) for record in self.look(log).by_first.values())

    def look(self, log: LogId) -> MemoryLog:
        return self._logs.get(log) or MemoryLog()

    def ask(self, log: LogId, question: Callable[[MemoryLog], Found]) -> Found:
        return question(self.look(log))

    def commit(self, changes: Sequence[tuple[LogId, Change]], *, sync: bool) -> None:
        if not sync and self._durable is None:
            self._durable = {log: kept.copy() for log, kept in self._logs.items()}
        for log, change in changes:
            if isinstance(change, Gone):
                self._logs.pop(log, None)
            else:
                self._logs.setdefault(log, MemoryLog()).apply(change)
        if sync:
            self._durable = None

    def lose_power(self) -> None:
        """Go back to the last sync."""
        if self._durable is not None:
            self._logs, self._durable = self._durable, None

    def ages(self, log: LogId, before_us: int) -> Ages:
        """Return the ages as if each record had its own partition."""
        return ages((share_of(head) for head in self.look(log).scan(0, LSN_MAX)), before_us)

    def tend(self, now_us: int) -> bool:
        return False

    def compact(self) -> None:
        pass

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass
