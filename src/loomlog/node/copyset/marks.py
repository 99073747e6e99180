"""Marks of the batches that a node was asked to store or to restore, by producer. They identify a
repeated append if the sequencer that first accepted it is gone.

Marks are in memory only, and limited in number and age. So a node also knows when the absence of a
mark proves nothing: shortly after a start, while the stored copies of the log are not searched, and
for a producer whose marks were dropped in favour of others.
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
        """`older` are the logs that had copies here before; None if they are unknown."""
        self._now = now
        self._began = now()
        self.began_us = now_us
        self._older = older
        self._searched: set[LogId] = set()  # of the older ones
        self._logs: dict[LogId, _LogMarks] = {}

    def note(self, log: LogId, record: Record) -> None:
        """Add the mark of a record whose batch was already verified."""
        producer_id, sequence = producer_in(record.batch)
        if producer_id:
            marks = self._of(log)
            marks.noted_at = self._now()
            marks.newest_us = max(marks.newest_us, record.timestamp_us)
            marks.note(producer_id, sequence, record.first)

    def note_restored(self, log: LogId, record: Record) -> None:
        """Add the mark of a restored copy, because the other copies may be gone with their marks,
        unless it is too old to matter. Since this node's clock may be ahead of the clocks that
        stamp records, it is too old only if the log also has a much newer record."""
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
        """Add the marks of all stored copies that still matter."""
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
        """Add a mark, but do not drop another producer for it."""
        marks = self._by_producer.get(producer_id)
        if marks is None:
            marks = self._by_producer[producer_id] = _ProducerMarks()
        marks.note(sequence, lsn)

    def find(self, producer_id: int, sequence: int) -> tuple[tuple[Lsn, ...], bool]:
        """Return the places where the batch was to be stored, and whether these are all."""
        marks = self._by_producer.get(producer_id)
        return marks.find(sequence) if marks else ((), not self._producers_forgotten)


class _ProducerMarks:
    """The marks of a producer's highest sequence numbers. They may be added in any order, because
    recoveries and donors send older records later."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, Lsn]] = []  # a heap
        self._highest = -1  # sequence number of all marks
        self._forgotten = -1  # the highest sequence number of a mark that is not here

    def note(self, sequence: int, lsn: Lsn) -> None:
        mark = sequence, lsn
        if sequence > self._highest:  # usually; otherwise compare with every mark
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
