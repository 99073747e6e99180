"""The time when clocks are wrong."""

from __future__ import annotations

from random import Random

from loomlog.core.retention import (
    JUMPS_MAX,
    SKEW_MAX_S,
    ClockReading,
    SteadyTime,
    cluster_time,
    skews,
)

DAY_S = 86_400.0
NOON_S = 1_800_000_000.0


def test_a_clock_goes_on_between_readings() -> None:
    assert ClockReading(NOON_S, 100.0).at(107.5) == NOON_S + 7.5


def test_the_earlier_of_the_own_clock_and_most_others_counts() -> None:
    assert cluster_time(NOON_S, [NOON_S + 1, NOON_S + 2, NOON_S + DAY_S], 3) == NOON_S
    assert cluster_time(NOON_S + DAY_S, [NOON_S, NOON_S + 1, NOON_S + 2], 3) == NOON_S + 1
    assert cluster_time(NOON_S + DAY_S, [NOON_S, NOON_S + DAY_S], 3) == NOON_S
    assert cluster_time(NOON_S, [NOON_S - DAY_S, NOON_S + 1, NOON_S + 2], 3) == NOON_S


def test_the_time_is_unknown_unless_most_nodes_tell_theirs() -> None:
    assert cluster_time(NOON_S, [], 0) is None
    assert cluster_time(NOON_S, [NOON_S], 3) is None
    assert cluster_time(NOON_S, [NOON_S], 2) is None
    assert cluster_time(NOON_S, [NOON_S], 1) == NOON_S


def test_the_time_is_not_ahead_while_half_of_the_clocks_are_right_whoever_is_away() -> None:
    for seed in range(500):
        random = Random(seed)
        nodes = random.randint(1, 9)
        wrong = [NOON_S + random.uniform(-9, 9) * DAY_S for _ in range(nodes // 2)]
        clocks = [*wrong, *[NOON_S] * (nodes - len(wrong))]
        own_s = NOON_S + random.uniform(-9, 9) * DAY_S
        told = random.sample(clocks, random.randint(0, nodes))
        found = cluster_time(own_s, told, nodes)
        assert (found is None) == (len(told) <= nodes // 2)
        assert found is None or found <= NOON_S


def test_a_wrong_clock_is_named() -> None:
    clocks = {1: NOON_S + 0.1, 2: NOON_S - DAY_S, 3: NOON_S + 0.2}
    assert skews(NOON_S, clocks) == (0.0, {2: -DAY_S})
    clocks[2] = NOON_S
    own, nodes = skews(NOON_S + DAY_S, clocks)
    assert round(own) == DAY_S
    assert not nodes


def test_a_small_difference_is_none() -> None:
    assert skews(NOON_S, {1: NOON_S + SKEW_MAX_S, 2: NOON_S, 3: NOON_S - SKEW_MAX_S}) == (0.0, {})


def test_after_a_jump_ahead_what_was_stamped_before_stays() -> None:
    time = SteadyTime()
    time.note(NOON_S, 0.0)
    time.note(NOON_S + 60, 60.0)
    assert time.doubt_s(300.0, 60.0) == 0.0
    time.note(NOON_S + 3660 + 1, 61.0)
    assert time.doubt_s(300.0, 61.0) == 3600.0
    assert time.doubt_s(300.0, 360.9) == 3600.0
    assert time.doubt_s(300.0, 361.0) == 0.0


def test_a_jump_back_takes_nothing_back() -> None:
    """The stamps from before the jump ahead may be the wrong ones."""
    time = SteadyTime()
    for clock_s, now_s in ((NOON_S, 0.0), (NOON_S + DAY_S, 1.0), (NOON_S + 2, 2.0)):
        time.note(clock_s, now_s)
    assert round(time.doubt_s(300.0, 2.0)) == DAY_S - 1


def test_a_clock_that_jumps_again_and_again_takes_no_more_memory() -> None:
    time, jumps = SteadyTime(), 10 * JUMPS_MAX
    for second in range(jumps + 1):
        time.note(second * 100.0, float(second))
    assert len(time._jumps) <= JUMPS_MAX
    by_s = 99.0
    assert time.doubt_s(10.0, float(jumps)) == 10 * by_s
    assert time.doubt_s(jumps + 1.0, float(jumps)) == jumps * by_s, "none is forgotten"
    assert time.doubt_s(10.0, 2.0 * jumps) == 0.0
