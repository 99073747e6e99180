"""Nodesets and copysets: the nodes that may have the records of an epoch. Pure.

A nodeset is fixed when its epoch begins. Every copyset has `replication` of its nodes, if possible
in as many failure domains as there are, up to one for each copy. One domain may be missing, or the
loss of a rack would block all appends and recoveries until it is back.

All parties that know the same nodes choose the same sequencer, nodeset and sender, by hashes; few
choices change when the nodes do. Copysets are random; nodes that refused a record or were too slow
are excluded for a while.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableSequence, Sequence
from enum import StrEnum
from math import log as logarithm
from typing import Any, Final, NamedTuple, Protocol

from loomlog.core.copyset.record import Lsn
from loomlog.types import LogId, NodeId


class Member(NamedTuple):
    """A node of a nodeset. Its location is a failure domain; without one it is its own."""

    node_id: NodeId
    location: str = ""

    @property
    def domain(self) -> str:
        return self.location or f"node {self.node_id}"


class Authority(StrEnum):
    """The meaning of a node's not having a record."""

    FULL = "fully authoritative"  # it has everything that it was given
    UNDERREPLICATED = "underreplicated"  # what it has counts, what it lacks does not
    EMPTY = "authoritatively empty"  # what it had was copied to other nodes
    UNAVAILABLE = "unavailable"  # away for long, perhaps for good, and perhaps with the only copy
    # of a record: readers wait for it, writers and recovery do not


class Trouble(StrEnum):
    """Why a node takes no record now. Each kind keeps it out of copysets for its own time."""

    NO_SPACE = "no space"
    DISABLED = "disabled"  # its disk failed, or it is being rebuilt or drained
    OVERLOADED = "overloaded"


class EpochMetadata(NamedTuple):
    """The nodeset and replication of epochs."""

    since: int  # the first epoch that it holds for; until the next one in the history
    nodeset: tuple[Member, ...]
    replication: int

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(member.node_id for member in self.nodeset)

    @property
    def domains_wanted(self) -> int:
        """The number of failure domains that a copyset spans if possible."""
        return min(self.replication, self._domains)

    @property
    def domains_spanned(self) -> int:
        """The least number of failure domains that a copyset spans."""
        return min(self.replication, max(1, self._domains - 1))

    @property
    def _domains(self) -> int:
        return len({member.domain for member in self.nodeset})

    def can_hold_a_copyset(self, nodes: Collection[NodeId]) -> bool:
        """Return whether a record can have all its copies on these nodes."""
        members = [member for member in self.nodeset if member.node_id in nodes]
        domains = {member.domain for member in members}
        return len(members) >= self.replication and len(domains) >= self.domains_spanned

    def is_f_majority(self, nodes: Collection[NodeId], empty: Collection[NodeId] = ()) -> bool:
        """Return whether every record that is fully stored has a copy on one of these nodes. What
        `empty` nodes had was copied to the rest; if the rest cannot hold a copyset, no part of it
        is enough."""
        rest = set(self.nodes).difference(empty)
        is_rest_enough = not empty or self.can_hold_a_copyset(rest)
        return is_rest_enough and not self.can_hold_a_copyset(rest.difference(nodes))


_BITS: Final = (1 << 64) - 1
_UNIT_BITS: Final = 52  # half a step from 0 or 1 is still a distinct float


class Shuffler(Protocol):
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
    chance: Shuffler,
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


# ---- exclusions


REFUSED_S: Final[Mapping[Trouble, float]] = {
    Trouble.NO_SPACE: 60.0,
    Trouble.DISABLED: 30.0,
    Trouble.OVERLOADED: 1.0,
}


LOST_S: Final = 1.0  # the connection broke
SILENT_S: Final = 600.0  # no answer in time: this one costs a wave each time


class Exclusions:
    """Nodes that get no records for a while. All sequencers of a node share them, so that one of
    them waits instead of all. They only affect speed: they are cleared when they leave too few
    nodes for a copyset."""

    def __init__(self, silent_s: float = SILENT_S) -> None:
        self.down: frozenset[NodeId] = frozenset()  # known to be away: never tried
        self._silent_s = silent_s
        self._black: dict[NodeId, float] = {}  # node -> until when
        self._gray: dict[NodeId, float] = {}

    def refused(self, node: NodeId, trouble: Trouble, now: float) -> None:
        self._exclude(node, now + REFUSED_S[trouble])

    def lost(self, node: NodeId, now: float) -> None:
        self._exclude(node, now + LOST_S)

    def silent(self, nodes: Collection[NodeId], metadata: EpochMetadata, now: float) -> None:
        """Exclude nodes that did not answer in time. If none of a copyset did, this node may be to
        blame. Few are excluded at most, so that their load does not slow down the others."""
        if len(nodes) == metadata.replication > 1:
            self._forgive(self._gray, metadata.nodes)
            return
        self._gray.update(dict.fromkeys(nodes, now + self._silent_s))
        gray = [node for node in metadata.nodes if self._gray.get(node, now) > now]
        if len(gray) > max(metadata.replication - 1, len(metadata.nodeset) // 4):
            self._forgive(self._gray, gray)

    def returned(self, node: NodeId) -> None:
        """Called when a node restarted or said that it is well."""
        self._forgive(self._gray, [node])
        self._forgive(self._black, [node])

    def now_excluded(self, now: float) -> set[NodeId]:
        lists = (*self._black.items(), *self._gray.items())
        return {node for node, until in lists if until > now} | self.down

    def choose_copyset(
        self, metadata: EpochMetadata, holders: Collection[NodeId], chance: Shuffler, now: float
    ) -> tuple[NodeId, ...] | None:
        """Choose a copyset. None: even without exclusions too few nodes are there."""
        for unnecessary in (None, self._gray, self._black):
            if unnecessary is not None:
                self._forgive(unnecessary, metadata.nodes)
            copyset = choose_copyset(metadata, self.now_excluded(now), chance, holders)
            if copyset is not None:
                return copyset
        return None

    def _exclude(self, node: NodeId, until: float) -> None:
        self._black[node] = max(until, self._black.get(node, until))

    def _forgive(self, excluded: dict[NodeId, float], nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            excluded.pop(node, None)
