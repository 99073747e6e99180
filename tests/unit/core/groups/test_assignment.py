"""Shards are spread evenly, and as few as possible change their owner."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from loomlog.core.groups.assignment import assign

NAMES = ("a", "b", "c", "d", "e")
OWNERS = st.lists(st.sampled_from(("", "gone", *NAMES)), max_size=40)
MEMBERS = st.sets(st.sampled_from(NAMES), min_size=1)


@given(OWNERS, MEMBERS)
def test_it_is_even_and_sticky(owners: list[str], members: set[str]) -> None:
    wanted = assign(owners, members)
    counts = Counter(wanted)
    assert set(counts) <= members
    assert max((counts[m] for m in members), default=0) - min(counts[m] for m in members) <= 1
    before = Counter(owner for owner in owners if owner in members)
    for member in members:
        stays = sum(a == b == member for a, b in zip(owners, wanted, strict=True))
        assert stays == min(before[member], counts[member]), "a shard moved without need"


@given(OWNERS, MEMBERS)
def test_it_stays_as_it_is_when_it_is_done(owners: list[str], members: set[str]) -> None:
    wanted = assign(owners, members)
    assert assign(wanted, members) == wanted


@given(OWNERS, MEMBERS, st.randoms(use_true_random=False))
def test_moves_one_by_one_come_to_an_end(owners: list[str], members: set[str], chance) -> None:  # type: ignore[no-untyped-def]
    """Whatever is released first, no shard moves twice."""
    state = [owner if owner in members else "" for owner in owners]
    moves = 0
    while moving := [s for s, (a, b) in enumerate(zip(state, assign(state, members))) if a != b]:  # noqa: B905
        shard = chance.choice(moving)
        state[shard] = ""
        state[shard] = assign(state, members)[shard]
        moves += 1
        assert moves <= len(owners)


def test_nobody_owns_anything_without_members() -> None:
    assert assign(["a", ""], []) == ["", ""]
