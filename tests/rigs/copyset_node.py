"""A storage node of `copyset` in memory, for simulations of the pure protocol: every answer is
given at once, and all that was answered is durable."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from loomlog.core.copyset.messages import EpochEnd, NodeAnswer, NodeRequest
from loomlog.core.copyset.record import Epoch, Lsn, Record
from loomlog.core.copyset.storage import (
    Change,
    Erase,
    Gone,
    LogStanding,
    Put,
    Rewrite,
    decide,
)
from loomlog.types import Buffer, LogId, NodeId


@dataclass
class MemoryRecords:
    """The copies of one log, by their first LSN."""

    standing: LogStanding = field(default_factory=LogStanding)
    firsts: list[Lsn] = field(default_factory=list)
    by_first: dict[Lsn, Record] = field(default_factory=dict)
    ends: dict[Epoch, EpochEnd] = field(default_factory=dict)
    _heads: dict[Lsn, Record] = field(default_factory=dict)  # records without their batches

    def heads(self, first: Lsn, last: Lsn, records_max: int) -> Sequence[Record]:
        index = bisect_right(self.firsts, first)
        if index and self.by_first[self.firsts[index - 1]].last >= first:
            index -= 1
        until = min(index + records_max, bisect_right(self.firsts, last))
        return [self._heads[key] for key in self.firsts[index:until]]

    def last_head(self, last: Lsn) -> Record | None:
        index = bisect_right(self.firsts, last)
        return self._heads[self.firsts[index - 1]] if index else None

    def load(self, head: Record) -> Record:
        return self.by_first[head.first]

    def is_batch_of(self, head: Record, batch: Buffer) -> bool:
        return bytes(self.by_first[head.first].batch) == bytes(batch)

    def end_of(self, epoch: Epoch) -> EpochEnd | None:
        return self.ends.get(epoch)

    def all(self) -> list[Record]:
        return [self.by_first[first] for first in self.firsts]

    def apply(self, change: Change) -> None:
        match change:
            case Put(record):
                if record.first not in self.by_first:
                    insort(self.firsts, record.first)
                self.by_first[record.first] = record
                self._heads[record.first] = record._replace(batch=b"")
            case Rewrite(head):
                batch = self.by_first[head.first].batch
                self.by_first[head.first] = head._replace(batch=batch)
                self._heads[head.first] = head._replace(batch=b"")
            case Erase(first, last):
                self._erase(bisect_left(self.firsts, first), bisect_right(self.firsts, last))
            case LogStanding():
                self.standing = change
                while self.firsts and self.by_first[self.firsts[0]].last <= change.trimmed:
                    self._erase(0, 1)
            case EpochEnd():
                self.ends[change.epoch] = change
            case Gone():
                self._erase(0, len(self.firsts))
                self.ends.clear()
                self.standing = LogStanding()

    def _erase(self, begin: int, end: int) -> None:
        for first in self.firsts[begin:end]:
            del self.by_first[first], self._heads[first]
        del self.firsts[begin:end]


class CopysetNode:
    """The logs of a node."""

    def __init__(self, node_id: NodeId) -> None:
        self.node_id = node_id
        self.logs: dict[LogId, MemoryRecords] = {}

    def records(self, log: LogId) -> MemoryRecords:
        found = self.logs.get(log)
        if found is None:
            found = self.logs[log] = MemoryRecords()
        return found

    def answer(self, request: NodeRequest) -> NodeAnswer:
        records = self.records(request.log)
        answer, changes = decide(request, records.standing, records, self.node_id)
        for change in changes:
            records.apply(change)
        return answer
