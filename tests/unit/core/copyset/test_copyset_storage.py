"""The records that a storage node takes, keeps, shows and deletes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import pytest
from copyset_node import CopysetNode, MemoryRecords

from loomlog.core.copyset.messages import (
    Amend,
    Clean,
    Delivered,
    Digest,
    Digested,
    Done,
    EpochEnd,
    EpochState,
    Forget,
    NotHere,
    Occupied,
    Preempted,
    Purge,
    Read,
    Release,
    Seal,
    SealedAt,
    Store,
    Stored,
    Trim,
)
from loomlog.core.copyset.record import OFFSET_MAX, Kind, Lsn, Record, make
from loomlog.core.copyset.storage import (
    SCAN_RECORDS_MAX,
    SCAN_STEP,
    LogStanding,
    epoch_to_purge,
)

LOG = 1
ME = 2
FAR = make(100, OFFSET_MAX)


def record(
    epoch: int,
    offset: int,
    count: int = 1,
    *,
    kind: Kind = Kind.DATA,
    copyset: tuple[int, ...] = (1, 2, 3),
    wave: int = 1,
    lng: int = 0,
    recovered: int = 0,
) -> Record:
    batch = b"batch of %d" % offset if kind is Kind.DATA else b""
    return Record(make(epoch, offset), count, kind, 7, copyset, wave, lng, recovered, batch)


def end(epoch: int, lng: int, last: int, seal: int, wave: int = 1) -> EpochEnd:
    return EpochEnd(epoch, lng, last, seal, wave)


class Node(CopysetNode):
    def __init__(self) -> None:
        super().__init__(ME)

    def store(self, *records: Record) -> None:
        for each in records:
            assert self.answer(Store(LOG, each)) == Stored()

    def read(
        self,
        first: Lsn = 1,
        until: Lsn = FAR,
        bytes_max: int = 1 << 20,
        everything: bool = True,
        known_down: frozenset[int] = frozenset(),
        batches: bool = True,
    ) -> Delivered:
        answer = self.answer(Read(LOG, first, until, bytes_max, known_down, everything, batches))
        assert isinstance(answer, Delivered)
        return answer

    @property
    def copies(self) -> list[Record]:
        return self.records(LOG).all()

    @property
    def standing(self) -> LogStanding:
        return self.records(LOG).standing


# ---- stores and seals


def test_a_store_is_kept_and_tells_how_far_its_epoch_is() -> None:
    node = Node()
    node.store(record(5, 3, lng=1), record(5, 1, lng=0))
    assert node.copies == [record(5, 1), record(5, 3, lng=1)]
    assert node.standing.lng_of(5) == 1
    assert node.standing.soft_seal == 4


def test_a_sequencer_at_or_below_the_seal_is_preempted() -> None:
    node = Node()
    assert isinstance(node.answer(Seal(LOG, 5)), SealedAt)
    for epoch in (4, 5):
        assert node.answer(Store(LOG, record(epoch, 1))) == Preempted(5)
        assert node.answer(Store(LOG, record(epoch, 1), draining=True)) == Preempted(5)
        assert node.answer(Amend(LOG, record(epoch, 1))) == Preempted(5)
    node.store(record(6, 1))
    assert node.copies == [record(6, 1)]


def test_a_store_seals_the_epochs_before_it_softly() -> None:
    node = Node()
    node.store(record(6, 1))
    assert node.answer(Store(LOG, record(5, 1))) == Preempted(5)
    assert node.answer(Store(LOG, record(5, 1), draining=True)) == Stored()
    assert node.answer(Store(LOG, record(5, 2, recovered=6))) == Stored()
    assert isinstance(node.answer(Seal(LOG, 3)), SealedAt)  # soft seals preempt no recovery


def test_a_newer_wave_takes_the_place_of_an_older_one_and_not_the_other_way() -> None:
    node = Node()
    newer = record(5, 1, copyset=(2, 3, 4), wave=2)
    node.store(record(5, 1), newer, record(5, 1))
    assert node.copies == [newer]


def test_an_amended_copy_keeps_its_batch() -> None:
    node = Node()
    node.store(record(5, 1, 3))
    amended = record(5, 1, 3, copyset=(2, 3, 4), wave=2, lng=0)
    assert node.answer(Amend(LOG, amended._replace(batch=b""))) == Stored()
    assert node.copies == [amended]
    late = record(5, 1, 3, copyset=(1, 2, 4))._replace(batch=b"")
    assert node.answer(Amend(LOG, late)) == Stored()
    assert node.copies == [amended]


def test_what_is_not_here_is_not_amended() -> None:
    node = Node()
    node.store(record(5, 1, 2, kind=Kind.HOLE, recovered=6))
    assert node.answer(Amend(LOG, record(5, 3, recovered=6))) == NotHere()
    assert node.answer(Amend(LOG, record(5, 1, 2, recovered=6, wave=2))) == NotHere()
    assert node.answer(Amend(LOG, record(5, 1, 1, recovered=6, wave=2))) == NotHere()


# ---- recovery


def test_recovery_writes_what_a_sequencer_may_not_any_more() -> None:
    node = Node()
    node.store(record(5, 1))
    node.answer(Seal(LOG, 5))
    recovered = record(5, 1, copyset=(2, 3, 4), recovered=6)
    node.store(recovered)
    assert node.copies == [recovered]
    node.answer(Seal(LOG, 6))
    assert node.answer(Store(LOG, record(5, 1, recovered=6, wave=2))) == Preempted(6)


def test_a_plug_takes_the_place_of_all_stale_copies_that_it_covers() -> None:
    node = Node()
    node.store(record(5, 1, 2), record(5, 3, 2), record(5, 6), record(5, 8, 3))
    plug = record(5, 3, 5, kind=Kind.HOLE, recovered=6)
    node.store(plug)
    assert node.copies == [record(5, 1, 2), plug, record(5, 8, 3)]


def test_a_stale_plug_keeps_what_a_newer_recovery_did_not_touch() -> None:
    node = Node()
    node.store(record(5, 3, 7, kind=Kind.HOLE, recovered=6))
    found = record(5, 5, 2, recovered=7)
    node.store(found)
    left = record(5, 3, 2, kind=Kind.HOLE, recovered=6)
    right = record(5, 7, 3, kind=Kind.HOLE, recovered=6)
    assert node.copies == [left, found, right]


def test_what_recovery_wrote_is_not_overwritten_by_an_older_attempt() -> None:
    node = Node()
    found = record(5, 4, recovered=6, wave=2)
    node.store(found, record(5, 3, 3, kind=Kind.HOLE, recovered=6, wave=1))
    assert node.copies == [found]


def test_a_seal_tells_what_is_here_of_the_epochs_to_recover() -> None:
    node = Node()
    node.store(record(3, 1), record(5, 1), record(5, 4, 2, lng=2), record(7, 1))
    node.answer(Release(LOG, make(7, 9)))
    answer = node.answer(Seal(LOG, 6))
    epochs = [EpochState(3, 0, 1), EpochState(5, 2, 5)]
    assert answer == SealedAt(2, 0, epochs, newer=make(7, 1))
    assert node.answer(Seal(LOG, 5)) == Preempted(6)
    assert node.answer(Seal(LOG, 6)) == answer


def test_a_seal_tells_of_an_epoch_that_the_node_only_heard_of() -> None:
    node = Node()
    node.answer(Release(LOG, make(1, 9)))
    assert node.answer(Seal(LOG, 1)) == SealedAt(0, 0, [EpochState(1, 9, 0)])


def test_a_digest_is_for_the_one_who_sealed() -> None:
    node = Node()
    copies = [record(5, offset) for offset in (1, 2, 4)]
    node.store(*copies, record(6, 1))
    assert node.answer(Digest(LOG, 5, 0, 5, 1 << 20)) == NotHere()
    node.answer(Seal(LOG, 5))
    assert node.answer(Digest(LOG, 5, 1, 5, 1 << 20)) == Digested(copies[1:], more=False)
    assert node.answer(Digest(LOG, 5, 0, 5, bytes_max=1)) == Digested(copies[:1], more=True)
    heads = [copy._replace(batch=b"") for copy in copies]
    assert node.answer(Digest(LOG, 5, 0, 5, 1 << 20, batches=False)) == Digested(heads, more=False)
    node.answer(Seal(LOG, 6))
    assert node.answer(Digest(LOG, 5, 0, 5, 1 << 20)) == Preempted(6)


def test_a_clean_epoch_is_written_only_by_a_later_recovery() -> None:
    node = Node()
    node.answer(Seal(LOG, 5))
    recovered = record(1, 1, recovered=6)
    node.store(recovered)
    node.answer(Seal(LOG, 5, 2))
    assert node.answer(Clean(LOG, 5, end(1, 0, 1, seal=5, wave=2))) == Done()
    assert node.standing.last_clean == 1
    assert node.answer(Store(LOG, record(1, 2, recovered=6, wave=1))) == Preempted(5)
    node.store(record(1, 1, recovered=6, wave=3))
    node.store(record(1, 1, recovered=7))
    assert node.copies == [record(1, 1, recovered=7)]


def test_clean_is_for_the_one_who_sealed_and_newer_ends_stay() -> None:
    node = Node()
    assert node.answer(Clean(LOG, 5, end(1, 0, 1, seal=5))) == NotHere()
    node.answer(Seal(LOG, 5, 2))
    assert node.answer(Clean(LOG, 5, end(1, 0, 2, seal=5, wave=2))) == Done()
    assert node.answer(Clean(LOG, 5, end(1, 0, 1, seal=5, wave=1))) == NotHere()
    assert node.records(LOG).end_of(1) == end(1, 0, 2, seal=5, wave=2)
    assert node.records(LOG).end_of(2) is None
    assert node.answer(Clean(LOG, 4, end(1, 0, 1, seal=4))) == Preempted(5)


def test_epochs_are_clean_in_order() -> None:
    node = Node()
    node.store(record(1, 1))
    node.answer(Seal(LOG, 3))
    node.answer(Clean(LOG, 3, end(2, 0, 0, seal=3)))
    assert node.standing.last_clean == 0
    node.answer(Clean(LOG, 3, end(1, 1, 1, seal=3)))
    assert node.standing.last_clean == 2


# ---- release and purge


def test_nothing_is_shown_above_the_release() -> None:
    node = Node()
    node.store(record(1, 1), record(1, 2))
    assert node.read() == Delivered([], 1, 0, 0)
    node.answer(Release(LOG, make(1, 1)))
    assert node.read() == Delivered([record(1, 1)], make(1, 2), 0, make(1, 1))
    node.answer(Release(LOG, make(1, 0)))
    assert node.standing.released == make(1, 1)


def test_a_release_counts_only_over_epochs_that_are_clean_here() -> None:
    node = Node()
    node.store(record(1, 1), record(1, 2), record(4, 1), record(6, 1))
    node.answer(Release(LOG, make(1, 1)))
    node.answer(Release(LOG, make(6, 1)))
    assert node.standing.released == make(1, 1)
    assert epoch_to_purge(make(6, 1), node.standing) == 1
    node.answer(Purge(LOG, end(1, 1, 1, seal=3)))
    node.answer(
        Release(LOG, make(6, 1))
    )  # epochs 2 and 3 are not here: nothing of them can be wrong
    assert node.standing.released == make(4, 0)
    assert epoch_to_purge(make(6, 1), node.standing) == 4
    node.answer(Purge(LOG, end(4, 0, 0, seal=5)))
    node.answer(Release(LOG, make(6, 1)))
    assert epoch_to_purge(make(6, 1), node.standing) is None
    assert node.read().records == [record(1, 1), record(6, 1)]
    assert node.standing.seal == 5


def test_a_node_that_was_away_deletes_its_leftovers() -> None:
    node = Node()
    node.store(*(record(1, offset) for offset in range(1, 8)))
    node.answer(Purge(LOG, end(1, 3, 5, seal=1)))
    assert [copy.offset for copy in node.copies] == [1, 2, 3]
    assert node.standing.last_clean == 1
    assert node.records(LOG).end_of(1) == end(1, 3, 5, seal=1)
    assert node.answer(Store(LOG, record(1, 8))) == Preempted(1)


def test_copies_of_records_that_recovery_found_stay() -> None:
    """The copies that recovery wrote may be lost by now. Holes and marks of a recovery that died
    are deleted."""
    node = Node()
    node.store(*(record(1, offset) for offset in (1, 2, 3, 4, 5, 8)))
    node.store(record(1, 6, kind=Kind.HOLE, recovered=2))
    node.answer(Purge(LOG, replace(end(1, 1, 7, seal=2), found=((2, 2), (4, 7)))))
    assert [copy.offset for copy in node.copies] == [1, 2, 4, 5]


def test_copies_stay_that_recovery_did_not_find_but_for_those_behind_the_end() -> None:
    """The sequencer said where the epoch ended, and recovery wrote no holes before that."""
    node = Node()
    node.store(*(record(1, offset) for offset in range(1, 8)))
    node.answer(Purge(LOG, replace(end(1, 0, 5, seal=2), found=((1, OFFSET_MAX),))))
    assert [copy.offset for copy in node.copies] == [1, 2, 3, 4, 5]


def test_others_who_forgot_an_epoch_do_not_make_the_node_delete_it() -> None:
    node = Node()
    node.store(record(1, 1), record(1, 2, lng=1))
    node.answer(Purge(LOG, end(1, 0, 0, seal=1)))
    assert len(node.copies) == 2
    assert node.standing.last_clean == 1


def test_a_late_purge_deletes_nothing() -> None:
    node = Node()
    node.store(record(1, 1), record(1, 2))
    node.answer(Seal(LOG, 1))
    node.answer(Clean(LOG, 1, end(1, 0, 2, seal=1)))
    node.answer(Purge(LOG, end(1, 0, 2, seal=1)))
    assert len(node.copies) == 2


# ---- reading


def test_each_record_is_sent_by_one_node_and_by_others_for_those_known_down() -> None:
    nodes = {number: CopysetNode(number) for number in (1, 2, 3, 4)}
    copysets = [(1, 2, 3), (2, 3, 4), (1, 3, 4), (1, 2, 4)]
    for offset in range(1, 101):
        stored = record(1, offset, copyset=copysets[offset % 4])
        for member in stored.copyset:
            nodes[member].answer(Store(LOG, stored))

    def sent(number: int, known_down: frozenset[int]) -> list[int]:
        nodes[number].answer(Release(LOG, make(1, 100)))
        answer = nodes[number].answer(Read(LOG, 1, make(1, 100), 1 << 20, known_down))
        assert isinstance(answer, Delivered)
        assert answer.next_lsn == make(1, 101)
        return [each.offset for each in answer.records]

    parts = [sent(number, frozenset()) for number in nodes]
    assert sorted(chain(*parts)) == list(range(1, 101))
    assert min(len(part) for part in parts) > 10
    without_two = [sent(number, frozenset({2})) for number in (1, 3, 4)]
    assert sorted(chain(*without_two)) == list(range(1, 101))
    assert sent(2, frozenset({2})) == parts[1]  # it is up: so the reader learns of it
    everybody_down = [sent(number, frozenset(nodes)) for number in nodes]
    assert sorted(set(chain(*everybody_down))) == list(range(1, 101))


def test_a_copy_that_was_left_behind_by_a_wave_is_sent_only_on_demand() -> None:
    node = Node()
    node.store(record(1, 1, copyset=(3, 4, 5)))
    node.answer(Release(LOG, make(1, 1)))
    assert node.read(everything=False).records == []
    assert len(node.read().records) == 1


def test_a_read_is_as_large_as_was_asked_for_and_goes_on_from_there() -> None:
    node = Node()
    stored = [record(1, offset, 2) for offset in range(1, 20, 2)]
    node.store(*stored)
    node.answer(Release(LOG, make(1, 20)))
    seen: list[Record] = []
    lsn = make(1, 2)  # inside of the first
    while lsn <= make(1, 20):
        answer = node.read(lsn, bytes_max=100)
        assert 0 < len(answer.records) <= 2
        seen += answer.records
        lsn = answer.next_lsn
    assert seen == stored
    assert node.read(make(1, 5), until=make(1, 6)).records == [stored[2]]
    assert node.read(batches=False).records[0] == stored[0]._replace(batch=b"")


def test_a_read_looks_at_a_bounded_number_of_records() -> None:
    node = Node()
    count = SCAN_RECORDS_MAX + 5
    node.store(*(record(1, offset, copyset=(3, 4, 5)) for offset in range(1, count + 1)))
    node.answer(Release(LOG, make(1, count)))
    assert node.read(everything=False).next_lsn == make(1, SCAN_RECORDS_MAX + 1)


def test_a_small_read_of_a_long_log_looks_at_few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    node.store(*(record(1, offset) for offset in range(1, 3 * SCAN_STEP + 1)))
    node.answer(Release(LOG, make(1, 3 * SCAN_STEP)))
    whole = node.read()
    assert [each.offset for each in whole.records] == [*range(1, 3 * SCAN_STEP + 1)]
    assert whole.next_lsn == make(1, 3 * SCAN_STEP + 1)
    looked: list[int] = []
    records = type(node.records(LOG))
    heads = records.heads

    def counted(self: MemoryRecords, first: Lsn, last: Lsn, records_max: int) -> Sequence[Record]:
        found = heads(self, first, last, records_max)
        looked.append(len(found))
        return found

    monkeypatch.setattr(records, "heads", counted)
    assert node.read(bytes_max=1).next_lsn == make(1, 2)
    assert sum(looked) <= SCAN_STEP


def test_what_is_trimmed_is_gone_and_does_not_come_back() -> None:
    node = Node()
    node.store(record(1, 1, 2), record(1, 3, 2))
    node.answer(Trim(LOG, make(1, 3)))
    node.answer(Trim(LOG, make(1, 1)))
    assert node.copies == [record(1, 3, 2)]
    node.store(record(1, 1, 2))
    assert node.copies == [record(1, 3, 2)]
    assert node.read() == Delivered([], make(1, 4), make(1, 3), 0)
    node.answer(Release(LOG, make(1, 4)))
    assert node.read().records == [record(1, 3, 2)]


def test_a_log_that_is_forgotten_leaves_nothing() -> None:
    node = Node()
    node.store(record(1, 1))
    node.answer(Seal(LOG, 1))
    assert node.answer(Forget(LOG)) == Done()
    assert node.copies == []
    assert node.standing == LogStanding()


# ---- an epoch that was taken twice


@pytest.mark.parametrize("wave", [1, 2, 3])
def test_another_record_at_an_occupied_position_is_refused(wave: int) -> None:
    node = Node()
    node.store(record(5, 1, wave=2))
    other = record(5, 1, wave=wave)._replace(batch=b"another one")
    assert node.answer(Store(LOG, other)) == Occupied(make(5, 1))
    assert node.copies == [record(5, 1, wave=2)]


@pytest.mark.parametrize("other", [record(5, 1, 3), record(5, 3, 2), record(5, 2, 1)])
def test_a_record_that_overlaps_another_one_is_refused(other: Record) -> None:
    node = Node()
    node.store(record(5, 2, 2))
    assert node.answer(Store(LOG, other)) == Occupied(other.first)
    assert node.copies == [record(5, 2, 2)]


def test_the_same_record_is_stored_again_in_any_wave() -> None:
    node = Node()
    node.store(record(5, 1, wave=2), record(5, 1, wave=1), record(5, 1, wave=2))
    assert node.copies == [record(5, 1, wave=2)]
    node.store(record(5, 1, wave=3, copyset=(2, 4, 5)))
    assert node.copies == [record(5, 1, wave=3, copyset=(2, 4, 5))]


def test_a_seal_tells_of_copies_of_later_epochs() -> None:
    node = Node()
    node.store(record(5, 1), record(6, 3, 2))
    assert node.answer(Seal(LOG, 5)) == SealedAt(0, 0, [EpochState(5, 0, 1)], newer=make(6, 4))
    assert node.answer(Seal(LOG, 6)).newer == 0  # type: ignore[union-attr]
