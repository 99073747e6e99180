"""Metadata as small records, and their JSON in a MetaStore. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar

from loomlog.core.segments import Layout, Segment, Settings, Successor
from loomlog.errors import Corrupt
from loomlog.types import Glsn, LogId, NodeId, StreamId


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The name of the cluster and its secret."""

    cluster_id: str
    secret: str = field(repr=False)  # also stored by every node with its data


@dataclass(frozen=True, slots=True)
class CountersRecord:
    """The last assigned ids. Ids are never assigned twice."""

    log_id: LogId = 0
    stream_id: StreamId = 0


Losses: TypeAlias = tuple[tuple[int, ...], ...]

GIVEN_UP: Final = "given-up"  # among the losses of a node: everything, until it registers again


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A storage node that is part of the cluster."""

    node_id: NodeId
    address: str
    node_secret: str = field(repr=False)
    sync_mode: str
    volumes: tuple[str, ...]
    draining: bool = False  # takes nothing new, and its data moves away
    removing: bool = False  # dead, and forgotten once it has no data left
    location: str = ""  # its failure domain; empty: a separate one
    replaceable: bool = False  # an empty node may take its number, once
    # Of the data on each volume it ever had, by shard. They only grow; a lower one is an older
    # copy.
    generations: dict[int, int] = field(default_factory=dict)
    process: str = ""  # of the last registration
    draining_volumes: tuple[str, ...] = ()  # take nothing new, and their data moves away
    losses: dict[str, Losses] = field(default_factory=dict)  # by protocol, in its own format
    shards: tuple[int, ...] = (0,)  # the index of each volume, which never changes
    life: int = 0  # grows when it is started after a crash; 0: not known

    def __post_init__(self) -> None:
        """Convert the keys of a stored record back to numbers."""
        numbers = {int(shard): number for shard, number in self.generations.items()}
        object.__setattr__(self, "generations", numbers)

    def with_generations(self, numbers: Mapping[int, int]) -> NodeRecord:
        """Return the record with the generations of some shards, if those have grown."""
        known = self.generations
        grown = {shard: max(n, known.get(shard, 0)) for shard, n in numbers.items()}
        return replace(self, generations={**known, **grown})

    @property
    def draining_shards(self) -> frozenset[int]:
        """The indexes of the drained volumes; of all volumes if the node is drained."""
        if self.draining or self.removing:
            return frozenset(self.shards)
        if not self.draining_volumes:  # called often, for every shard of every log
            return frozenset()
        volumes = zip(self.volumes, self.shards, strict=True)
        return frozenset(shard for volume, shard in volumes if volume in self.draining_volumes)

    @property
    def is_given_up(self) -> bool:
        """True if an operator gave up its data. If the node does come back, it is admitted unless
        it is being removed, which revokes the decision."""
        return self.removing or bool(self.losses_of(GIVEN_UP))

    def given_up(self) -> NodeRecord:
        return self.with_losses(GIVEN_UP, [(1,)])

    def losses_of(self, protocol: str) -> Losses:
        return self.losses.get(protocol, ())

    def with_losses(self, protocol: str, losses: Iterable[tuple[int, ...]]) -> NodeRecord:
        return replace(self, losses={**self.losses, protocol: tuple(sorted(losses))})

    def without_losses(self, protocol: str) -> NodeRecord:
        losses = {name: lost for name, lost in self.losses.items() if name != protocol}
        return replace(self, losses=losses)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A log. It always has a segment: the last one is active."""

    log_id: LogId
    name: str
    segments: tuple[Segment, ...]
    trimmed: Glsn = 0
    unfinished: bool = False  # being created or deleted: not visible, and a restart deletes it
    successor: Successor | None = None  # of the active segment, while it is being switched
    retention_s: int = 0  # age at which entries may be deleted; 0: never
    retention_bytes: int = 0  # bytes after an entry at which it may be deleted; 0: never

    def __post_init__(self) -> None:
        """Convert the plain tuples of a stored record."""
        object.__setattr__(self, "segments", tuple(map(_segment, self.segments)))
        if self.successor is not None:
            object.__setattr__(self, "successor", _successor(self.successor))

    @property
    def layout(self) -> Layout:
        return Layout(self.segments, self.trimmed, self.successor)

    @property
    def protocol(self) -> str:
        """The protocol of the active segment."""
        return self.segments[-1].settings.protocol

    @property
    def replicas(self) -> int:
        """The number of replicas that the active segment should have."""
        return self.segments[-1].settings.replicas

    @property
    def replicas_least(self) -> int:
        """The number of replicas that every acknowledged entry had."""
        return min(segment.settings.replicas_least for segment in self.segments)

    def segment_of(self, loglet: LogId) -> Segment | None:
        """Return the segment that a loglet runs. The segment of the successor has no start yet."""
        for segment in self.segments:
            if segment.loglet == loglet:
                return segment
        successor = self.successor
        if successor is not None and successor.loglet == loglet:
            return Segment(loglet, successor.settings, 0)
        return None

    def trim(self, position: Glsn) -> LogRecord:
        """Drop empty segments; their loglets are still to be removed."""
        return self.with_layout(self.layout.trim(position))

    def with_layout(self, layout: Layout) -> LogRecord:
        return replace(
            self, segments=layout.segments, trimmed=layout.trimmed, successor=layout.successor
        )


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token that was issued; not the token itself."""

    token_id: str
    name: str
    allow: tuple[str, ...]
    created_s: int  # since 1970
    expires_s: int
    key_id: int
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class AccessRecord:
    """The access rules of the cluster, the keys of its tokens, and the tokens."""

    version: int = 0
    enforced: bool = False
    grants: tuple[tuple[str, str, str], ...] = ()  # subject, verb or role, pattern
    keys: tuple[tuple[int, str], ...] = field(default=(), repr=False)  # id, private; newest last
    tokens: tuple[TokenRecord, ...] = ()

    def __post_init__(self) -> None:
        """Convert the plain fields of a stored record."""
        made = (
            each if isinstance(each, TokenRecord) else TokenRecord(**each) for each in self.tokens
        )
        object.__setattr__(self, "tokens", tuple(made))


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The holder of a lease. Renewals are not stored, because safety never depends on time."""

    name: str
    holder: str = ""  # empty: nobody
    epoch: int = 0  # grows with every holder
    ttl_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """The metadata repository that took the newest epoch."""

    epoch: int
    member: int
    address: str


@dataclass(frozen=True, slots=True)
class MembersRecord:
    """The metadata repositories, by id and address."""

    members: tuple[tuple[int, str], ...]
    previous: tuple[tuple[int, str], ...] = ()  # only while they change


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """The runs of this metadata (core/history.py)."""

    runs: tuple[tuple[int, str, int], ...] = ()  # number, id, the revision at which it ended
    without: tuple[NodeId, ...] = ()  # need not register: an operator gave them up
    rolled_back: str = ""  # newer information of a node than this metadata has; empty: none
    lease_epochs: int = 0  # new leases may have had epochs up to this one


@dataclass(frozen=True, slots=True)
class StartedRecord:
    """A metadata repository that was started once."""

    member: int


class MetadataRecord(Protocol):
    """A dataclass of plain values, such as those above and those of protocols."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class OfLog(Protocol):
    """A record of something that belongs to a log."""

    @property
    def log_id(self) -> LogId: ...


class LogletRecord(MetadataRecord, OfLog, Protocol):
    """A protocol's record of a loglet."""

    @property
    def loglet(self) -> LogId: ...

    @property
    def stream_id(self) -> StreamId:
        """The one stream of its segment."""


R = TypeVar("R", bound=MetadataRecord)


def encode(record: MetadataRecord) -> bytes:
    return json.dumps(asdict(record), separators=(",", ":")).encode()


def decode(kind: type[R], key: str, value: bytes) -> R:
    try:
        fields = json.loads(value)
        return kind(**{name: _tuples(field) for name, field in fields.items()})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"metadata {key!r} is not what this release writes: {error}") from error


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _segment(fields: Segment) -> Segment:
    """Make a segment of the plain tuples of a stored record."""
    loglet, settings, start, end = fields
    return Segment(loglet, Settings(*settings), start, end)


def _successor(fields: Successor) -> Successor:
    loglet, settings, ready, nodes = Successor(*fields)
    return Successor(loglet, Settings(*settings), ready, nodes)


ACCESS: Final = "access"  # the key of the AccessRecord
HISTORY: Final = "history"  # the key of the HistoryRecord


def node_key(node_id: NodeId) -> str:
    return f"node/{node_id}"


def log_key(name: str) -> str:
    return f"log/{name}"
