"""Decide which replicas of a node are void when it registers. Pure.

A replica is void if it may lack blocks: its volume holds an older copy of its data, its table was
salvaged from a damaged one, or its volume was lost. It is not recorded on which volume a replica
was. So replicas that the node does not have any more are void only if all its tables are open; as
long as one cannot be opened, they stay uncertain.

An unheard replica that is missing is not void unless a volume was lost: its table may have been
moved away, and it may be the only one that knows what all others forgot.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple, TypeAlias

from loomlog.types import LogId

ReplicaKey: TypeAlias = tuple[LogId, int, int]  # a replica of a node: loglet, chain, birth


class Judgement(NamedTuple):
    """The void replicas of a node, and whether it may have lost others."""

    void: frozenset[ReplicaKey]
    uncertain: bool


def judge(
    expected: Set[ReplicaKey],
    there: Mapping[ReplicaKey, int],
    incomplete: Set[int],
    *,
    unheard: Set[ReplicaKey] = frozenset(),
    is_volume_lost: bool = False,
    uncertain: bool,
    is_all: bool,
) -> Judgement:
    """Judge the replicas that a node should have. `there` maps those that it has to their shards.
    `incomplete` shards may lack anything. `uncertain`: other replicas may have been lost, now or
    earlier. `is_all`: `there` has all replicas of the node, because all its tables are open."""
    void = {key for key, shard in there.items() if shard in incomplete}
    uncertain = uncertain or bool(incomplete)
    if uncertain and is_all:
        awaited = frozenset() if is_volume_lost else unheard
        void |= expected - there.keys() - awaited
    return Judgement(frozenset(void), uncertain and not is_all)
