"""Followers inquire in time about blocks that have not arrived."""

from __future__ import annotations

from itertools import pairwise
from math import inf

from loomlog.core.chained.follow import IDLE_S, PEEK_S, STALL_S, Absence, Inquiry, Patience

HOLE_S = 1.0
NOTHING = Absence(is_void=False, is_lost=False, is_wanted=False, is_passed=False, later_s=None)
PASSED = NOTHING._replace(is_passed=True, later_s=10.0)
VOID = NOTHING._replace(is_void=True)


def patience(now_s: float = 10.0) -> Patience:
    return Patience(HOLE_S, now_s)


def inquire(patience: Patience, absence: Absence) -> tuple[float, Inquiry | None]:
    """Make the next inquiry as soon as it is due; return when that was."""
    due_s = patience.due_s(absence)
    assert patience.begin(absence, due_s - 0.001) is None
    inquiry = patience.begin(absence, due_s)
    assert inquiry is not None
    patience.end(inquiry, due_s)
    return due_s, inquiry


def test_a_follower_at_the_tail_is_idle() -> None:
    assert inquire(patience(), NOTHING) == (10.0 + IDLE_S, Inquiry.LOOK)


def test_a_wanted_block_is_looked_for_when_its_writer_had_its_time() -> None:
    waits = patience()
    wanted = NOTHING._replace(is_wanted=True)
    assert inquire(waits, wanted) == (10.0 + HOLE_S, Inquiry.LOOK)
    assert inquire(waits, wanted) == (10.0 + 2 * HOLE_S, Inquiry.LOOK)


def test_a_block_that_fetching_passed_is_peeked_for_until_it_is_looked_for() -> None:
    waits = patience()
    inquiries = [inquire(waits, PASSED)]
    while inquiries[-1][1] is Inquiry.PEEK:
        inquiries.append(inquire(waits, PASSED))
    times = [at_s for at_s, _ in inquiries]
    assert times[0] == 10.0 + PEEK_S
    assert times[-1] == 10.0 + HOLE_S
    pauses = [round(b - a, 6) for a, b in pairwise(times[:-1])]
    assert pauses == sorted(pauses)
    assert pauses[-1] <= STALL_S


def test_looks_become_rarer() -> None:
    waits = patience()
    times = [inquire(waits, VOID)[0] for _ in range(10)]
    pauses = [round(b - a, 6) for a, b in pairwise(times)]
    assert times[0] == 10.0 + STALL_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == IDLE_S


def test_nobody_waits_for_a_writer_that_is_fenced() -> None:
    waits = patience()
    void = PASSED._replace(is_void=True)
    assert inquire(waits, void) == (10.0, Inquiry.PEEK)
    assert waits.begin(void, 10.0) is Inquiry.LOOK


def test_a_void_block_is_not_peeked_for_twice() -> None:
    waits = patience()
    void = PASSED._replace(is_void=True)
    inquire(waits, void)
    waits.end(Inquiry.LOOK, 10.0)
    assert waits._peek_s(void) == inf


def test_a_lost_block_is_looked_for_almost_at_once() -> None:
    assert inquire(patience(), VOID._replace(is_lost=True)) == (10.0 + PEEK_S, Inquiry.LOOK)


def test_the_next_block_gets_all_the_patience_again() -> None:
    waits = patience()
    for _ in range(5):
        inquire(waits, VOID)
    waits.advance(20.0)
    assert inquire(waits, VOID) == (20.0 + STALL_S, Inquiry.LOOK)
