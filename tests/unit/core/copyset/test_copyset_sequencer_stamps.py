"""The times that records are stamped with if clocks are wrong."""

from __future__ import annotations

from loomlog.core.copyset.sequencer import Stamps

SECOND = 1_000_000
HOUR = 3600 * SECOND
NOON = 1_800_000_000 * SECOND


def test_a_slow_clock_does_not_stamp_below_what_was_before() -> None:
    """Reproduce the start of D2: the next sequencer's clock is an hour behind."""
    stamps = Stamps(NOON, 100.0)
    assert stamps.stamp(NOON - HOUR, 0, 100.0) == NOON
    assert stamps.stamp(NOON - HOUR + 60 * SECOND, 0, 160.0) == NOON + 60 * SECOND


def test_a_clock_that_was_ahead_for_a_second_stamps_only_that_second() -> None:
    stamps = Stamps(NOON, 0.0)
    assert stamps.stamp(NOON + 24 * HOUR, 0, 1.0) == NOON + 24 * HOUR
    assert stamps.stamp(NOON + 2 * SECOND, 0, 2.0) == NOON + 2 * SECOND


def test_a_batch_is_stamped_no_earlier_than_its_own_timestamps() -> None:
    stamps = Stamps(NOON, 0.0)
    assert stamps.stamp(NOON, NOON + 5, 0.0) == NOON + 5
    assert stamps.stamp(NOON, NOON - HOUR, 0.0) == NOON


def test_without_the_clusters_time_the_own_clock_counts() -> None:
    assert Stamps(0, 0.0).stamp(NOON, 0, 5.0) == NOON
