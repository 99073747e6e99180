"""The replicas of a node that are void when it registers."""

from __future__ import annotations

from loomlog.core.chained.losses import Judgement, judge

ONE, TWO, THREE = (1, 0, 11), (2, 0, 12), (3, 0, 13)
EXPECTED = frozenset((ONE, TWO, THREE))


def test_nothing_is_void_that_is_only_not_there() -> None:
    found = judge(EXPECTED, {ONE: 0}, set(), uncertain=False, is_all=True)
    assert found == Judgement(frozenset(), uncertain=False)


def test_replicas_on_an_incomplete_volume_and_those_that_are_nowhere_are_void() -> None:
    found = judge(EXPECTED, {ONE: 0, TWO: 1}, {1}, uncertain=False, is_all=True)
    assert found == Judgement(frozenset((TWO, THREE)), uncertain=False)


def test_a_replica_in_a_table_that_is_not_open_is_not_void() -> None:
    """THREE may be whole, in the table that cannot be opened now: that is known later."""
    found = judge(EXPECTED, {ONE: 0, TWO: 1}, {1}, uncertain=False, is_all=False)
    assert found == Judgement(frozenset((TWO,)), uncertain=True)
    opened = judge(EXPECTED, {ONE: 0, TWO: 1, THREE: 2}, set(), uncertain=True, is_all=True)
    assert opened == Judgement(frozenset(), uncertain=False)
    gone = judge(EXPECTED, {ONE: 0, TWO: 1}, set(), uncertain=True, is_all=True)
    assert gone == Judgement(frozenset((THREE,)), uncertain=False)


def test_an_unheard_replica_is_void_only_if_a_volume_is_lost() -> None:
    """The table may have been moved away, and may know what all others forgot."""
    for is_volume_lost in (False, True):
        found = judge(
            EXPECTED,
            {ONE: 0},
            {1},
            unheard={TWO},
            is_volume_lost=is_volume_lost,
            uncertain=False,
            is_all=True,
        )
        void = {TWO, THREE} if is_volume_lost else {THREE}
        assert found == Judgement(frozenset(void), uncertain=False)


def test_an_unheard_replica_in_an_incomplete_table_is_void() -> None:
    found = judge(EXPECTED, {ONE: 0, TWO: 1}, {1}, unheard={TWO}, uncertain=False, is_all=True)
    assert found == Judgement(frozenset((TWO, THREE)), uncertain=False)
