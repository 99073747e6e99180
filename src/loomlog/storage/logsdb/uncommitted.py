"""A log with what the commit under way is going to change, in its order: what is decided next sees
what was decided before."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice

from loomlog.core.copyset.messages import EpochEnd
from loomlog.core.copyset.record import Epoch, Lsn, Record
from loomlog.core.copyset.storage import Change, Erase, Gone, LogStanding, Rewrite
from loomlog.storage.logsdb.memory_logs import MemoryLog
from loomlog.storage.logsdb.table import StoredLog


class UncommittedLog:
    def __init__(self, stored: StoredLog) -> None:
        self._stored: StoredLog = stored
        self._added = MemoryLog(stored.standing)
        self._rewritten: dict[Lsn, Record] = {}
        self._erased: list[Erase] = []

    @property
    def standing(self) -> LogStanding:
        return self._added.standing

    def heads(self, first: Lsn, last: Lsn, records_max: int) -> list[Record]:
        return list(islice(self._scan(first, last), records_max))

    def last_head(self, last: Lsn) -> Record | None:
        added = self._added.last_head(last)
        stored = next(self._still_here(self._stored.scan_back(last)), None)
        return max(filter(None, (added, stored)), default=None)

    def load(self, head: Record) -> Record:
        if head.first in self._added.by_first:
            return self._added.load(head)
        return head._replace(batch=self._stored.load(head).batch)

    def end_of(self, epoch: Epoch) -> EpochEnd | None:
        return self._added.end_of(epoch) or self._stored.end_of(epoch)

    def apply(self, change: Change) -> None:
        match change:
            case Rewrite(head) if head.first not in self._added.by_first:
                self._rewritten[head.first] = head
                return
            case Erase():
                self._erased.append(change)
            case Gone():
                self._stored = MemoryLog()
        self._added.apply(change)

    def _scan(self, first: Lsn, last: Lsn) -> Iterator[Record]:
        stored = self._still_here(self._stored.scan(first, last))
        return merge(stored, self._added.scan(first, last))

    def _still_here(self, heads: Iterator[Record]) -> Iterator[Record]:
        return (self._rewritten.get(head.first, head) for head in heads if self._is_here(head))

    def _is_here(self, head: Record) -> bool:
        """Whether a stored one is neither trimmed nor replaced nor erased."""
        return (
            head.last > self.standing.trimmed
            and head.first not in self._added.by_first
            and not any(erased.first <= head.first <= erased.last for erased in self._erased)
        )
