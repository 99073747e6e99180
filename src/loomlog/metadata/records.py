"""Metadata as small records, and as the JSON that a MetaStore keeps. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias, TypeVar

from loomlog.core.chained.projection import Projection, Replica
from loomlog.core.copyset.epoch_metadata import EpochMetadata, Member
from loomlog.core.copyset.messages import LogState
from loomlog.core.segments import Chain, Segment, Settings, Successor
from loomlog.errors import Corrupt
from loomlog.types import Glsn, LogId, NodeId, StreamId


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    cluster_id: str
    secret: str  # kept by every node beside its data: proves that both belong together


@dataclass(frozen=True, slots=True)
class CountersRecord:
    """The last ids given. Ids are never given twice."""

    log_id: LogId = 0
    stream_id: StreamId = 0


@dataclass(frozen=True, slots=True)
class NodeRecord:
    node_id: NodeId
    address: str
    node_secret: str
    sync_mode: str
    volumes: tuple[str, ...]
    draining: bool = False  # takes nothing new; what it has moves away
    removing: bool = False  # dead, and forgotten once nothing is left there
    location: str = ""  # its failure domain; empty: one of its own
    lost_below: LogId = 0  # of loglets with a lower id it may have lost copies (`copyset`)


@dataclass(frozen=True, slots=True)
class LogRecord:
    log_id: LogId
    name: str
    protocol: str
    replicas: int  # wanted per stream
    streams: tuple[StreamId, ...]
    trimmed: Glsn = 0
    creating: bool = False  # not there yet for anybody; a restart takes it back
    segments: tuple[Segment, ...] = ()  # none: it was never switched
    successor: Successor | None = None  # of the active segment, while it is being switched
    retention_s: int = 0  # entries may go when they are so old; 0: they stay

    @property
    def chain(self) -> Chain:
        """Its segments; `streams` are those of all of them, and of the successor."""
        segments = tuple(map(_segment, self.segments))
        if not segments:
            settings = Settings(self.protocol, len(self.streams), self.replicas)
            segments = (Segment(self.log_id, settings, 1),)
        successor = _successor(self.successor) if self.successor else None
        return Chain(segments, self.trimmed, successor)

    def segment_of(self, loglet: LogId) -> Segment | None:
        """The segment that a loglet runs; of the successor, without a start; None: of neither."""
        for segment in self.chain.segments:
            if segment.loglet == loglet:
                return segment
        successor = self.chain.successor
        if successor is not None and successor.loglet == loglet:
            return Segment(loglet, successor.settings, 0)
        return None

    def trim(self, position: Glsn) -> LogRecord:
        """Segments of which nothing is left are gone; their streams are still to be removed."""
        if self.segments:
            return self.with_chain(self.chain.trim(position))
        return replace(self, trimmed=max(self.trimmed, position))

    def with_chain(self, chain: Chain) -> LogRecord:
        return replace(
            self,
            protocol=chain.active.settings.protocol,
            replicas=chain.active.settings.replicas,
            segments=chain.segments,
            trimmed=chain.trimmed,
            successor=chain.successor,
        )


@dataclass(frozen=True, slots=True)
class StreamRecord:
    stream_id: StreamId
    log_id: LogId
    replicas: tuple[NodeId, ...]  # the first is the primary
    epoch: int
    sealed: bool
    wanted_running: bool = True  # False: an operator sealed it
    wanted_replicas: int = 0  # 0: as many as its log says
    joining: NodeId | None = None  # is being filled, to become a replica
    leaving: NodeId | None = None  # an operator wants this replica elsewhere, or gone
    dropping: tuple[NodeId, ...] = ()  # what these hold of it is to be deleted
    left: tuple[NodeId, ...] = ()  # were replicas, and keep what they have until the log is deleted
    loglet: LogId = 0  # of its segment; 0: the first one, which has the id of the log

    @property
    def segment(self) -> LogId:
        return self.loglet or self.log_id


@dataclass(frozen=True, slots=True)
class ChainedRecord:
    """A loglet of protocol `chained`. It outlives its segment until all replicas are removed."""

    loglet: LogId
    log_id: LogId
    stream_id: StreamId  # of the one stream that its segment shows
    projection: Projection  # in force; before the segment begins, `first` is 0
    made: bool = False  # its replicas are there and sealed; until then it may be made anew
    births: int = 1  # the last one that was given
    joining: tuple[Replica, ...] = ()  # are being filled
    dropping: tuple[Replica, ...] = ()  # are to be removed from their nodes
    trimmed: Glsn = 0  # on all replicas

    def __post_init__(self) -> None:
        """What was read is plain tuples."""
        object.__setattr__(self, "projection", _projection(self.projection))
        for name in ("joining", "dropping"):
            object.__setattr__(self, name, tuple(Replica(*r) for r in getattr(self, name)))

    @property
    def begun(self) -> bool:
        return self.projection.first > 0

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """All that there may be, on whatever node."""
        return (*self.projection.replicas, *self.joining, *self.dropping)


@dataclass(frozen=True, slots=True)
class CopysetRecord:
    """A loglet of protocol `copyset`. It outlives its segment until no node has anything of it."""

    loglet: LogId
    log_id: LogId
    stream_id: StreamId  # of the one stream that its segment shows
    state: LogState  # before the segment begins, nobody knows at which epoch
    begun: bool = False
    holders: tuple[NodeId, ...] = ()  # were in a nodeset once: they may have something of it

    def __post_init__(self) -> None:
        """What was read is plain dictionaries and tuples."""
        object.__setattr__(self, "state", _log_state(self.state))


@dataclass(frozen=True, slots=True)
class TombstoneRecord:
    """A log that was deleted, until every replica of it is gone."""

    log_id: LogId
    name: str
    remains: tuple[tuple[StreamId, tuple[NodeId, ...]], ...]


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Who has a lease. Renewals are not written: time decides nothing that must be right."""

    name: str
    holder: str = ""  # empty: nobody
    epoch: int = 0  # grows with every holder
    ttl_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """Which of several metadata repositories took the newest epoch."""

    epoch: int
    member: int
    address: str


@dataclass(frozen=True, slots=True)
class MembersRecord:
    """The metadata repositories, by id and address."""

    members: tuple[tuple[int, str], ...]
    previous: tuple[tuple[int, str], ...] = ()  # only while they change


@dataclass(frozen=True, slots=True)
class StartedRecord:
    """A metadata repository that was started once."""

    member: int


Record: TypeAlias = (
    ClusterRecord
    | CountersRecord
    | NodeRecord
    | LogRecord
    | StreamRecord
    | ChainedRecord
    | CopysetRecord
    | TombstoneRecord
    | LeaseRecord
    | LeaderRecord
    | MembersRecord
    | StartedRecord
)
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


def _segment(fields: Segment) -> Segment:
    """As it was read: plain tuples."""
    loglet, settings, start, end = fields
    return Segment(loglet, Settings(*settings), start, end)


def _successor(fields: Successor) -> Successor:
    loglet, settings, ready = fields
    return Successor(loglet, Settings(*settings), ready)


def _projection(fields: Projection) -> Projection:
    projection = Projection(*fields)
    chains = tuple(tuple(Replica(*r) for r in chain) for chain in projection.chains)
    return projection._replace(chains=chains)


def _log_state(state: LogState | dict[str, Any]) -> LogState:
    if isinstance(state, LogState):
        return state
    history = [
        EpochMetadata(since, tuple(Member(*member) for member in nodeset), replication)
        for since, nodeset, replication in state.get("history", ())
    ]
    return LogState(**{**state, "history": tuple(history)})


def node_key(node_id: NodeId) -> str:
    return f"node/{node_id}"


def log_key(name: str) -> str:
    return f"log/{name}"


def stream_key(stream_id: StreamId) -> str:
    return f"stream/{stream_id}"


def tombstone_key(log_id: LogId) -> str:
    return f"tombstone/{log_id}"
