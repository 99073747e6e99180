"""Decide whether a member may take over the leadership. Pure.

Safety does not depend on this: leadership is decided by a compare-and-swap in the MetaStore, and
rounds by the seals of a majority. The rule here keeps members from disturbing a healthy leader: a
member that gets no answer from the leader asks the others first, and stands only if a majority gets
none either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from loomlog.core.quorum.member import Configuration, Leader, MemberId


class Opinion(NamedTuple):
    """The answer of a member: the leader it follows (or is), and whether it reaches that leader."""

    leader: Leader
    heard: bool


class Stand(NamedTuple):
    """Take over."""


class Follow(NamedTuple):
    """There is a newer leader, or others reach the missed one."""

    leader: Leader


class Wait(NamedTuple):
    """Ask again later."""

    reason: str


Verdict: TypeAlias = Stand | Follow | Wait


def decide(
    me: MemberId,
    configuration: Configuration,
    missed: Leader,
    opinions: Mapping[MemberId, Opinion],
) -> Verdict:
    """Decide for member `me`, which misses the leader `missed` and has asked all others."""
    if me not in configuration.members:
        return Wait(f"member {me} is not one of {sorted(configuration.members)}: add it")
    newest = max((opinion.leader for opinion in opinions.values()), default=missed)
    if newest.epoch > missed.epoch and newest.member != me:
        return Follow(newest)
    hearing = {member for member, opinion in opinions.items() if opinion.heard}
    if missed.member in hearing:
        return Follow(missed)
    if configuration.has_majority(opinions.keys() - hearing | {me}):
        return Stand()
    if hearing:
        return Follow(missed)
    silent = [m for m in configuration.everybody if m not in opinions and m != me]
    return Wait(", ".join(f"no answer from metadata repository {member}" for member in silent))


def rank(me: MemberId, configuration: Configuration, missed: Leader) -> int:
    """Return how many other members should try first, so that not all try at once."""
    return sum(member < me for member in configuration.members - {missed.member})
