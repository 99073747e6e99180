"""The epoch store knows where recovery left holes. Nodes may have forgotten the marks, or have some
of a recovery that was not the last."""

from __future__ import annotations

from dataclasses import replace

import pytest
from copyset_reader_rig import ReaderRig, bridge, data, end, hole, lsns, metadata, state
from copyset_recovery_rig import LOG, RecoveryRig

from loomlog.core.copyset.effects import GapKind
from loomlog.core.copyset.evidence import Marked, marked_at
from loomlog.core.copyset.messages import EpochEnd, LogState, Release
from loomlog.core.copyset.procedures import Appended, Nowhere, resolve
from loomlog.core.copyset.record import OFFSET_MAX, Kind, Record, last_of, make
from loomlog.core.copyset.sequencer import SequencerSettings
from loomlog.core.copyset.settlement import UNMARKED_MAX, Span, unmarked
from loomlog.core.copyset.storage import Put

END = replace(end(1, 9), lng=2, found=((5, 6), (9, 9)))  # holes: 3 to 4, 7 to 8


def known(ended: EpochEnd = END) -> LogState:
    return state(metadata(1, 2, 3), epoch=2, ends=(ended,), last_clean=1, tail=make(1, 9))


def at(offset: int) -> int:
    return make(1, offset)


@pytest.mark.parametrize(
    ("offset", "marked"),
    [
        (1, Marked(False, 2)),
        (3, Marked(True, 4)),
        (4, Marked(True, 4)),
        (5, Marked(False, 6)),
        (8, Marked(True, 8)),
        (9, Marked(False, 9)),
        (10, Marked(None, OFFSET_MAX)),
    ],
)
def test_the_end_of_an_epoch_tells_where_its_holes_are(offset: int, marked: Marked) -> None:
    assert marked_at(END, offset) == marked


def test_an_end_without_ranges_tells_nothing_above_its_lng() -> None:
    assert marked_at(replace(END, found=()), 3) == Marked(None, OFFSET_MAX)
    assert marked_at(None, 3) == Marked(None, OFFSET_MAX)


def test_a_hole_whose_marks_are_all_forgotten_is_a_hole() -> None:
    rig = ReaderRig(known())
    rig.answer(1, data(at(1), 2), data(at(5), 2), data(at(9)), up_to=last_of(1))
    assert rig.delivered == [lsns(1, 2), lsns(5, 6), lsns(9, 9)]
    assert rig.gaps[:2] == [(at(3), at(4), GapKind.HOLE), (at(7), at(8), GapKind.HOLE)]


def test_nobody_is_waited_for_at_a_hole() -> None:
    rig = ReaderRig(known())
    rig.answer(1, data(at(1), 2), up_to=2)
    assert rig.gaps == [(at(3), at(4), GapKind.HOLE)]


def test_a_copy_in_a_hole_is_not_shown() -> None:
    rig = ReaderRig(known())
    rig.answer(1, data(at(1), 2), data(at(3)), data(at(5), 2), up_to=6)
    assert rig.delivered == [lsns(1, 2), lsns(5, 6)]


def test_a_loss_ends_where_a_hole_begins() -> None:
    rig = ReaderRig(known())
    for _ in range(2):
        for node in (1, 2, 3):
            if node in rig.asks:
                rig.answer(node, data(at(1), 2), data(at(9)), up_to=last_of(1))
        rig.pass_grace()
    assert rig.gaps[:3] == [
        (at(3), at(4), GapKind.HOLE),
        (at(5), at(6), GapKind.DATALOSS),
        (at(7), at(8), GapKind.HOLE),
    ]


def test_a_mark_of_a_recovery_that_was_not_the_last_is_no_reason_to_pass_a_record() -> None:
    rig = ReaderRig(known())
    rig.answer(1, data(at(1), 2), bridge(at(3), recovered=1), up_to=last_of(1))
    assert rig.gaps == [(at(3), at(4), GapKind.HOLE)]
    rig.answer(2, data(at(5), 2, recovered=2), data(at(9), recovered=2), up_to=last_of(1))
    assert rig.delivered == [lsns(1, 2), lsns(5, 6), lsns(9, 9)]


def test_a_record_that_only_such_a_mark_stands_for_is_lost() -> None:
    rig = ReaderRig(known())
    for _ in range(3):
        for node in (1, 2, 3):
            if node in rig.asks:
                rig.answer(node, data(at(1), 2), hole(at(3), at(8)), data(at(9)), up_to=last_of(1))
        rig.pass_grace()
    assert (at(5), at(6), GapKind.DATALOSS) in rig.gaps


def test_an_absent_node_may_know_that_a_hole_is_a_loss() -> None:
    rig = ReaderRig(known(replace(END, absent=(3,))))
    rig.answer(1, data(at(1), 2), up_to=2)
    assert rig.gaps == []
    rig.tell(known(replace(END, absent=(3,), lost=((3, 4),))))
    assert rig.gaps == [(at(3), at(4), GapKind.DATALOSS)]


def test_all_holes_that_a_sequencer_can_leave_are_known() -> None:
    """Every other of its records may be missing."""
    records = SequencerSettings().window_records
    marks = [Span(offset, offset, Kind.HOLE) for offset in range(1, records, 2)]
    found = unmarked([*marks, Span(records + 1, OFFSET_MAX, Kind.BRIDGE)], 0)
    assert found[-1] == (records, records)
    assert len(found) < UNMARKED_MAX


# ---- what became of an append


def rig_with(*, found: tuple[tuple[int, int], ...]) -> RecoveryRig:
    rig = RecoveryRig(count=3, replication=2, epoch=2)
    rig.write(1, 1, 2)
    rig.write(3, 1, 2)
    ended = EpochEnd(1, 0, 3, 1, 1, found=found)
    rig.state = replace(rig.state, last_clean=1, ends=(ended,))
    return rig


def test_an_append_in_a_hole_is_nowhere_also_if_all_marks_are_forgotten() -> None:
    rig = rig_with(found=((1, 1), (3, 3)))
    assert isinstance(rig.drive(resolve(LOG, make(1, 2))), Nowhere)


def test_an_append_is_found_although_a_node_has_a_mark_there_that_does_not_count() -> None:
    rig = rig_with(found=((1, 3),))
    mark = Record(make(1, 2), 2, Kind.HOLE, 7, (3,), 9, 0, 9)
    rig.nodes[3].records(LOG).apply(Put(mark))
    for node in rig.nodes.values():
        node.answer(Release(LOG, make(2, 0)))
        node.records(LOG).standing = node.records(LOG).standing._replace(released=make(2, 0))
    outcome = rig.drive(resolve(LOG, make(1, 3)))
    assert isinstance(outcome, Appended)
