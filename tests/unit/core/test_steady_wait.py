"""A wait ends in time, and does not go on while nobody waits."""

from __future__ import annotations

from loomlog.core.steady_wait import SteadyWait


def test_it_ends_in_time() -> None:
    wait = SteadyWait(30.0, 10.0)
    assert not wait.is_over(0.0)
    for now_s in range(5, 35, 5):
        wait.note(float(now_s))
        assert not wait.is_over(float(now_s))
    assert wait.is_over(35.0)


def test_it_begins_anew_after_a_pause() -> None:
    wait = SteadyWait(30.0, 10.0)
    wait.note(0.0)
    assert not wait.is_over(1000.0)
    wait.note(1000.0)
    assert not wait.is_over(1005.0)


def test_one_of_no_time_is_over_at_once() -> None:
    wait = SteadyWait(0.0, 10.0)
    wait.note(7.0)
    assert wait.is_over(7.0)
