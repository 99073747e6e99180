"""A position is filled for a reader only when its writer had time to write it."""

from __future__ import annotations

import pytest

from loomlog.core.chained.hole_ages import FILL_AFTER_S, HoleAges


def test_a_position_waits_from_the_first_question_about_it_on() -> None:
    ages = HoleAges()
    assert ages.wait_s(5, 10, 1.0) == pytest.approx(FILL_AFTER_S)
    assert ages.wait_s(5, 50, 1.0 + FILL_AFTER_S / 2) == pytest.approx(FILL_AFTER_S / 2)
    assert ages.wait_s(5, 90, 1.0 + FILL_AFTER_S) == 0
    assert ages.wait_s(9, 90, 1.0 + FILL_AFTER_S) == 0  # it was handed out by then


def test_a_later_position_waits_on_its_own() -> None:
    ages = HoleAges()
    ages.wait_s(5, 10, 1.0)
    assert ages.wait_s(10, 11, 1.1) == pytest.approx(FILL_AFTER_S)
    assert ages.wait_s(9, 11, 1.1) == pytest.approx(FILL_AFTER_S - 0.1)


def test_who_asks_for_every_ticket_at_once_makes_it_remember_little() -> None:
    ages = HoleAges()
    for number in range(10_000):
        now_s = number / 1000
        assert ages.wait_s(number, number + 1, now_s) == pytest.approx(FILL_AFTER_S)
    assert len(ages._ends) == len(ages._times_s) <= FILL_AFTER_S * 1000 + 2
    assert ages.wait_s(5, 10_000, 10.0) == 0
