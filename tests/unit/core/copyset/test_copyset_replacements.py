"""When a node that does not recover a log is replaced, and which nodes are avoided then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loomlog.core.copyset.log_state import first_state, take_epoch
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import Member
from loomlog.core.copyset.replacements import AGAIN, AVOIDED, PATIENCE, Replacements, can_go_on

LOG = 7
NODESET = (Member(1), Member(2), Member(3))
FIVE = tuple(map(Member, range(1, 6)))
FIRST = take_epoch(first_state(NODESET, 2), 1, NODESET)
TIME_S = PATIENCE.first_s


def unrecovered(state: LogState, node: int) -> LogState:
    return take_epoch(state, node, NODESET)


def failing(node: int) -> LogState:
    return unrecovered(FIRST, node)


def recovered(state: LogState) -> LogState:
    return replace(state, last_clean=state.epoch - 1)


def test_a_node_has_some_time_to_recover_a_log() -> None:
    replacements, state = Replacements(), unrecovered(FIRST, 1)
    assert replacements.look(LOG, state, True, 100.0) == TIME_S
    assert replacements.look(LOG, state, True, 101.0) == TIME_S - 1
    assert not replacements.is_due(LOG, state, 99.0 + TIME_S)
    assert replacements.is_due(LOG, state, 100.0 + TIME_S)
    assert replacements.look(LOG, recovered(state), True, 100.0 + TIME_S) is None
    assert not replacements.is_due(LOG, state, 100.0 + TIME_S)


def test_the_time_begins_anew_with_progress_and_when_nodes_are_back() -> None:
    replacements, state = Replacements(), unrecovered(unrecovered(FIRST, 1), 1)
    replacements.look(LOG, state, True, 0.0)
    further = replace(state, last_clean=state.last_clean + 1)
    assert replacements.look(LOG, further, True, 50.0) == TIME_S
    assert replacements.look(LOG, further, False, 60.0) is None
    assert not replacements.is_due(LOG, further, 1000.0), "too few nodes are there"
    assert replacements.look(LOG, further, True, 1000.0) == TIME_S


def test_another_epoch_of_the_same_node_is_no_progress() -> None:
    """A node whose recoveries fail unexpectedly takes one after another."""
    replacements, state = Replacements(), unrecovered(FIRST, 1)
    replacements.look(LOG, state, True, 0.0)
    again = unrecovered(state, 1)
    assert replacements.look(LOG, again, True, 50.0) == TIME_S - 50
    assert replacements.look(LOG, unrecovered(again, 2), True, 50.0) == TIME_S, "another node"


def test_each_attempt_in_a_row_gets_more_time_until_one_succeeds() -> None:
    replacements, state, now_s, waits = Replacements(), unrecovered(FIRST, 1), 0.0, []
    for attempt in range(12):
        wait_s = replacements.look(LOG, state, True, now_s)
        assert wait_s is not None
        waits.append(wait_s)
        now_s += wait_s
        assert replacements.is_due(LOG, state, now_s)
        assert replacements.failed(LOG, state, now_s)
        state = unrecovered(state, 2 - attempt % 2)
    assert waits[:3] == [TIME_S, 2 * TIME_S, 4 * TIME_S]
    assert waits[-1] == PATIENCE.max_s
    assert replacements.look(LOG, recovered(state), True, now_s) is None
    assert replacements.look(LOG, unrecovered(recovered(state), 3), True, now_s) == TIME_S


def test_a_node_that_failed_is_avoided_and_for_longer_if_it_fails_again() -> None:
    replacements = Replacements()
    assert replacements.avoided(LOG, 0.0) == []
    replacements.failed(LOG, failing(1), 0.0)
    replacements.failed(LOG, failing(2), 1.0)
    assert replacements.avoided(LOG, 2.0) == [1, 2]
    assert replacements.avoided(LOG, AVOIDED.first_s) == [2]
    replacements.failed(LOG, failing(1), AVOIDED.first_s)
    assert replacements.avoided(LOG, AVOIDED.first_s) == [2, 1], "the one that failed last is last"
    assert replacements.avoided(LOG, 2.9 * AVOIDED.first_s) == [1]
    assert replacements.avoided(LOG, 3 * AVOIDED.first_s) == []


def test_another_node_that_recovers_the_log_does_not_make_it_fit() -> None:
    replacements = Replacements()
    replacements.failed(LOG, failing(1), 0.0)
    replacements.look(LOG, recovered(unrecovered(FIRST, 2)), True, 1.0)
    assert replacements.avoided(LOG, 1.0) == [1]


@pytest.mark.parametrize("how", ["it recovers the log", "an operator chose it", "the log is gone"])
def test_it_gets_another_chance(how: str) -> None:
    replacements = Replacements()
    replacements.failed(LOG, failing(1), 0.0)
    if how == "it recovers the log":
        replacements.look(LOG, recovered(unrecovered(FIRST, 1)), True, 1.0)
    elif how == "an operator chose it":
        replacements.chosen(LOG, 1)
    else:
        replacements.forget(LOG)
    assert replacements.avoided(LOG, 1.0) == []


def test_attempts_that_fail_at_once_follow_each_other_more_and_more_slowly() -> None:
    replacements, delays = Replacements(), []
    for _ in range(20):
        replacements.interrupted(LOG)
        delays.append(replacements.delay_s(LOG))
    assert delays[:3] == [AGAIN.first_s, 2 * AGAIN.first_s, 4 * AGAIN.first_s]
    assert delays[-1] == AGAIN.max_s
    assert replacements.avoided(LOG, 0.0) == []


def test_a_node_that_gave_up_is_due_at_once_and_blamed_once() -> None:
    replacements, state = Replacements(), failing(1)
    replacements.look(LOG, state, True, 0.0)
    assert replacements.failed(LOG, state, 1.0)
    assert not replacements.failed(LOG, state, 2.0)
    assert replacements.is_due(LOG, state, 1.0)
    assert replacements.look(LOG, state, True, 1.0) == 0.0
    assert replacements.look(LOG, unrecovered(state, 2), True, 1.0) == 2 * TIME_S


def test_only_a_recovery_that_waits_for_no_node_can_go_on() -> None:
    state = unrecovered(FIRST, 1)
    assert can_go_on(state, [1, 2])
    assert not can_go_on(state, [1])
    assert can_go_on(state, [1], given_up=[2, 3])
    short_of_copies = unrecovered(take_epoch(first_state(FIVE, 4), 1, FIVE), 1)
    assert not can_go_on(short_of_copies, [1, 2, 3]), "they are an f-majority, but cannot store"
    assert can_go_on(short_of_copies, [1, 2, 3, 4])
