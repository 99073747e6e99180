"""Decide which replicas of a node are void when it registers. Pure.

A replica is void if blocks of it may be missing: on a volume that came back with an older copy of
its data, whose table was salvaged from a damaged one, or that was lost. Nobody knows on which
volume a replica was that the node does not have any more. So those are void only when nothing of
the node is left out, such as a table that cannot be opened now; until then it stays uncertain.
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
    uncertain: bool,
    is_all: bool,
) -> Judgement:
    """Judge the replicas that a node should have, and those that are `there`, on which shards.
    `incomplete`: shards where anything may be missing. `uncertain`: others were lost, now or
    before. `is_all`: all that the node has is there."""
    void = {key for key, shard in there.items() if shard in incomplete}
    uncertain = uncertain or bool(incomplete)
    if uncertain and is_all:
        void |= expected - there.keys()
    return Judgement(frozenset(void), uncertain and not is_all)
