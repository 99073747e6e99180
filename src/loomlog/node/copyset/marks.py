"""Marks of the batches that a node was asked to store, by producer. They identify a repeated append
when the sequencer that took it first is gone.

Marks are in memory only, and bounded in number and age. So a node also knows whether "not seen"
means anything: it does not shortly after a start with copies of the log that were not searched, nor
for a producer that was silent until others took its place.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from typing import Final

from loomlog.batch import read_header
from loomlog.core.copyset.messages import FoundBatch
from loomlog.core.copyset.record import Lsn
from loomlog.limits import APPEND_TIMEOUT_S, APPENDS_IN_FLIGHT_MAX
from loomlog.storage.logsdb.recent import RecentBatches
from loomlog.types import Buffer, LogId

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

    def note(self, log: LogId, lsn: Lsn, batch: Buffer) -> None:
        """Note a batch, which was checked before."""
        header = read_header(batch)
        if header.producer_id:
            marks = self._of(log)
            marks.noted_at = self._now()
            marks.note(header.producer_id, header.sequence, lsn)

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
        if log not in self._logs:
            self._logs[log] = _LogMarks(self._now())
        return self._logs[log]


class _LogMarks:
    def __init__(self, noted_at: float) -> None:
        self.noted_at = noted_at
        self._by_producer: OrderedDict[int, deque[tuple[int, Lsn]]] = OrderedDict()
        self._producers_forgotten = False

    def note(self, producer_id: int, sequence: int, lsn: Lsn) -> None:
        marks = self._by_producer.get(producer_id)
        if marks is None:
            marks = self._by_producer[producer_id] = deque(maxlen=KEPT_OF_PRODUCER)
        self._by_producer.move_to_end(producer_id)
        if (sequence, lsn) not in marks:
            marks.append((sequence, lsn))
        if len(self._by_producer) > PRODUCERS_MAX:
            self._by_producer.popitem(last=False)
            self._producers_forgotten = True

    def note_older(self, producer_id: int, sequence: int, lsn: Lsn) -> None:
        """Note a batch that is older than all that are noted."""
        marks = self._by_producer.setdefault(producer_id, deque(maxlen=KEPT_OF_PRODUCER))
        if len(marks) < KEPT_OF_PRODUCER and (sequence, lsn) not in marks:
            marks.appendleft((sequence, lsn))

    def find(self, producer_id: int, sequence: int) -> tuple[tuple[Lsn, ...], bool]:
        """Return where the batch was to be stored, and whether these are all places."""
        marks = self._by_producer.get(producer_id)
        if marks is None:
            return (), not self._producers_forgotten
        lsns = tuple(lsn for known, lsn in marks if known == sequence)
        return lsns, len(marks) < KEPT_OF_PRODUCER or any(known < sequence for known, _ in marks)
