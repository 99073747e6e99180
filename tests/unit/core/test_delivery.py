"""The table of what becomes of a batch. tests/sim/test_delivery_core.py explores it."""

from __future__ import annotations

from itertools import product

import pytest

from loomlog.core.delivery import (
    AT_ONCE,
    DOUBTFUL,
    EXACTLY_ONCE,
    FAIL_FAST,
    QUEUED,
    RETRYING,
    SENT,
    SETTLED,
    Action,
    Event,
    Progress,
    State,
    rest_s,
)


@pytest.mark.parametrize("event", [Event.OVERDUE, Event.CLOSED])
@pytest.mark.parametrize("state", [state for state in State if state is not SETTLED])
def test_every_batch_can_be_ended_and_may_be_there_only_if_it_was_sent(
    state: State, event: Event
) -> None:
    after, action = EXACTLY_ONCE[state, event]
    assert after is SETTLED
    assert (action is Action.FAIL_AS_UNKNOWN) == (state in (SENT, DOUBTFUL))


def test_a_settled_batch_stays_so() -> None:
    assert not any((SETTLED, event) in EXACTLY_ONCE for event in Event)


def test_a_batch_is_settled_by_exactly_what_tells_its_callers() -> None:
    telling = {Action.SUCCEED, Action.FAIL, Action.FAIL_AS_UNKNOWN}
    for after, action in EXACTLY_ONCE.values():
        assert (after is SETTLED) == (action in telling)


def test_only_the_rule_for_lost_answers_differs_if_batches_are_repeated_at_once() -> None:
    differing = {key for key in EXACTLY_ONCE if EXACTLY_ONCE[key] != AT_ONCE[key]}
    assert differing == {(SENT, Event.LOST)}
    assert EXACTLY_ONCE.keys() == AT_ONCE.keys()


def test_what_is_to_fail_fast_is_attempted_once() -> None:
    assert FAIL_FAST.keys() == EXACTLY_ONCE.keys()
    again = {Action.RETRY, Action.REQUEUE}
    assert {key for key, (_, action) in FAIL_FAST.items() if action in again} == {
        (RETRYING, Event.RESTED)
    }
    differing = {key for key in EXACTLY_ONCE if EXACTLY_ONCE[key] != FAIL_FAST[key]}
    assert {EXACTLY_ONCE[key][1] for key in differing} == again
    assert {FAIL_FAST[key] for key in differing} == {(SETTLED, Action.FAIL)}


def test_what_cannot_happen_is_an_error() -> None:
    for state, event in set(product(State, Event)) - EXACTLY_ONCE.keys():
        progress = Progress()
        progress.state = state
        with pytest.raises(KeyError):
            progress.advance(event)


def advanced(progress: Progress, *events: Event) -> Action:
    action = Action.NONE
    for event in events:
        action = progress.advance(event, "the connection was lost")
    return action


def test_a_loss_is_forgotten_when_its_batch_turns_out_to_be_absent() -> None:
    progress = Progress()
    sent_and_lost = (Event.PICKED, Event.SENT, Event.LOST)
    assert advanced(progress, *sent_and_lost, Event.ABSENT) is Action.REQUEUE
    assert (progress.state, progress.loss, progress.attempts) == (QUEUED, "", 1)
    assert advanced(progress, Event.CLOSED) is Action.FAIL


def test_the_loss_of_an_earlier_attempt_makes_every_failure_an_unknown_outcome() -> None:
    progress = Progress(AT_ONCE)
    assert advanced(progress, Event.PICKED, Event.SENT, Event.LOST) is Action.RETRY
    assert progress.state is RETRYING
    again = (Event.RESTED, Event.PICKED, Event.SENT)
    assert advanced(progress, *again, Event.ABSENT) is Action.REQUEUE
    assert advanced(progress, Event.PICKED, Event.REJECTED) is Action.FAIL_AS_UNKNOWN


def test_a_conflict_settles_what_was_in_doubt() -> None:
    """Whoever compares positions has looked for the batch first."""
    progress = Progress()
    sent_and_lost = (Event.PICKED, Event.SENT, Event.LOST)
    assert advanced(progress, *sent_and_lost, Event.SENT, Event.CONFLICT) is Action.FAIL
    assert (progress.state, progress.loss) == (SETTLED, "")


def test_a_refused_batch_rests_as_long_as_it_should() -> None:
    assert rest_s(pause_s=0.3, left_s=4.0, timeout_s=4.0, took_s=0.01) == 0.3


def test_the_last_attempt_begins_in_time_for_an_answer() -> None:
    assert rest_s(pause_s=0.5, left_s=0.8, timeout_s=4.0, took_s=0.01) == pytest.approx(0.4)
    assert rest_s(pause_s=0.5, left_s=0.8, timeout_s=4.0, took_s=0.2) == pytest.approx(0.4)
    assert rest_s(pause_s=0.5, left_s=1.8, timeout_s=60.0, took_s=0.7) == pytest.approx(0.4)


def test_a_batch_is_not_sent_again_when_its_answer_would_be_late() -> None:
    assert rest_s(pause_s=0.01, left_s=0.39, timeout_s=4.0, took_s=0.01) is None
    assert rest_s(pause_s=0.01, left_s=2.0, timeout_s=4.0, took_s=1.0) is None
    assert rest_s(pause_s=0.5, left_s=-1.0, timeout_s=4.0, took_s=0.0) is None


def test_a_batch_with_little_time_is_tried_more_than_once() -> None:
    assert rest_s(pause_s=0.01, left_s=0.29, timeout_s=0.3, took_s=0.01) == 0.01
