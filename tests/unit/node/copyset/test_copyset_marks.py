"""The batches that a node was asked to store."""

from __future__ import annotations

from copyset_rig import a_batch

from loomlog.core.copyset.messages import FoundBatch
from loomlog.core.copyset.record import Kind, Record
from loomlog.node.copyset.marks import (
    CERTAIN_AFTER_S,
    KEPT_OF_PRODUCER,
    KEPT_S,
    MATTERS_US,
    PRODUCERS_MAX,
    Marks,
)
from loomlog.storage.logsdb.recent import RecentBatch, RecentBatches

LOG = 1


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def note(marks: Marks, producer_id: int, sequence: int, lsn: int) -> None:
    marks.note(LOG, a_record(producer_id, sequence, lsn))


def a_record(producer_id: int, sequence: int, lsn: int, timestamp_us: int = 0) -> Record:
    batch = a_batch(1, producer_id, sequence)
    return Record(lsn, 1, Kind.DATA, timestamp_us, (1, 2), 1, 0, 0, batch)


def test_all_places_of_a_batch_are_known() -> None:
    marks = Marks(Clock(), 0, [])
    for sequence, lsn in ((1, 10), (2, 11), (1, 20), (1, 20)):
        note(marks, 5, sequence, lsn)
    assert marks.find(LOG, 5, 1) == FoundBatch((10, 20), certain=True)
    assert marks.find(LOG, 5, 3) == FoundBatch((), certain=True)
    assert marks.find(LOG, 6, 1) == FoundBatch((), certain=True)


def test_what_was_there_before_is_not_known_until_it_does_not_matter_any_more() -> None:
    clock = Clock()
    marks = Marks(clock, 0, [LOG])
    assert marks.find(LOG, 5, 1) == FoundBatch((), certain=False)
    assert marks.find(LOG + 1, 5, 1) == FoundBatch((), certain=True)
    clock.now += CERTAIN_AFTER_S
    assert marks.find(LOG, 5, 1) == FoundBatch((), certain=True)


def test_what_was_there_before_may_be_looked_through() -> None:
    marks = Marks(Clock(), 0, [LOG])
    note(marks, 5, 2, 20)
    marks.note_older(LOG, RecentBatches([RecentBatch(5, 1, 10)], complete=False))
    assert marks.find(LOG, 5, 1) == FoundBatch((10,), certain=False)
    marks.note_older(
        LOG, RecentBatches([RecentBatch(5, 1, 10), RecentBatch(6, 1, 9)], complete=True)
    )
    assert marks.find(LOG, 5, 1) == FoundBatch((10,), certain=True)
    assert marks.find(LOG, 6, 1) == FoundBatch((9,), certain=True)


def test_a_producer_that_appended_much_meanwhile_is_not_known_for_certain() -> None:
    marks = Marks(Clock(), 0, [])
    for sequence in range(1, KEPT_OF_PRODUCER + 2):
        note(marks, 5, sequence, sequence)
    assert marks.find(LOG, 5, 1) == FoundBatch((), certain=False)
    assert marks.find(LOG, 5, KEPT_OF_PRODUCER) == FoundBatch((KEPT_OF_PRODUCER,), certain=True)


def test_older_batches_that_come_later_take_no_place_of_newer_ones() -> None:
    """Recoveries and donors bring them."""
    marks = Marks(Clock(), 0, [])
    for sequence in range(KEPT_OF_PRODUCER + 1, 2 * KEPT_OF_PRODUCER):
        note(marks, 5, sequence, sequence)
    for sequence in range(1, KEPT_OF_PRODUCER + 1):
        note(marks, 5, sequence, sequence)
    for sequence in range(KEPT_OF_PRODUCER, 2 * KEPT_OF_PRODUCER):
        assert marks.find(LOG, 5, sequence) == FoundBatch((sequence,), certain=True)
    assert marks.find(LOG, 5, KEPT_OF_PRODUCER - 1) == FoundBatch((), certain=False)


def test_a_restored_copy_is_noted_unless_clocks_and_a_record_say_that_it_is_too_old() -> None:
    clock = Clock()
    marks = Marks(clock, MATTERS_US, [])
    clock.now += 1.0
    marks.note_restored(LOG, a_record(5, 1, 1, timestamp_us=999_999))  # the clock may be ahead
    marks.note(LOG, a_record(5, 9, 9, timestamp_us=2 * MATTERS_US))
    marks.note_restored(LOG, a_record(5, 2, 2, timestamp_us=999_999))
    marks.note_restored(LOG, a_record(5, 3, 3, timestamp_us=1_000_000))
    found = [marks.find(LOG, 5, sequence).lsns for sequence in (1, 2, 3)]
    assert found == [(1,), (), (3,)]


def test_nor_is_one_whose_place_others_took() -> None:
    marks = Marks(Clock(), 0, [])
    for producer in range(1, PRODUCERS_MAX + 2):
        note(marks, producer, 1, producer)
    assert marks.find(LOG, 1, 1) == FoundBatch((), certain=False)
    assert marks.find(LOG, 2, 1) == FoundBatch((2,), certain=True)


def test_a_log_that_gets_nothing_is_forgotten_after_a_while() -> None:
    """A node may have very many."""
    clock = Clock()
    marks = Marks(clock, 0, [])
    note(marks, 5, 1, 10)
    clock.now += KEPT_S / 2
    marks.note(LOG + 1, a_record(5, 2, 11))
    clock.now += KEPT_S / 2
    marks.tidy()
    assert list(marks._logs) == [LOG + 1]
    assert marks.find(LOG, 5, 1) == FoundBatch((), certain=True)
    assert marks.find(LOG + 1, 5, 2) == FoundBatch((11,), certain=True)
    clock.now += KEPT_S / 2
    marks.tidy()
    assert list(marks._logs) == []
