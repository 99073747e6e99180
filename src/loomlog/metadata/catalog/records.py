"""Metadata as small records, and as the JSON that a MetaStore keeps. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

from loomlog.core.segments import Layout, Segment, Settings, Successor
from loomlog.errors import Corrupt
from loomlog.types import Glsn, LogId, NodeId, StreamId


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The name of the cluster and its secret."""

    cluster_id: str
    secret: str = field(repr=False)  # kept by every node with its data: both belong together


@dataclass(frozen=True, slots=True)
class CountersRecord:
    """The last ids given. Ids are never given twice."""

    log_id: LogId = 0
    stream_id: StreamId = 0


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A storage node that is part of the cluster."""

    node_id: NodeId
    address: str
    node_secret: str = field(repr=False)
    sync_mode: str
    volumes: tuple[str, ...]
    draining: bool = False  # takes nothing new; what it has moves away
    removing: bool = False  # dead, and forgotten once nothing is left there
    location: str = ""  # its failure domain; empty: one of its own
    lost: tuple[tuple[LogId, int], ...] = ()  # loglets, with the epoch up to which data may be lost
    replaceable: bool = False  # an empty node may take its number, once
    generation: int = 0  # of its data; grows. With a lower one it is an older copy
    process: str = ""  # that registered last
    void: tuple[tuple[LogId, int, int], ...] = ()  # replicas that it lost, or has older copies of,
    # by loglet, number and birth: they do not count any more


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A log. It always has a segment: the last one is active."""

    log_id: LogId
    name: str
    segments: tuple[Segment, ...]
    streams: tuple[StreamId, ...] = ()  # those in the catalog, of all segments and the successor
    trimmed: Glsn = 0
    creating: bool = False  # not visible yet; a restart undoes it
    successor: Successor | None = None  # of the active segment, while it is being switched
    retention_s: int = 0  # age at which entries may be deleted; 0: never

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

    def segment_of(self, loglet: LogId) -> Segment | None:
        """Return the segment that a loglet runs. That of the successor has no start yet."""
        for segment in self.segments:
            if segment.loglet == loglet:
                return segment
        successor = self.successor
        if successor is not None and successor.loglet == loglet:
            return Segment(loglet, successor.settings, 0)
        return None

    def trim(self, position: Glsn) -> LogRecord:
        """Drop segments that have nothing left; their streams are still to be removed."""
        return self.with_layout(self.layout.trim(position))

    def with_layout(self, layout: Layout) -> LogRecord:
        return replace(
            self, segments=layout.segments, trimmed=layout.trimmed, successor=layout.successor
        )


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream of a log, with its replicas and what operators want of it."""

    stream_id: StreamId
    log_id: LogId
    loglet: LogId  # of its segment
    replicas: tuple[NodeId, ...]  # the first is the primary
    epoch: int
    sealed: bool
    wanted_running: bool = True  # False: an operator sealed it
    wanted_replicas: int = 0  # 0: as many as its log says
    joining: NodeId | None = None  # is being filled, to become a replica
    leaving: NodeId | None = None  # an operator wants this replica elsewhere, or gone
    dropping: tuple[NodeId, ...] = ()  # what these hold of it is to be deleted
    left: tuple[NodeId, ...] = ()  # were replicas, and keep what they have until the log is deleted
    stamp: int = 0  # of its creation; stored with every replica, and named to delete one
    births: tuple[tuple[NodeId, int], ...] = ()  # of the replicas that were ordered, by node
    unregistered: tuple[NodeId, ...] = ()  # by an operator; what they keep is not taken up again

    @property
    def placement(self) -> tuple[tuple[NodeId, ...], NodeId | None, NodeId | None]:
        """The replicas, and which of them join and leave."""
        return self.replicas, self.joining, self.leaving

    def birth_on(self, node: NodeId) -> int:
        return dict(self.births).get(node, 0)

    def with_replicas(
        self,
        replicas: tuple[NodeId, ...],
        dropping: tuple[NodeId, ...],
        births: Mapping[NodeId, int],
    ) -> StreamRecord:
        left = dict.fromkeys((*self.left, *self.replicas))
        sent_away = () if self.leaving is None else (self.leaving,)
        unregistered = {*self.unregistered, *sent_away}.difference(replicas, dropping)
        return replace(
            self,
            replicas=replicas,
            joining=None if self.joining in replicas else self.joining,
            leaving=self.leaving if self.leaving in replicas else None,
            dropping=tuple(dict.fromkeys((*self.dropping, *dropping))),
            left=tuple(n for n in left if n not in replicas and n not in dropping),
            births=tuple({**dict(self.births), **births}.items()),
            unregistered=tuple(sorted(unregistered)),
        )

    def without_dropped(self, node: NodeId) -> StreamRecord:
        return replace(self, dropping=_without(node, self.dropping))

    def without_remains(self, node: NodeId) -> StreamRecord:
        left, unregistered = _without(node, self.left), _without(node, self.unregistered)
        return replace(self.without_dropped(node), left=left, unregistered=unregistered)


class Remains(NamedTuple):
    """The replicas of a stream that a deleted log may have left on nodes."""

    stream_id: StreamId
    stamp: int
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class TombstoneRecord:
    """A log that was deleted, until every replica of it is gone."""

    log_id: LogId
    name: str
    remains: tuple[Remains, ...]

    def __post_init__(self) -> None:
        """Convert the plain tuples that were read."""
        object.__setattr__(self, "remains", tuple(Remains(*r) for r in self.remains))


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The holder of a lease. Renewals are not written: safety never depends on time."""

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
    without: tuple[NodeId, ...] = ()  # need not come: an operator gave them up
    rolled_back: str = ""  # what a node knows that is missing here; empty: nothing
    lease_epochs: int = 0  # leases that are new here may have had epochs up to this one


@dataclass(frozen=True, slots=True)
class StartedRecord:
    """A metadata repository that was started once."""

    member: int


class Record(Protocol):
    """A dataclass of plain values, such as those above and those that protocols keep."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class OfLog(Protocol):
    """A record of something that belongs to a log."""

    @property
    def log_id(self) -> LogId: ...


class LogletRecord(Record, OfLog, Protocol):
    """A protocol's record of a loglet."""

    @property
    def loglet(self) -> LogId: ...

    @property
    def stream_id(self) -> StreamId:
        """The one stream that its segment shows."""


R = TypeVar("R", bound=Record)


def encode(record: Record) -> bytes:
    return json.dumps(asdict(record), separators=(",", ":")).encode()


def decode(kind: type[R], key: str, value: bytes) -> R:
    try:
        fields = json.loads(value)
        return kind(**{name: _tuples(field) for name, field in fields.items()})
    except (ValueError, TypeError, AttributeError) as error:
        raise Corrupt(f"metadata {key!r} is not what this release writes: {error}") from error


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _without(node: NodeId, nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    return tuple(other for other in nodes if other != node)


def _segment(fields: Segment) -> Segment:
    """Make a segment of the plain tuples of a stored record."""
    loglet, settings, start, end = fields
    return Segment(loglet, Settings(*settings), start, end)


def _successor(fields: Successor) -> Successor:
    loglet, settings, ready = fields
    return Successor(loglet, Settings(*settings), ready)


HISTORY: Final = "history"  # the key of the HistoryRecord


def node_key(node_id: NodeId) -> str:
    return f"node/{node_id}"


def log_key(name: str) -> str:
    return f"log/{name}"


def stream_key(stream_id: StreamId) -> str:
    return f"stream/{stream_id}"


def tombstone_key(log_id: LogId) -> str:
    return f"tombstone/{log_id}"
