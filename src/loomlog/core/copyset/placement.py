"""Choose nodes: sequencers of logs, nodesets of epochs, copysets and senders of records. Pure.

All parties that know the same nodes choose the same sequencer, nodeset and sender, by hashes; few
choices change when the nodes do. Copysets are random.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableSequence, Sequence
from math import log as logarithm
from typing import Any, Final, Protocol

from loomlog.core.copyset.epoch_metadata import EpochMetadata, Member
from loomlog.core.copyset.lsn import Lsn
from loomlog.types import LogId, NodeId

_BITS: Final = (1 << 64) - 1
_UNIT_BITS: Final = 52  # half a step from 0 or 1 is still a distinct float


class Chance(Protocol):
    """A `random.Random`."""

    def shuffle(self, x: MutableSequence[Any], /) -> None: ...


def ranked(log: LogId, weights: Mapping[NodeId, float]) -> list[NodeId]:
    """Return the nodes by weighted rendezvous hashing, the best for `log` first. Each node is the
    first for a share of all logs that is its share of the weights."""
    return sorted(weights, key=lambda node: (-_score(log, node, weights[node]), node))


def sequencer_of(log: LogId, weights: Mapping[NodeId, float]) -> NodeId | None:
    """Return the node that is to host the sequencer of a log, if there is any."""
    return next(iter(ranked(log, weights)), None)


def choose_nodeset(log: LogId, candidates: Iterable[Member], size: int) -> tuple[Member, ...]:
    """Choose at most `size` nodes, from all failure domains in turn."""
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
    """Choose as many nodes, in as many failure domains, as the epoch asks for, `preferred` ones if
    possible. None: too few are not excluded."""
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
    """Return the first of each domain, for at most this many domains."""
    firsts: dict[str, Member] = {}
    for member in members:
        firsts.setdefault(member.domain, member)
    return list(firsts.values())[:domains_max]


def _score(log: LogId, node: NodeId, weight: float) -> float:
    unit = ((mixed(log, node) >> 64 - _UNIT_BITS) + 0.5) / (1 << _UNIT_BITS)
    return weight / -logarithm(unit)


# ---- single copy delivery


def shuffled(copyset: Iterable[NodeId], lsn: Lsn) -> list[NodeId]:
    """Return the nodes in the order in which they have to send the record at an LSN to readers.

    All nodes shuffle alike, so that they share the load and send each record once without talking
    to each other."""
    return sorted(copyset, key=lambda node: (mixed(lsn, node), node))


def is_sender(
    me: NodeId, copyset: Collection[NodeId], lsn: Lsn, known_down: Collection[NodeId]
) -> bool:
    """Return whether the reader believes all nodes before `me` to be down. `me` sends even if the
    reader believes it to be down, which shows that it is back."""
    if me not in copyset:
        return False
    senders = (node for node in shuffled(copyset, lsn) if node == me or node not in known_down)
    return next(senders) == me


def mixed(*numbers: int) -> int:
    """Return 64 bits that depend on all numbers and their order (rounds of splitmix64)."""
    state = 0
    for number in numbers:
        state = (state ^ (number & _BITS)) + 0x9E3779B97F4A7C15 & _BITS
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _BITS
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _BITS
        state ^= state >> 31
    return state
