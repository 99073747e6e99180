"""A node mends a damaged copy only with the batch that was stored there."""

from __future__ import annotations

from copyset_node import MemoryRecords

from loomlog.core.copyset.messages import Mend, NotHere, Stored
from loomlog.core.copyset.record import Kind, Lsn, Record, make
from loomlog.core.copyset.storage import Decision, LogStanding, Put, decide
from loomlog.errors import Corrupt

LOG, ME = 1, 2


class Damaged(MemoryRecords):
    def __init__(self, *records: Record, damaged: tuple[Lsn, ...] = ()) -> None:
        super().__init__()
        self.damaged = damaged
        for record in records:
            self.apply(Put(record))

    def load(self, head: Record) -> Record:
        if head.first in self.damaged:
            raise Corrupt("damaged")
        return super().load(head)


def record(offset: int = 5, *, wave: int = 1, batch: bytes = b"batch", count: int = 2) -> Record:
    return Record(make(3, offset), count, Kind.DATA, 0, (1, 2, 3), wave, 0, 0, batch)


def mended(records: Damaged, sent: Record, *, trimmed: Lsn = 0) -> Decision:
    sealed = LogStanding(seal=9, last_clean=9, trimmed=trimmed)
    return decide(Mend(LOG, sent), sealed, records, ME)


def test_a_damaged_copy_gets_its_batch_back_and_keeps_the_rest() -> None:
    own = record(wave=4)
    answer, changes = mended(Damaged(own, damaged=(own.first,)), record(wave=1))
    assert answer == Stored()
    assert changes == [Put(own)], "an older copy brings only its batch, whatever is sealed"


def test_another_batch_is_not_taken() -> None:
    own = record()
    found = mended(Damaged(own, damaged=(own.first,)), record(batch=b"other"))
    assert found == (NotHere(), [])


def test_a_sound_copy_stays_as_it_is() -> None:
    assert mended(Damaged(record()), record(wave=7, batch=b"other")) == (Stored(), [])


def test_nothing_is_added() -> None:
    assert mended(Damaged(), record()) == (NotHere(), [])
    longer = Damaged(record(count=3), damaged=(record().first,))
    assert mended(longer, record()) == (NotHere(), [])


def test_what_is_trimmed_needs_no_mending() -> None:
    own = record()
    damaged = Damaged(own, damaged=(own.first,))
    assert mended(damaged, own, trimmed=own.last) == (Stored(), [])
