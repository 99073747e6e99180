"""The right to acquire a lease, and when it begins."""

from __future__ import annotations

from loomlog.core.leases import LeaseStanding, next_epoch


def test_a_lease_is_its_holders_until_its_time_is_over() -> None:
    held = LeaseStanding("a", ttl_s=10.0, renewed_s=100.0, now_s=104.0)
    assert held.left_s == 6.0
    assert held.can_be_acquired_by("a")
    assert not held.can_be_acquired_by("b")
    over = held._replace(now_s=110.0)
    assert over.left_s == 0.0
    assert over.can_be_acquired_by("b")


def test_a_lease_that_was_released_is_free_at_once() -> None:
    free = LeaseStanding("", ttl_s=10.0, renewed_s=100.0, now_s=100.0)
    assert free.left_s == 0.0
    assert free.can_be_acquired_by("b")


def test_epochs_grow_past_those_of_lost_metadata() -> None:
    assert next_epoch(3, 0) == 4
    assert next_epoch(3, 9) == 10
