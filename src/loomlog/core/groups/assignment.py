"""Decide which member should own each shard of a group. Pure.

Shards are spread evenly, and as few as possible change their owner. The result depends only on the
arguments, so all members come to the same decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

NOBODY = ""


def assign(owners: Sequence[str], members: Collection[str]) -> list[str]:
    """Return the owner that each shard should have; `owners` are the present ones."""
    if not members:
        return [NOBODY] * len(owners)
    room = _quotas(owners, members)
    wanted = [NOBODY] * len(owners)
    for shard, owner in enumerate(owners):
        if room.get(owner, 0):
            room[owner] -= 1
            wanted[shard] = owner
    takers = (member for member in sorted(room) for _ in range(room[member]))
    return [owner or next(takers) for owner in wanted]


def _quotas(owners: Sequence[str], members: Collection[str]) -> dict[str, int]:
    """Return how many shards each member should own. Members that own the most get the extra ones,
    so that these need not move."""
    owned = Counter(owners)
    least, extra = divmod(len(owners), len(members))
    ranked = sorted(members, key=lambda member: (-owned[member], member))
    return {member: least + (rank < extra) for rank, member in enumerate(ranked)}
