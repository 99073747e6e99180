"""Ranges of positions are cut where a protocol may leave a wide gap."""

from __future__ import annotations

from itertools import pairwise

from loomlog.client.loglets.registry import cut, is_dense
from loomlog.core.copyset.record import make


def test_a_range_within_an_epoch_is_one_part() -> None:
    assert cut(make(3, 5), make(3, 90), 64) == [(make(3, 5), make(3, 90))]
    assert cut(1, 1, 64) == [(1, 1)]


def test_parts_begin_where_epochs_do_and_cover_everything() -> None:
    parts = cut(7, make(3, 4), 64)
    assert [first for first, _ in parts] == [7, make(1, 0), make(2, 0), make(3, 0)]
    assert [last + 1 for _, last in parts] == [make(1, 0), make(2, 0), make(3, 0), make(3, 5)]


def test_with_many_epochs_the_last_one_is_still_a_part_of_its_own() -> None:
    parts = cut(1, make(1000, 9), 10)
    assert len(parts) <= 11
    assert parts[0][0] == 1
    assert parts[-1] == (make(1000, 0), make(1000, 9))
    assert all(last + 1 == first for (_, last), (first, _) in pairwise(parts))


def test_only_an_epoch_is_dense() -> None:
    assert is_dense(make(2, 1), make(2, 1000))
    assert not is_dense(make(1, 1000), make(2, 1))
