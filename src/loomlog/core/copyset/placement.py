"""Where things go: logs to sequencers, epochs to nodesets, records to copysets. Pure.

The first two are the same for all who know the same nodes, and change little when the nodes do:
every log likes each node so much, by a hash, and takes those it likes most. Copysets are random.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableSequence, Sequence
from math import log as logarithm
from typing import Any, Final, Protocol

from loomlog.core.copyset.epoch_metadata import EpochMetadata, Member
from loomlog.core.copyset.mixing import mixed
from loomlog.types import LogId, NodeId

_UNIT_BITS: Final = 52  # so that half a step from 0 and from 1 can still be told from them


class Chance(Protocol):
    """What is used of a `random.Random`; it is handed in."""

    def shuffle(self, x: MutableSequence[Any], /) -> None: ...


def ranked(log: LogId, weights: Mapping[NodeId, float]) -> list[NodeId]:
    """The nodes, the one that `log` likes most first. A node comes first for a share of all logs
    that is its share of the weights (weighted rendezvous hashing)."""
    return sorted(weights, key=lambda node: (-_liking(log, node, weights[node]), node))


def sequencer_of(log: LogId, weights: Mapping[NodeId, float]) -> NodeId | None:
    """Who hosts the sequencer of a log, of the nodes that are up and may; None if none may."""
    return next(iter(ranked(log, weights)), None)


def choose_nodeset(log: LogId, candidates: Iterable[Member], size: int) -> tuple[Member, ...]:
    """At most `size` of them, from all failure domains in turn."""
    members = {member.node_id: member for member in candidates}
    domains: dict[str, list[Member]] = {}
    for node in ranked(log, dict.fromkeys(members, 1.0)):
        domains.setdefault(members[node].domain, []).append(members[node])
    turns = [
        (turn, place, member)
        for place, domain in enumerate(domains.values())
        for turn, member in enumerate(domain)
    ]
    return tuple(member for _, _, member in sorted(turns)[:size])


def choose_copyset(
    metadata: EpochMetadata,
    excluded: Collection[NodeId],
    chance: Chance,
    preferred: Collection[NodeId] = (),
) -> tuple[NodeId, ...] | None:
    """As many nodes, in as many failure domains, as the epoch asks for; `preferred` ones if they
    will do. None: there are not enough that are not excluded."""
    members = [member for member in metadata.nodeset if member.node_id not in excluded]
    chance.shuffle(members)
    if preferred:
        members.sort(key=lambda member: member.node_id not in preferred)
    spread = _spread(members, metadata.domains_wanted)
    others = [member for member in members if member not in spread]
    copyset = tuple(member.node_id for member in [*spread, *others][: metadata.replication])
    is_spread = len(spread) >= metadata.domains_spanned
    return copyset if is_spread and len(copyset) == metadata.replication else None


def _spread(members: Sequence[Member], domains_max: int) -> list[Member]:
    """The first of each domain, for so many domains."""
    firsts: dict[str, Member] = {}
    for member in members:
        firsts.setdefault(member.domain, member)
    return list(firsts.values())[:domains_max]


def _liking(log: LogId, node: NodeId, weight: float) -> float:
    unit = ((mixed(log, node) >> 64 - _UNIT_BITS) + 0.5) / (1 << _UNIT_BITS)
    return weight / -logarithm(unit)
