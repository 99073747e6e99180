"""A log as a chain of segments: where positions are, and what a switch may do."""

from __future__ import annotations

import pytest

from loomlog.core.segments import Chain, Part, Settings, SwitchState, chain_of
from loomlog.errors import InvalidArgument, Trimmed

ORDERED = Settings("ordered", 2, 3)
CHAINED = Settings("chained", 1, 3)


def switched(chain: Chain, tail: int, loglet: int) -> Chain:
    return chain.prepare(loglet, CHAINED).ready().extend(tail)


@pytest.fixture
def chain() -> Chain:
    """[1 … 10] [11 … 20] [] [21 …]"""
    chain = chain_of(1, ORDERED)
    for loglet, tail in ((2, 10), (3, 20), (4, 20)):
        chain = switched(chain, tail, loglet)
    return chain


@pytest.mark.parametrize(("position", "loglet"), [(1, 1), (10, 1), (11, 2), (20, 2), (21, 4)])
def test_a_position_belongs_to_one_segment(chain: Chain, position: int, loglet: int) -> None:
    assert chain.segment_of(position).loglet == loglet


def test_a_reader_passes_the_segments_in_turn_each_up_to_its_end(chain: Chain) -> None:
    one, two, _, four = chain.segments
    assert chain.parts(5) == [Part(one, 5, 10), Part(two, 11, 20), Part(four, 21, None)]
    assert chain.parts(12, 15) == [Part(two, 12, 15)]
    assert chain.parts(20, 30) == [Part(two, 20, 20), Part(four, 21, 30)]


def test_a_trim_drops_segments_of_which_nothing_is_left(chain: Chain) -> None:
    trimmed = chain.trim(10)
    assert [segment.loglet for segment in trimmed.segments] == [2, 3, 4]
    with pytest.raises(Trimmed, match="first one kept is 11"):
        trimmed.segment_of(10)
    assert [segment.loglet for segment in chain.trim(30).segments] == [4]
    assert trimmed.trim(5) == trimmed


def test_nothing_is_sealed_before_there_is_something_to_go_on_with() -> None:
    chain = chain_of(1, ORDERED)
    with pytest.raises(InvalidArgument, match="none cannot become none"):
        chain.extend(5)
    preparing = chain.prepare(2, CHAINED)
    assert preparing.switch is SwitchState.PREPARING
    with pytest.raises(InvalidArgument):
        preparing.extend(5)
    assert preparing.give_up() == chain


def test_there_is_no_way_back_once_it_may_be_sealed() -> None:
    sealing = chain_of(1, ORDERED).prepare(2, CHAINED).ready()
    with pytest.raises(InvalidArgument, match="sealing cannot become none"):
        sealing.give_up()
    with pytest.raises(InvalidArgument):
        sealing.prepare(3, CHAINED)


def test_a_segment_does_not_end_before_it_starts(chain: Chain) -> None:
    with pytest.raises(InvalidArgument, match="from 21 on cannot end at 19"):
        chain.prepare(5, ORDERED).ready().extend(19)


def test_a_switch_drops_older_segments_of_which_nothing_is_left(chain: Chain) -> None:
    """Not the one that it ends: who has an append under way there asks what became of it."""
    empty = switched(chain_of(1, ORDERED), 0, 2)
    assert [segment.loglet for segment in empty.segments] == [1, 2]
    again = switched(empty, 0, 3)
    assert [(s.loglet, s.start, s.end) for s in again.segments] == [(2, 1, 0), (3, 1, None)]
    trimmed = switched(chain.trim(25), 30, 5)
    assert [segment.loglet for segment in trimmed.segments] == [4, 5]
    assert [segment.loglet for segment in switched(trimmed, 30, 6).segments] == [4, 5, 6]
