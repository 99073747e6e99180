"""The time that a follower waits for its leader."""

from __future__ import annotations

import pytest

from loomlog.core.quorum.patience import MEMORY_S, MULTIPLE, SHORTEST, Patience

LONGEST_S = 2.0


def test_a_leader_that_answers_quickly_is_missed_soon() -> None:
    patience = Patience(LONGEST_S)
    patience.answered(1.0, 0.001)
    assert patience.wait_s == SHORTEST * LONGEST_S


def test_a_leader_that_has_not_answered_yet_gets_the_longest_patience() -> None:
    assert Patience(LONGEST_S).wait_s == LONGEST_S


def test_a_slow_leader_gets_a_multiple_of_its_slowest_answer_and_never_more_than_the_longest() -> (
    None
):
    patience = Patience(LONGEST_S)
    patience.answered(1.0, 0.3)
    patience.answered(2.0, 0.001)
    assert patience.wait_s == pytest.approx(MULTIPLE * 0.3)
    patience.answered(3.0, 1.9)
    assert patience.wait_s == LONGEST_S


def test_a_slow_answer_is_remembered_for_a_while() -> None:
    patience = Patience(LONGEST_S)
    patience.answered(0.0, 0.3)
    patience.answered(MEMORY_S, 0.001)
    patience.answered(2 * MEMORY_S - 1, 0.001)
    assert patience.wait_s == pytest.approx(MULTIPLE * 0.3)
    patience.answered(2 * MEMORY_S, 0.001)
    assert patience.wait_s == SHORTEST * LONGEST_S


def test_what_was_before_a_long_silence_is_forgotten() -> None:
    patience = Patience(LONGEST_S)
    patience.answered(0.0, 0.3)
    patience.answered(3 * MEMORY_S, 0.001)
    assert patience.wait_s == SHORTEST * LONGEST_S
