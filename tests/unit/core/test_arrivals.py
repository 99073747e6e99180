"""Marks of how far a log reached at which time."""

from __future__ import annotations

from random import Random

from loomlog.core.arrivals import MARKS_MAX, Mark, Marks, arrived_by, is_due, marked


def test_what_is_above_a_mark_arrived_later() -> None:
    marks: Marks = (Mark(10, 5), Mark(20, 9))
    assert [arrived_by(marks, time_us) for time_us in (9, 10, 19, 20, 99)] == [0, 5, 5, 9, 9]
    assert arrived_by((), 99) == 0


def test_a_mark_is_made_now_and_then_if_the_log_has_grown() -> None:
    marks: Marks = (Mark(10, 5),)
    assert is_due((), Mark(0, 5), 0, 10)
    assert not is_due((), Mark(0, 5), 5, 10), "all is trimmed"
    assert not is_due(marks, Mark(19, 6), 0, 10)
    assert is_due(marks, Mark(20, 6), 0, 10)
    assert not is_due(marks, Mark(20, 5), 0, 10)


def test_a_clock_that_was_ahead_does_not_count_once_it_is_right() -> None:
    marks: Marks = (Mark(10, 5), Mark(9000, 7))
    assert is_due(marks, Mark(11, 8), 0, 10)
    assert marked(marks, Mark(11, 8), 0, 0) == (Mark(10, 5), Mark(11, 8))


def test_marks_that_tell_nothing_any_more_go() -> None:
    marks = tuple(Mark(10 * each, each) for each in range(1, 10))
    assert marked(marks, Mark(100, 10), 7, 0) == (*marks[7:], Mark(100, 10))
    assert marked(marks, Mark(100, 10), 0, 60) == (*marks[5:], Mark(100, 10))


def test_whatever_clocks_do_no_entry_seems_older_than_it_is() -> None:
    """Times are never behind; sometimes they are ahead."""
    for seed in range(20):
        marks: Marks = ()
        random, tail, trimmed = Random(seed), 0, 0
        arrived: list[int] = []
        for now_us in range(0, 3000, 3):
            tail += random.choice((0, 1, 1, 5))
            arrived += [now_us] * (tail - len(arrived))
            ahead_us = random.choice((0, 0, 0, 0, random.randint(0, 3000)))
            mark = Mark(now_us + ahead_us, tail)
            if is_due(marks, mark, trimmed, random.choice((1, 1, 30))):
                marks = marked(marks, mark, trimmed, now_us - 500)
            assert len(marks) <= MARKS_MAX
            expired = arrived_by(marks, now_us - 500)
            assert not expired or arrived[expired - 1] <= now_us - 500
            trimmed = max(trimmed, expired)
        assert trimmed, "and old entries go"


def test_old_marks_are_thinned_out() -> None:
    marks: Marks = ()
    for number in range(1, 3_000):
        marks = marked(marks, Mark(number, number), 0, 0)
    assert len(marks) <= MARKS_MAX
    assert marks == tuple(sorted(marks))
    for age in (1, 10, 100, 1000, 2900):
        assert 0.9 * age <= 2_999 - arrived_by(marks, 2_999 - age) <= 1.1 * age + 1
