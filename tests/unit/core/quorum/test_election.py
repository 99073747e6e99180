"""The right to take over the leadership of the metadata repositories."""

from __future__ import annotations

import pytest

from loomlog.core.quorum.election import Follow, Opinion, Stand, Wait, decide, rank
from loomlog.core.quorum.member import NOBODY, Configuration, Leader

THREE = Configuration(frozenset({1, 2, 3}))
MISSED = Leader(4, 1, "one:1")
NEWER = Leader(5, 3, "three:1")


def hears(leader: Leader) -> Opinion:
    return Opinion(leader, heard=True)


def misses(leader: Leader) -> Opinion:
    return Opinion(leader, heard=False)


def test_a_majority_that_misses_the_leader_replaces_it() -> None:
    assert decide(2, THREE, MISSED, {3: misses(MISSED)}) == Stand()
    assert decide(2, THREE, MISSED, {1: misses(MISSED)}) == Stand(), "it was started anew"


def test_a_new_cluster_gets_a_leader_when_a_majority_is_there() -> None:
    assert decide(1, THREE, NOBODY, {2: misses(NOBODY)}) == Stand()
    assert isinstance(decide(1, THREE, NOBODY, {}), Wait)
    assert decide(1, Configuration(frozenset({1})), NOBODY, {}) == Stand()


def test_who_alone_misses_the_leader_disturbs_nobody() -> None:
    assert decide(2, THREE, MISSED, {3: hears(MISSED)}) == Follow(MISSED)
    verdict = decide(2, THREE, MISSED, {})
    assert verdict == Wait(
        "no answer from metadata repository 1, no answer from metadata repository 3"
    )


def test_one_that_was_asleep_and_believes_in_the_leader_does_not_keep_a_majority_waiting() -> None:
    five = Configuration(frozenset({1, 2, 3, 4, 5}))
    opinions = {3: misses(MISSED), 4: misses(MISSED), 5: hears(MISSED)}
    assert decide(2, five, MISSED, opinions) == Stand()


def test_a_leader_that_answers_after_all_is_followed() -> None:
    assert decide(2, THREE, MISSED, {1: hears(MISSED), 3: misses(MISSED)}) == Follow(MISSED)


def test_a_newer_leader_is_followed_even_if_it_is_silent() -> None:
    assert decide(2, THREE, MISSED, {3: misses(NEWER)}) == Follow(NEWER)


def test_others_may_still_believe_in_an_epoch_that_this_one_has_lost() -> None:
    mine = Leader(5, 2, "two:1")
    assert decide(2, THREE, MISSED, {3: misses(mine)}) == Stand()


def test_who_is_no_member_waits() -> None:
    verdict = decide(4, THREE, MISSED, {2: misses(MISSED), 3: misses(MISSED)})
    assert verdict == Wait("member 4 is not one of [1, 2, 3]: add it")


def test_while_members_change_both_majorities_must_miss_the_leader() -> None:
    changing = Configuration(frozenset({2, 3, 4}), frozenset({1, 2, 3}))
    assert isinstance(decide(4, changing, MISSED, {2: misses(MISSED)}), Wait)
    assert decide(4, changing, MISSED, {2: misses(MISSED), 3: misses(MISSED)}) == Stand()


@pytest.mark.parametrize(("me", "before"), [(2, 0), (3, 1), (1, 0)])
def test_they_try_one_after_the_other(me: int, before: int) -> None:
    assert rank(me, THREE, MISSED) == before
