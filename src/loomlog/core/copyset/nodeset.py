"""Shards, and the nodesets and copysets made of them: what may have the records of an epoch. Pure.

Each volume of a node is a shard, with a store of its own for copies. It is named by its node and
the index of its volume. The one with index 0 has the number of its node, so a node with one volume
is its own shard.

A nodeset is fixed when its epoch begins. Every copyset has shards of `replication` of its nodes, if
possible in as many failure domains as there are, up to one for each copy. One domain may be
missing, or the loss of a rack would block all appends and recoveries until it is back. But no two
copies count that are on shards of one node: it fails as a whole.

While fewer nodes than that take copies, an epoch, or the recovery of one, may use a short copyset,
with a shard of every node that does. The epoch store names it before anything is stored on it, so
that all who ask whether shards can have had every copy of a record take it into account.

All parties that know the same nodes choose the same sequencer, nodeset and sender, by hashes; few
choices change when the nodes do. Copysets are random; nodes that refused a record or were too slow
are excluded for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, MutableSequence, Sequence
from enum import StrEnum
from functools import lru_cache, partial
from math import inf
from math import log as logarithm
from typing import Any, Final, NamedTuple, Protocol

from loomlog.core.conditions import Condition, Kind
from loomlog.core.copyset.record import Lsn
from loomlog.errors import InvalidArgument
from loomlog.types import LogId, NodeId, ShardId

_NODE_BITS: Final = 32
_NODE: Final = (1 << _NODE_BITS) - 1

SHARD_BITS: Final = 48  # enough for all volumes that a node can have
SHARD_MAX: Final = (1 << SHARD_BITS) - 1


def shard_of(node: NodeId, index: int) -> ShardId:
    return node | index << _NODE_BITS


def node_of(shard: ShardId) -> NodeId:
    return shard & _NODE


def index_of(shard: ShardId) -> int:
    return shard >> _NODE_BITS


def shard_name(shard: ShardId) -> str:
    """Return the shard as people see it: 3 is the first of node 3, 3/1 the next."""
    index = index_of(shard)
    return f"{node_of(shard)}/{index}" if index else str(shard)


class Member(NamedTuple):
    """A shard of a nodeset. The location of its node is a failure domain; without one the node is
    its own."""

    shard: ShardId
    location: str = ""

    @property
    def node(self) -> NodeId:
        return node_of(self.shard)

    @property
    def domain(self) -> str:
        return self.location or f"node {node_of(self.shard)}"


class Authority(StrEnum):
    """The meaning of a node's not having a record."""

    FULL = "fully authoritative"  # it has everything that it was given
    UNDERREPLICATED = "underreplicated"  # what it has counts, what it lacks does not
    EMPTY = "authoritatively empty"  # what it had was copied to other nodes
    UNAVAILABLE = "unavailable"  # away for long, perhaps for good, and perhaps with the only copy
    # of a record: readers wait for it, writers and recovery do not


class Trouble(StrEnum):
    """The reason why a shard takes no record now. Each keeps it out of copysets for its own
    time."""

    NO_SPACE = "no space"
    DISABLED = "disabled"  # its disk failed, or it is being rebuilt or drained
    OVERLOADED = "overloaded"


class EpochMetadata(NamedTuple):
    """The nodeset and replication of epochs."""

    since: int  # the first epoch that it holds for; until the next one in the history
    nodeset: tuple[Member, ...]
    replication: int
    short: tuple[tuple[ShardId, ...], ...] = ()  # copysets of fewer nodes: records may be on these

    @property
    def shards(self) -> tuple[ShardId, ...]:
        return tuple(member.shard for member in self.nodeset)

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
        return _count_domains(self.nodeset)

    def can_hold_a_copyset(self, shards: Collection[ShardId]) -> bool:
        """Return whether a record can have all its copies on these shards."""
        there = set(self.shards).intersection(shards)
        return self.can_replicate(there) or any(there.issuperset(short) for short in self.short)

    def can_replicate(self, shards: Collection[ShardId]) -> bool:
        """Return whether a record can have as many copies as wanted on these shards."""
        members = [member for member in self.nodeset if member.shard in shards]
        nodes = {member.node for member in members}
        domains = {member.domain for member in members}
        return len(nodes) >= self.replication and len(domains) >= self.domains_spanned

    def with_short(self, shards: Collection[ShardId]) -> EpochMetadata:
        """Let these shards be a copyset. One that contains another says nothing more."""
        self._check_short(shards)
        if self.can_hold_a_copyset(shards):
            return self
        kept = [short for short in self.short if not set(short).issuperset(shards)]
        return self._replace(short=tuple(sorted([*kept, tuple(sorted(shards))])))

    def _check_short(self, shards: Collection[ShardId]) -> None:
        """Refuse shards that are lost together, and those that nobody would ask."""
        if len(set(map(node_of, shards))) < len(shards) or not {*shards} <= {*self.shards}:
            names = ", ".join(map(shard_name, shards))
            raise InvalidArgument(
                f"{names} are no short copyset: it has one shard of each node, all of its nodeset"
            )

    def is_f_majority(self, shards: Collection[ShardId], empty: Collection[ShardId] = ()) -> bool:
        """Return whether every record that is fully stored has a copy on one of these shards. What
        `empty` ones had was copied to the rest; if the rest cannot hold a copyset, no part of it is
        enough."""
        rest = set(self.shards).difference(empty)
        is_rest_enough = not empty or self.can_hold_a_copyset(rest)
        return is_rest_enough and not self.can_hold_a_copyset(rest.difference(shards))


@lru_cache(maxsize=1024)  # every record asks
def _count_domains(nodeset: tuple[Member, ...]) -> int:
    return len({member.domain for member in nodeset})


_BITS: Final = (1 << 64) - 1
_UNIT_BITS: Final = 52  # half a step from 0 or 1 is still a distinct float


class Shuffler(Protocol):
    """A `random.Random`."""

    def shuffle(self, x: MutableSequence[Any], /) -> None: ...


def ranked(log: LogId, weights: Mapping[int, float]) -> list[int]:
    """Return nodes or shards by weighted rendezvous hashing, the best for `log` first. Each is the
    first for a share of all logs that is its share of the weights."""
    return sorted(weights, key=lambda node: (-_score(log, node, weights[node]), node))


def sequencer_of(log: LogId, weights: Mapping[NodeId, float], chosen: NodeId = 0) -> NodeId | None:
    """Return the node that is to host the sequencer of a log, if there is any: the one that an
    operator chose, if it is there."""
    return chosen if chosen in weights else next(iter(ranked(log, weights)), None)


def choose_nodeset(log: LogId, candidates: Iterable[Member], size: int) -> tuple[Member, ...]:
    """Choose at most `size` shards: one of each node before a second one of any, and from all
    failure domains in turn."""
    members = {member.shard: member for member in candidates}
    places: dict[str, int] = {}
    rounds: Counter[NodeId] = Counter()  # shards of the node that came before
    turns: Counter[tuple[int, str]] = Counter()  # shards of the domain that did, in the same round
    order = []
    for shard in ranked(log, dict.fromkeys(members, 1.0)):
        member = members[shard]
        place = places.setdefault(member.domain, len(places))
        turn = rounds[member.node], member.domain
        order.append((rounds[member.node], turns[turn], place, member))
        rounds[member.node] += 1
        turns[turn] += 1
    return tuple(member for *_, member in sorted(order)[:size])


def choose_copyset(
    metadata: EpochMetadata,
    excluded: Collection[ShardId],
    chance: Shuffler,
    preferred: Collection[ShardId] = (),
) -> tuple[ShardId, ...] | None:
    """Choose shards of as many nodes, in as many failure domains, as the epoch asks for,
    `preferred` ones if possible; if there are too few, a short copyset. None: too few are not
    excluded."""
    members = [member for member in metadata.nodeset if member.shard not in excluded]
    chance.shuffle(members)
    if preferred:
        members.sort(key=lambda member: member.shard not in preferred)
    spread = _spread(members, metadata.domains_wanted)
    by_node = {member.node: member.shard for member in spread}
    for member in members:
        if len(by_node) == metadata.replication:
            break
        by_node.setdefault(member.node, member.shard)
    if len(spread) >= metadata.domains_spanned and len(by_node) == metadata.replication:
        return tuple(by_node.values())
    return next((short for short in metadata.short if set(short).isdisjoint(excluded)), None)


def choose_short(
    log: LogId, metadata: EpochMetadata, takers: Collection[ShardId], least: int
) -> tuple[ShardId, ...]:
    """Choose a short copyset. It is empty if `takers`, the shards that take copies, are enough for
    the epoch, or are of fewer nodes than `least`."""
    if metadata.can_replicate(takers):
        return ()
    members = [member for member in metadata.nodeset if member.shard in takers]
    by_node: dict[NodeId, ShardId] = {}
    for member in choose_nodeset(log, members, len(members)):
        if len(by_node) < metadata.replication:
            by_node.setdefault(member.node, member.shard)
    return tuple(sorted(by_node.values())) if len(by_node) >= max(least, 1) else ()


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


def shuffled(copyset: Iterable[ShardId], lsn: Lsn) -> list[ShardId]:
    """Return the shards in the order in which they have to send the record at an LSN to readers.

    All nodes shuffle alike, so that they share the load and send each record once without talking
    to each other."""
    return sorted(copyset, key=partial(_mix, mixed(lsn)))  # different for each shard


def is_sender(
    me: ShardId, copyset: Collection[ShardId], lsn: Lsn, known_down: Collection[ShardId]
) -> bool:
    """Return whether the reader believes all shards before `me` to be down. `me` sends even if the
    reader believes it to be down, which shows that it is back."""
    if me not in copyset:
        return False
    for shard in shuffled(copyset, lsn):
        if shard == me:
            return True
        if shard not in known_down:
            return False
    return False


def mixed(*numbers: int) -> int:
    """Return 64 bits that depend on all numbers and their order (rounds of splitmix64)."""
    state = 0
    for number in numbers:
        state = _mix(state, number)
    return state


def _mix(state: int, number: int) -> int:
    """Return a state that is different for each number of 64 bits."""
    state = (state ^ (number & _BITS)) + 0x9E3779B97F4A7C15 & _BITS
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _BITS
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _BITS
    return state ^ state >> 31


# ---- exclusions


REFUSED_S: Final[Mapping[Trouble, float]] = {
    Trouble.NO_SPACE: 60.0,
    Trouble.DISABLED: 30.0,
    Trouble.OVERLOADED: 1.0,
}


LOST_S: Final = 1.0  # the connection broke
HICCUP_S: Final = 10.0  # no answer in time
SILENT_S: Final = 600.0  # the same again and again: this one costs a wave each time


class Exclusions:
    """Shards that get no records for a while. All sequencers of a node share them, so that one of
    them waits instead of all. They only affect speed: they are cleared when they leave too few
    shards for a copyset."""

    def __init__(self, silent_s: float = SILENT_S) -> None:
        self.down: frozenset[NodeId] = frozenset()  # nodes known to be away: never tried
        self.full: Mapping[ShardId, str] = {}  # known to have no room, and why: a last resort
        self._silent_s = silent_s
        self._black: dict[ShardId, float] = {}  # until when
        self._gray: dict[ShardId, float] = {}
        self._spans: dict[ShardId, float] = {}  # for how long silent ones were left out last

    def refused(self, shard: ShardId, trouble: Trouble, now: float) -> None:
        self._exclude(shard, now + REFUSED_S[trouble])

    def lost(self, shard: ShardId, now: float) -> None:
        self._exclude(shard, now + LOST_S)

    def silent(self, shards: Collection[ShardId], metadata: EpochMetadata, now: float) -> None:
        """Exclude shards that did not answer in time. If none of a copyset did, this node may be to
        blame. They are of few nodes at most, so that their load does not slow down the others."""
        if len(shards) == metadata.replication > 1:
            self._forgive(self._gray, metadata.shards)
            return
        for shard in shards:
            if self._gray.get(shard, now) <= now:  # else other records waited for it, too
                self._spans[shard] = self._span(shard, now)
            self._gray[shard] = now + self._spans[shard]
        gray = [shard for shard in metadata.shards if self._gray.get(shard, now) > now]
        nodes = len(set(map(node_of, metadata.shards)))
        if len(set(map(node_of, gray))) > max(metadata.replication - 1, nodes // 4):
            self._forgive(self._gray, gray)

    def _span(self, shard: ShardId, now: float) -> float:
        """Return for how long to leave out a silent shard: twice as long as the last time, if it
        was well for less time than that since."""
        last = self._spans.get(shard, 0.0)
        is_again = now - self._gray.get(shard, -inf) < last
        return min(2 * last if is_again else HICCUP_S, self._silent_s)

    def returned(self, node: NodeId) -> None:
        """Called when a node restarted or said that it is well."""
        for excluded in (self._gray, self._black):
            self._forgive(excluded, [shard for shard in excluded if node_of(shard) == node])

    def now_excluded(self, now: float) -> set[ShardId]:
        """Return the shards that are excluded, besides those of nodes that are `down`."""
        lists = (*self._black.items(), *self._gray.items())
        return {shard for shard, until in lists if until > now}

    def conditions(self, sequencing: NodeId, now: float) -> list[Condition]:
        """Return which shards the sequencers on a node avoid, and why."""
        found = []
        for listed, why in ((self._black, "refused copies"), (self._gray, "was too slow")):
            for shard, until in sorted(listed.items()):
                if until <= now or (node := node_of(shard)) in self.down:
                    continue
                text = (
                    f"gets no copies from sequencers on node {sequencing} for {until - now:.0f} s "
                    f"more, because shard {shard_name(shard)} {why}"
                )
                helps = "look at its disk and its load"
                found.append(Condition(Kind.NODE_AVOIDED, text, helps, node=node))
        return found

    def are_down(self, shards: Iterable[ShardId]) -> set[ShardId]:
        """Return those of the shards whose nodes are known to be away."""
        return {shard for shard in shards if node_of(shard) in self.down} if self.down else set()

    def are_full(self, shards: Iterable[ShardId]) -> set[ShardId]:
        """Return those of the shards that are known to have no room."""
        return self.full.keys() & set(shards) if self.full else set()

    def choose_copyset(
        self, metadata: EpochMetadata, holders: Collection[ShardId], chance: Shuffler, now: float
    ) -> tuple[ShardId, ...] | None:
        """Choose a copyset. None: even without exclusions too few nodes are there."""
        down, full = self.are_down(metadata.shards), self.are_full(metadata.shards)
        for unnecessary in (None, self._gray, self._black):
            if unnecessary is not None:
                self._forgive(unnecessary, metadata.shards)
            excluded = self.now_excluded(now) | down
            copyset = choose_copyset(metadata, excluded | full, chance, holders)
            if copyset is not None:
                return copyset
        return choose_copyset(metadata, excluded, chance, holders) if full else None

    def _exclude(self, shard: ShardId, until: float) -> None:
        self._black[shard] = max(until, self._black.get(shard, until))

    def _forgive(self, excluded: dict[ShardId, float], shards: Iterable[ShardId]) -> None:
        for shard in shards:
            excluded.pop(shard, None)
