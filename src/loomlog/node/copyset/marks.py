"""Marks of the batches that a node was asked to store or to restore, by producer. They identify a
repeated append when the sequencer that took it first is gone.

Marks are in memory only, and bounded in number and age. So a node also knows whether "not seen"
means anything: it does not shortly after a start with copies of the log that were not searched, nor
for a producer that was silent until others took its place.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final

from loomlog.batch import producer_in
from loomlog.core.copyset.messages import FoundBatch
from loomlog.core.copyset.record import Lsn, Record
from loomlog.limits import APPEND_TIMEOUT_S, APPENDS_IN_FLIGHT_MAX
from loomlog.storage.logsdb.recent import RecentBatches
from loomlog.types import LogId

KEPT_OF_PRODUCER: Final = 4 * APPENDS_IN_FLIGHT_MAX  # some are stored more than once
PRODUCERS_MAX: Final = 1000  # of a log
CERTAIN_AFTER_S: Final = 2 * APPEND_TIMEOUT_S  # no client repeats older appends
KEPT_S: Final = 3600.0  # far longer: how long marks of a log stay after its last batch
CLOCKS_APART_S: Final = 600.0  # sequencers, which stamp records, are not further behind
MATTERS_US: Final = int((CERTAIN_AFTER_S + CLOCKS_APART_S) * 1_000_000)


class Marks:
    """The marks of all logs of a node. `now` is the loop's clock."""

    def __init__(
        self, now: Callable[[], float], now_us: int, older: Collection[LogId] | None
    ) -> None:
        """`older`: the logs that had copies here before; None: not known, it may be any log."""
        self._now = now
        self._began = now()
        self.began_us = now_us
        self._older = older
        self._searched: set[LogId] = set()  # of the older ones
        self._logs: dict[LogId, _LogMarks] = {}

    def note(self, log: LogId, record: Record) -> None:
        """Note a record whose batch was checked before."""
        producer_id, sequence = producer_in(record.batch)
        if producer_id:
            marks = self._of(log)
            marks.noted_at = self._now()
            marks.newest_us = max(marks.newest_us, record.timestamp_us)
            marks.note(producer_id, sequence, record.first)

    def note_restored(self, log: LogId, record: Record) -> None:
        """Note a restored copy: it stands for others, which may be gone with their marks. If it is
        too old to matter it would only take the place of others. This node's clock may be ahead of
        those that stamp records, so it is too old only if the log got a much newer one, too."""
        now_us = self.began_us + int((self._now() - self._began) * 1_000_000)
        if record.timestamp_us >= min(now_us, self._of(log).newest_us) - MATTERS_US:
            self.note(log, record)

    def find(self, log: LogId, producer_id: int, sequence: int) -> FoundBatch:
        known = self._logs.get(log)
        lsns, is_whole = known.find(producer_id, sequence) if known else ((), True)
        return FoundBatch(lsns, is_whole and not self.is_short(log))

    def is_short(self, log: LogId) -> bool:
        """Return whether there may be older copies that still matter."""
        is_older = self._older is None or log in self._older
        is_early = self._now() < self._began + CERTAIN_AFTER_S
        return is_older and log not in self._searched and is_early

    def note_older(self, log: LogId, found: RecentBatches) -> None:
        """Note the copies that matter, as they are on disk."""
        for batch in found.batches:
            self._of(log).note_older(*batch)
        if found.complete:
            self._searched.add(log)

    def tidy(self) -> None:
        """Forget marks that are too old to matter: a node may have very many logs."""
        over = self._now() - KEPT_S
        self._logs = {log: marks for log, marks in self._logs.items() if marks.noted_at > over}

    def forget(self, log: LogId) -> None:
        self._logs.pop(log, None)
        if self.is_short(log):
            self._searched.add(log)

    def _of(self, log: LogId) -> _LogMarks:
        marks = self._logs.get(log)
        if marks is None:
            marks = self._logs[log] = _LogMarks(self._now())
        return marks


class _LogMarks:
    def __init__(self, noted_at: float) -> None:
        self.noted_at = noted_at
        self.newest_us = 0  # the highest timestamp of a record
        self._by_producer: OrderedDict[int, _ProducerMarks] = OrderedDict()
        self._producers_forgotten = False

    def note(self, producer_id: int, sequence: int, lsn: Lsn) -> None:
        self.note_older(producer_id, sequence, lsn)
        self._by_producer.move_to_end(producer_id)
        if len(self._by_producer) > PRODUCERS_MAX:
            self._by_producer.popitem(last=False)
            self._producers_forgotten = True

    def note_older(self, producer_id: int, sequence: int, lsn: Lsn) -> None:
        """Note a batch, which no producer has to be forgotten for."""
        marks = self._by_producer.get(producer_id)
        if marks is None:
            marks = self._by_producer[producer_id] = _ProducerMarks()
        marks.note(sequence, lsn)

    def find(self, producer_id: int, sequence: int) -> tuple[tuple[Lsn, ...], bool]:
        """Return where the batch was to be stored, and whether these are all places."""
        marks = self._by_producer.get(producer_id)
        return marks.find(sequence) if marks else ((), not self._producers_forgotten)


class _ProducerMarks:
    """The marks with the highest sequence numbers. They are noted in any order: recoveries and
    donors bring older ones later."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, Lsn]] = []  # a heap
        self._highest = -1  # sequence number of all marks
        self._forgotten = -1  # the highest sequence number of a mark that is not here

    def note(self, sequence: int, lsn: Lsn) -> None:
        mark = sequence, lsn
        if sequence > self._highest:  # mostly; else every mark is looked at
            self._highest = sequence
        elif mark in self._marks:
            return
        if len(self._marks) < KEPT_OF_PRODUCER:
            heapq.heappush(self._marks, mark)
        else:
            self._forgotten = max(self._forgotten, heapq.heappushpop(self._marks, mark)[0])

    def find(self, sequence: int) -> tuple[tuple[Lsn, ...], bool]:
        lsns = tuple(sorted(lsn for known, lsn in self._marks if known == sequence))
        return lsns, sequence > self._forgotten
