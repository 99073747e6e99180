"""A log as a sequence of segments: where positions are, and what a switch may do."""

from __future__ import annotations

import pytest

from loomlog.core.segments import Layout, Segment, Settings, SwitchState
from loomlog.errors import InvalidArgument, Trimmed

ORDERED = Settings("ordered", 2, 3)
CHAINED = Settings("chained", 1, 3)
NEW = Layout((Segment(1, ORDERED, 1),))


def switched(layout: Layout, tail: int, loglet: int) -> Layout:
    return layout.prepare(loglet, CHAINED).ready().extend(tail)


@pytest.fixture
def layout() -> Layout:
    """[1 … 10] [11 … 20] [] [21 …]"""
    layout = NEW
    for loglet, tail in ((2, 10), (3, 20), (4, 20)):
        layout = switched(layout, tail, loglet)
    return layout


@pytest.mark.parametrize(("position", "loglet"), [(1, 1), (10, 1), (11, 2), (20, 2), (21, 4)])
def test_a_position_belongs_to_one_segment(layout: Layout, position: int, loglet: int) -> None:
    assert layout.segment_of(position).loglet == loglet


def test_a_trim_drops_segments_of_which_nothing_is_left(layout: Layout) -> None:
    trimmed = layout.trim(10)
    assert [segment.loglet for segment in trimmed.segments] == [2, 3, 4]
    with pytest.raises(Trimmed, match="first one kept is 11"):
        trimmed.segment_of(10)
    assert [segment.loglet for segment in layout.trim(30).segments] == [4]
    assert trimmed.trim(5) == trimmed


def test_nothing_is_sealed_before_there_is_something_to_go_on_with() -> None:
    layout = NEW
    with pytest.raises(InvalidArgument, match="none cannot become none"):
        layout.extend(5)
    preparing = layout.prepare(2, CHAINED)
    assert preparing.switch is SwitchState.PREPARING
    with pytest.raises(InvalidArgument):
        preparing.extend(5)
    assert preparing.give_up() == layout


def test_there_is_no_way_back_once_it_may_be_sealed() -> None:
    sealing = NEW.prepare(2, CHAINED).ready()
    with pytest.raises(InvalidArgument, match="sealing cannot become none"):
        sealing.give_up()
    with pytest.raises(InvalidArgument):
        sealing.prepare(3, CHAINED)


def test_a_segment_does_not_end_before_it_starts(layout: Layout) -> None:
    with pytest.raises(InvalidArgument, match="from 21 on cannot end at 19"):
        layout.prepare(5, ORDERED).ready().extend(19)


def test_a_switch_drops_older_segments_of_which_nothing_is_left(layout: Layout) -> None:
    """The segment that the switch ends stays: appends may still be resolved there."""
    empty = switched(NEW, 0, 2)
    assert [segment.loglet for segment in empty.segments] == [1, 2]
    again = switched(empty, 0, 3)
    assert [(s.loglet, s.start, s.end) for s in again.segments] == [(2, 1, 0), (3, 1, None)]
    trimmed = switched(layout.trim(25), 30, 5)
    assert [segment.loglet for segment in trimmed.segments] == [4, 5]
    assert [segment.loglet for segment in switched(trimmed, 30, 6).segments] == [4, 5, 6]
