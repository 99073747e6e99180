"""Changes of the state of a copyset log in the epoch store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loomlog.core.copyset.log_state import (
    awaited,
    can_be_recovered,
    finish,
    first_state,
    holders,
    is_recovered,
    lossy_epochs,
    note_tail,
    set_clean,
    take_epoch,
    trim,
    uncertain,
)
from loomlog.core.copyset.messages import Acknowledged, EpochEnd, Finish, LogState, SetClean
from loomlog.core.copyset.nodeset import Member
from loomlog.core.copyset.record import OFFSET_MAX, make

LOG = 7


def members(*nodes: int) -> tuple[Member, ...]:
    return tuple(map(Member, nodes))


def started(epochs: int = 1, *, start: int = 1) -> LogState:
    """Return a log on nodes 1 to 3, with two copies of everything."""
    state = first_state(members(1, 2, 3), 2, start)
    for _ in range(epochs):
        state = take_epoch(state, 1, state.history[-1].nodeset)
    return state


def clean(state: LogState, epoch: int, offset: int, *, exact: bool = True) -> LogState:
    end = EpochEnd(epoch, 0, offset, seal=state.epoch - 1, wave=1, exact=exact)
    return set_clean(state, SetClean(LOG, state.epoch, end))


@pytest.mark.parametrize(("start", "first"), [(1, 1), (1000, 1), (make(4, 9), 5)])
def test_the_first_epoch_lies_above_all_before_it(start: int, first: int) -> None:
    state = take_epoch(first_state(members(1), 1, start), 1, members(1))
    assert (state.epoch, state.last_clean, state.tail) == (first, first - 1, start - 1)
    assert state.metadata_of(first).shards == (1,)
    assert is_recovered(state)


def test_a_nodeset_holds_from_its_first_epoch_on() -> None:
    state = take_epoch(started(2), 4, members(2, 3, 4))
    assert [state.metadata_of(epoch).shards for epoch in (1, 2, 3)] == [(1, 2, 3)] * 2 + [(2, 3, 4)]
    assert holders(state) == {1, 2, 3, 4}
    assert state.sequencer == 4


def test_a_nodeset_that_nobody_used_is_replaced() -> None:
    state = take_epoch(started(0), 1, members(1, 4))
    assert [(m.since, m.shards) for m in state.history] == [(1, (1, 4))]
    assert holders(started(0)) == set()


def test_who_took_an_epoch_is_remembered_until_it_is_recovered() -> None:
    nodeset = members(1, 2, 3)
    state = first_state(nodeset, 2)
    for node in (4, 5, 6):
        state = take_epoch(state, node, nodeset)
    assert [state.sequencers_since(epoch) for epoch in (1, 2, 3, 4)] == [
        {4, 5, 6},
        {5, 6},
        {6},
        set(),
    ]
    assert clean(state, 2, 9).sequencers_since(0) == {6}
    assert take_epoch(clean(state, 2, 9), 7, nodeset).sequencers_since(0) == {6, 7}


def test_closed_is_for_good() -> None:
    state = take_epoch(take_epoch(started(), 2, members(1, 2, 3), closed=True), 3, members(1, 2, 3))
    assert state.closed
    assert not is_recovered(state)
    assert is_recovered(clean(clean(state, 1, 5), 2, 0))


def test_only_the_newest_epoch_cleans_and_only_what_is_before_it() -> None:
    state = started(3)
    end = EpochEnd(1, 0, 5, seal=1, wave=1)
    assert set_clean(state, SetClean(LOG, 2, end)) == state
    assert clean(state, 3, 5) == state
    cleaned = clean(state, 1, 5)
    assert (cleaned.last_clean, cleaned.tail) == (1, make(1, 5))
    assert clean(cleaned, 1, 9) == cleaned


def test_an_empty_epoch_does_not_lower_the_tail() -> None:
    state = replace(started(2), tail=make(1, 5))
    assert clean(state, 1, 0).tail == make(1, 5)


def test_where_every_recovered_epoch_ended_is_remembered_until_it_is_trimmed() -> None:
    state = clean(clean(clean(started(4), 1, 5), 2, 0), 3, 7)
    ends = [state.end_of(epoch) for epoch in (1, 2, 3, 4)]
    assert [end and end.last for end in ends] == [5, 0, 7, None]
    assert [end.epoch for end in trim(state, make(2, 1)).ends] == [3]


def test_where_the_end_of_an_epoch_is_not_known_all_of_it_may_have_been_acknowledged() -> None:
    state = clean(started(2), 1, 5, exact=False)
    assert state.tail == make(1, OFFSET_MAX)
    assert uncertain(state) == [1]
    assert uncertain(trim(state, state.tail - 1)) == [1]
    assert uncertain(trim(state, state.tail)) == [], "no trim can go further"
    assert lossy_epochs(trim(state, state.tail - 1), {1: 1, 2: 1}) == [1]
    assert lossy_epochs(trim(state, state.tail), {1: 1, 2: 1}) == []
    empty = clean(started(2), 1, 0, exact=False)
    assert uncertain(empty) == [1]


def test_what_a_sequencer_says_last_counts_for_good() -> None:
    state = note_tail(started(2), make(1, 5))
    assert state.acknowledged_in(1) == Acknowledged(1, 5, final=False)
    assert note_tail(state, make(1, 4)) == state
    state = finish(state, Finish(LOG, 1, 7))
    assert state.acknowledged_in(1) == Acknowledged(1, 7, final=True)
    assert note_tail(state, make(1, 9)) == state
    assert finish(state, Finish(LOG, 1, 9)) == state
    late = clean(state, 1, 2, exact=False).end_of(1)
    assert late is not None
    assert (late.last, late.exact) == (7, True), "it was told while the epoch was recovered"
    assert clean(state, 1, 7).told == ()
    assert finish(clean(state, 1, 7), Finish(LOG, 1, 9)).told == ()


def test_nothing_is_believed_of_epochs_that_nobody_took() -> None:
    assert note_tail(started(2), make(3, 1)) == started(2)
    assert note_tail(started(2), 0) == started(2)


def test_nodesets_of_which_all_is_trimmed_are_forgotten() -> None:
    state = take_epoch(take_epoch(started(), 4, members(2, 3, 4)), 5, members(3, 4, 5))
    state = clean(clean(state, 1, 5), 2, 5)
    assert [m.since for m in trim(state, make(1, 5)).history] == [1, 2, 3]
    assert [m.since for m in trim(state, make(2, 1)).history] == [2, 3]
    trimmed = trim(state, make(3, 1))
    assert [m.since for m in trimmed.history] == [3]
    assert holders(trimmed) == {3, 4, 5}
    assert trim(trimmed, make(1, 1)) == trimmed


def test_what_is_not_recovered_is_not_forgotten() -> None:
    state = take_epoch(take_epoch(started(), 4, members(2, 3, 4)), 5, members(3, 4, 5))
    assert [m.since for m in trim(state, make(3, 1)).history] == [1, 2, 3]


def test_whether_enough_nodes_are_there_to_go_on() -> None:
    state = take_epoch(started(), 4, members(3, 4, 5))
    assert can_be_recovered(state, {1, 3, 4})
    assert not can_be_recovered(state, {3, 4, 5})
    assert can_be_recovered(clean(state, 1, 0), {3, 5})


def test_whom_recovery_waits_for() -> None:
    state = take_epoch(started(2), 4, members(3, 4, 5))
    assert awaited(state, {1, 2}, 2) == []
    assert awaited(state, {1, 2}, 3) == [3, 4, 5]
    assert awaited(state, {2}, 3) == [1, 3, 4, 5]
    assert awaited(started(2), {3}, 1) == [1, 2]
    assert awaited(clean(clean(state, 1, 0), 2, 0), set(), 2) == []


def test_a_node_that_is_needed_for_every_copy_is_waited_for() -> None:
    state = take_epoch(take_epoch(first_state(members(1, 2, 3), 3), 1, members(1, 2, 3)), 1, ())
    assert awaited(state, {1, 2}, 1) == [3]
