"""A writer that lives on knows what was acknowledged in an epoch of which all disks forgot it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from copyset_recovery_rig import LOG, NOW_US, RecoveryRig

from loomlog.core.copyset import evidence
from loomlog.core.copyset.acknowledged import RANGES_MAX, AcknowledgedRanges, to_report
from loomlog.core.copyset.evidence import is_lost, loss_at, marked_at, with_forgotten, with_loss
from loomlog.core.copyset.late_losses import absent_shards, forgotten, heard
from loomlog.core.copyset.log_state import take_epoch, uncertain
from loomlog.core.copyset.messages import EpochEnd, Life, LogState
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.core.copyset.record import OFFSET_MAX, make
from loomlog.core.copyset.recovery import CRASHED_ATTEMPTS, Recovered, Recovery
from loomlog.core.copyset.settlement import UNMARKED_MAX

END = EpochEnd(1, lng=1, last=9, seal=1, wave=1, found=((4, 4), (8, 9)), crashed=(1, 2))
MARKED = (2, 3, 5, 6, 7)
METADATA = EpochMetadata(1, tuple(map(Member, (1, 2, 3))), 2)
STATE = LogState(2, 1, (METADATA,), last_clean=1, tail=make(1, 9), ends=(END,))


def lost_in(end: EpochEnd) -> list[int]:
    return [offset for offset in range(1, 12) if is_lost(end, offset)]


def test_only_marks_in_which_something_was_acknowledged_become_lost() -> None:
    changed = with_forgotten(END, [(6, 9)])
    assert lost_in(changed) == [6, 7]
    assert (changed.last, changed.exact) == (9, False)
    assert [offset for offset in range(1, 10) if marked_at(changed, offset).is_marked] == [*MARKED]


def test_a_false_claim_hides_no_entry() -> None:
    everything = with_forgotten(END, [(1, OFFSET_MAX - 1)])
    assert all(is_lost(everything, offset) is (offset in MARKED) for offset in range(1, 10))
    assert with_forgotten(END, [(1, 1), (4, 4), (8, 9)]) == END


def test_what_a_writer_knows_makes_no_hole_below_it_a_loss() -> None:
    """Other appends may have been in flight there; and a node that comes back later adds its own
    only."""
    changed = with_forgotten(replace(END, absent=(3,)), [(7, 7)])
    assert lost_in(changed) == [7]
    assert lost_in(with_loss(changed, 3)) == [2, 3, 7]


def test_a_report_that_is_repeated_changes_nothing() -> None:
    once = forgotten(STATE, [(make(1, 2), make(1, 12))])
    assert once != STATE
    assert forgotten(once, [(make(1, 2), make(1, 12))]) == once
    assert to_report(once, [(make(1, 3), make(1, 3))]) == []


def test_behind_the_last_record_the_extent_is_known_as_far_as_it_was_acknowledged() -> None:
    next_to_it, farther = with_forgotten(END, [(10, 12)]), with_forgotten(END, [(12, 12)])
    assert loss_at(next_to_it, 10) == (12, True)
    assert loss_at(next_to_it, 13) == (OFFSET_MAX, False)
    assert loss_at(farther, 10) == (OFFSET_MAX, False)


def test_of_very_many_losses_all_around_is_lost() -> None:
    found = tuple((offset, offset) for offset in range(5, 5 * UNMARKED_MAX, 5))
    end = EpochEnd(1, 0, found[-1][1], 1, 1, found=found)
    changed = with_forgotten(end, [(offset, offset) for offset in range(1, end.last, 2)])
    assert len(changed.lost) <= UNMARKED_MAX
    assert not any(is_lost(changed, offset) for offset, _ in found)
    assert is_lost(changed, 1)


def test_an_epoch_of_which_nothing_is_left_may_be_lost() -> None:
    nothing = replace(STATE, ends=())
    changed = forgotten(nothing, [(make(1, 1), make(1, 3))])
    assert uncertain(changed) == [1]
    assert changed.tail == make(1, OFFSET_MAX)


def test_what_is_trimmed_or_not_recovered_is_ignored() -> None:
    trimmed = replace(STATE, trimmed=make(1, 9))
    assert forgotten(trimmed, [(make(1, 2), make(1, 9))]) == trimmed
    assert forgotten(STATE, [(make(2, 1), make(2, 5))]) == STATE
    assert forgotten(STATE, [(make(1, 5), make(2, 5)), (make(1, 5), make(1, 2))]) == STATE


# ---- what a writer remembers


def test_ranges_are_joined_whatever_order_answers_come_in() -> None:
    ranges = AcknowledgedRanges()
    for offset in (2, 1, 3, 6, 5, 9):
        ranges.add(make(1, offset), make(1, offset))
    ranges.add(make(2, 1), make(2, 4))
    assert ranges.is_over(2)
    first = [(1, 3), (5, 6), (9, 9)]
    assert ranges.take(1) == [(make(1, a), make(1, b)) for a, b in first]
    assert not ranges.is_over(2)
    assert ranges.is_over(3)
    assert ranges.take(9) == [(make(2, 1), make(2, 4))]
    assert not ranges


def test_memory_is_bounded_and_the_newest_stays() -> None:
    ranges = AcknowledgedRanges()
    newest = make(1, 4 * RANGES_MAX)
    for lsn in range(make(1, 2), newest + 1, 2):
        ranges.add(lsn, lsn)
    kept = ranges.take(1)
    assert len(kept) == RANGES_MAX
    assert kept[-1] == (newest, newest)


def test_nothing_is_reported_if_all_of_it_is_there() -> None:
    assert to_report(STATE, [(make(1, 1), make(1, 1)), (make(1, 8), make(1, 9))]) == []
    mine = [(make(1, 1), make(1, 1)), (make(1, 5), make(1, 6))]
    assert to_report(STATE, mine) == mine[1:]


# ---- segments that were closed


def test_a_segment_ends_behind_all_that_may_be_missed_later() -> None:
    """All nodes crashed that recovered it."""
    closed = take_epoch(STATE, 1, METADATA.nodeset, closed=True)
    assert closed.tail == make(1, OFFSET_MAX)
    assert forgotten(closed, [(make(1, 10), make(1, 12))]).tail == closed.tail
    sure = replace(STATE, ends=(replace(END, crashed=(1,)),))
    assert take_epoch(sure, 1, METADATA.nodeset, closed=True).tail == make(1, 9)


def crashed_rig(*, closed: bool) -> RecoveryRig:
    """Return three nodes that crashed and recovered an epoch of which they forgot everything."""
    rig = RecoveryRig(count=3, replication=2, epoch=2)
    rig.state = replace(
        rig.state, lives=tuple(Life(1, node, 1) for node in rig.nodes), closed=closed
    )
    rig.lives = dict.fromkeys(rig.nodes, 2)
    recovery = Recovery(LOG, 2)
    for _ in range(CRASHED_ATTEMPTS + 1):
        ending = rig.drive(recovery.attempt({}, NOW_US))
    assert isinstance(ending, Recovered)
    return rig


def test_so_does_one_of_which_nothing_was_found() -> None:
    closed, open_ = crashed_rig(closed=True), crashed_rig(closed=False)
    assert closed.state.tail == make(1, OFFSET_MAX)
    assert open_.state.tail == 0  # appends that expect this tail go on
    later = take_epoch(open_.state, 1, METADATA.nodeset, closed=True)
    assert later.tail == make(1, OFFSET_MAX)


# ---- nodes that were absent


def test_a_shard_is_heard_once() -> None:
    state = replace(STATE, ends=(replace(END, absent=(3, 4)),))
    assert absent_shards(state) == [3, 4]
    assert absent_shards(heard(state, 3, through=0)) == [3, 4]
    assert absent_shards(heard(state, 3, through=1)) == [4]


def test_exactly_the_ranges_that_change_something_are_reported() -> None:
    once = forgotten(STATE, [(make(1, 3), make(1, 5))])
    ranges = [(make(1, a), make(1, b)) for a in range(1, 12) for b in range(a, 12)]
    for state in (STATE, once, replace(once, trimmed=make(1, 3)), replace(STATE, ends=())):
        changing = [
            (max(first, state.trimmed + 1), last)
            for first, last in ranges
            if forgotten(state, [(first, last)]) != state
        ]
        assert to_report(state, ranges) == changing


def test_the_marks_of_an_epoch_are_listed_once_for_all_ranges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed: list[EpochEnd] = []

    def marked(end: EpochEnd, through: int) -> list[tuple[int, int]]:
        listed.append(end)
        return [(2, through)]

    monkeypatch.setattr(evidence, "_marked", marked)
    ranges = [(make(1, 4 * i + 2), make(1, 4 * i + 3)) for i in range(RANGES_MAX)]
    assert to_report(STATE, ranges) == ranges
    assert listed == [END]
