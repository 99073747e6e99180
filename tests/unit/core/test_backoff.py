"""The delays before the next attempt."""

from __future__ import annotations

from random import Random

from loomlog.core.backoff import Backoff

BACKOFF = Backoff(0.01, 0.5)


def test_delays_double_up_to_a_maximum() -> None:
    assert [BACKOFF.delay_s(attempts) for attempts in range(4)] == [0.01, 0.02, 0.04, 0.08]
    assert BACKOFF.delay_s(6) == BACKOFF.delay_s(10**9) == 0.5


def test_with_a_random_source_delays_vary_by_half() -> None:
    delays = [BACKOFF.delay_s(10, Random(seed)) for seed in range(100)]
    assert 0.25 <= min(delays) < 0.3
    assert 0.7 < max(delays) <= 0.75


def test_the_same_seed_gives_the_same_delays() -> None:
    assert BACKOFF.delay_s(3, Random(7)) == BACKOFF.delay_s(3, Random(7))


def test_what_takes_long_is_noticed_late_by_a_fifth_of_that_within_the_bounds() -> None:
    found = [BACKOFF.late_s(waited_s) for waited_s in (0.0, 0.04, 1.0, 60.0)]
    assert found == [0.01, 0.01, 0.2, 0.5]
    assert 0.1 <= BACKOFF.late_s(1.0, Random(1)) <= 0.3
