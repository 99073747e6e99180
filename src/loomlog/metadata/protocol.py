# ruff: noqa: B027 - most methods may stay empty
"""The interface between the metadata repository and a replication protocol.

Every protocol has one keeper in each term. Shared code finds it by the protocol's name in the
settings of a segment (`Keepers.of`) or asks all keepers in turn; it never compares names.
metadata/registry.py lists the protocols.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Generic, NamedTuple, TypeAlias

from loomlog.config import MetadataSettings
from loomlog.core.conditions import Condition
from loomlog.core.outage import PartOutage
from loomlog.core.rebalance import ReplicaGroup
from loomlog.core.segments import Segment, Settings, Successor
from loomlog.core.sizes import Measured
from loomlog.errors import InvalidArgument, Unavailable
from loomlog.metadata.background import Background
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.loglet_records import L, LogletRecords
from loomlog.metadata.catalog.records import LogRecord, NodeRecord
from loomlog.metadata.nodes.clocks import Clocks
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.nodes.placement import LostNodes, ReplicaPlacement
from loomlog.metadata.rounds import RoundLog
from loomlog.metadata.store.contract import MetaStore
from loomlog.metrics import Metric
from loomlog.types import Glsn, LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection

Answer: TypeAlias = Callable[[Connection, pb.Frame], Awaitable[pb.Frame]]
AnswerAtOnce: TypeAlias = Callable[[Connection, pb.Frame], pb.Frame]
TakeReport: TypeAlias = Callable[[NodeId, pb.GetReportResponse], None]


@dataclass(frozen=True, slots=True)
class KeeperContext:
    """The parts of a term that all keepers share."""

    settings: MetadataSettings
    leader_epoch: int
    round_log: RoundLog
    store: MetaStore
    catalog: Catalog
    nodes: ConnectedNodes
    lost_nodes: LostNodes
    placement: ReplicaPlacement
    background: Background
    clocks: Clocks
    forget_if_removed: Callable[[NodeId], Awaitable[None]]  # call it when a replica left a node
    contradicted: Callable[
        [str], None
    ]  # call it when a node has newer information than this metadata
    failed: Callable[[BaseException], None]  # call it when the term cannot continue


class ReplicaSet(NamedTuple):
    """Replicas of the same data; one is on the node that was asked about."""

    name: str  # for messages, such as "stream 3"
    nodes: tuple[NodeId, ...]  # that have a complete replica


class Renewal(NamedTuple):
    """The nodes of a stream, and those that a new stream would get."""

    stream_id: StreamId
    before: tuple[NodeId, ...]
    after: tuple[NodeId, ...]


class Resized(NamedTuple):
    """The segment with which a log continues after a change of its streams."""

    log: str
    settings: Settings
    nodes: tuple[tuple[NodeId, ...], ...]  # of each set of replicas


class Cleanup(NamedTuple):
    """Replicas deleted from a node that no log needs."""

    deleted: str = ""  # for messages; "": nothing
    left: str = ""  # what could not be deleted, and why


class ProtocolKeeper(ABC):
    """Manages the loglets of one protocol: creates, seals, trims, repairs and shows them.

    Every call is idempotent. Every protocol implements the abstract methods; the others have
    defaults for a protocol without the feature.
    """

    protocol: ClassVar[str]
    has_streams: ClassVar[bool] = True  # a segment may have more than one stream
    has_nodesets: ClassVar[bool] = False
    has_min_replicas: ClassVar[bool] = False  # its logs may set how many replicas appends need
    # Alternatives to unsupported changes of streams, for operators, by ChangeStream.Action.
    instead: ClassVar[Mapping[int, str]] = MappingProxyType({})

    # ---- start and end

    def start(self) -> None:
        """Resume work that an earlier leader left unfinished."""

    def stop(self) -> None:
        """Send no more orders; queries are still answered."""

    def end(self) -> None:
        """Called when the term is over."""
        self.stop()

    # ---- settings

    def check(self, settings: Settings) -> None:
        """Raise InvalidArgument for settings that the protocol cannot use."""
        if settings.streams > 1 and not self.has_streams:
            raise InvalidArgument(
                f"a log of protocol {self.protocol!r} has one stream: leave out how many"
            )
        if settings.nodeset and not self.has_nodesets:
            raise InvalidArgument(f"protocol {self.protocol!r} has no nodesets: leave it out")

    def replicas_least(self, settings: Settings) -> int:
        """Return the number of replicas that appends need."""
        return settings.replicas

    def describe(self, settings: Settings) -> str:
        """Return the settings in words."""
        streams = f", {settings.streams} streams" if self.has_streams else ""
        nodeset = f", a nodeset of {settings.nodeset}" if settings.nodeset else ""
        least = f" (at least {settings.min_replicas})" if settings.min_replicas else ""
        packed = "" if settings.compression == "none" else f", compressed by {settings.compression}"
        replicas = f"{settings.replicas} replicas{least}"
        return f"protocol {self.protocol!r}{streams}, {replicas}{nodeset}{packed}"

    # ---- segments

    @abstractmethod
    async def make(self, log: LogRecord, successor: Successor) -> None:
        """Create an empty loglet; raise a LoomError if that fails."""

    @abstractmethod
    async def begin(self, log: LogRecord, segment: Segment) -> bool:
        """Let a segment take appends from its start on. Return whether it already takes them."""

    async def why_not_sealed(self, log: LogRecord, segment: Segment) -> str:
        """Return why sealing the segment would have to wait now, or ""."""
        return ""

    @abstractmethod
    async def seal(self, log: LogRecord, segment: Segment) -> Glsn:
        """End a segment permanently and return its last position."""

    async def discard(self, log: LogRecord, loglet: LogId) -> None:
        """Remove a loglet that was created and will never begin."""

    def log_changed(self, log: LogRecord) -> None:
        """Called when the segments of a log changed, or its successor is ready."""

    @abstractmethod
    async def trim(self, log: LogRecord) -> None:
        """Trim as far as the log is trimmed: at once on reachable nodes, on others later."""

    async def deleted(self, log: LogRecord) -> None:
        """Called when a log was deleted: delete its data, now or later."""

    # ---- positions

    @abstractmethod
    async def find_tail(self, log: LogRecord, segment: Segment) -> Glsn:
        """Return a position at or above everything that was acknowledged before the call.

        Raise Unavailable if it is unknown now, RolledBack if it is lost.
        """

    async def settle(self, log: LogRecord, segment: Segment) -> Glsn:
        """Return a position up to which everything is decided: positions that are not written yet
        never will be, even if they were reserved. Raise any LoomError if this is impossible now."""
        return segment.start - 1

    @abstractmethod
    def known_tail(self, log: LogRecord, segment: Segment) -> Glsn:
        """Return the last position that is known without a request."""

    def is_tail_known(self, log: LogRecord, segment: Segment) -> bool:
        """Return whether `known_tail` covers all entries except the most recent ones."""
        return True

    async def find_time(
        self, log: LogRecord, segment: Segment, timestamp_us: int, first: Glsn
    ) -> Glsn:
        """Return a position, `first` or higher, before which all entries of the segment are older.

        This holds for all entries appended before the call. Raise any LoomError if it is unknown.
        """
        raise Unavailable(f"protocol {self.protocol!r} does not look for times")

    async def measure(
        self, log: LogRecord, segment: Segment, first: Glsn, last: Glsn
    ) -> Sequence[Measured]:
        """Return the sizes of the parts of a segment, of batches that begin in a range, or in the
        first piece of it if a part measures it in pieces. Never overestimates."""
        raise Unavailable(f"protocol {self.protocol!r} does not measure what it stores")

    # ---- status

    @abstractmethod
    def streams(self, log: LogRecord) -> list[pb.LogStream]:
        """Return the streams of the segments of this protocol for clients, in order."""

    @abstractmethod
    def conditions(self, log: LogRecord) -> list[Condition]:
        """Return the conditions of the segments of this protocol. Without any, every acknowledged
        entry in them has all its copies."""

    def has_stream(self, stream_id: StreamId) -> bool:
        return False

    def version_of(self, log: LogRecord) -> int:
        """Return the version of the newest record that `streams` depends on."""
        return 0

    def extend_status(self, status: pb.Status) -> None:
        """Add the fields of this protocol."""

    def metrics(self, status: pb.Status) -> list[Metric]:
        return []

    # ---- operators

    def resized(self, request: pb.ChangeStream) -> Resized | None:
        """Return the segment to which a change of a stream switches its log; None if the change
        needs no switch. Raise InvalidArgument if it is impossible."""
        return None

    async def change_stream(self, request: pb.ChangeStream) -> pb.Changed:
        """Seal, move or copy one stream of this protocol, or add one to a log."""
        instead = self.instead.get(request.action)
        if request.action == pb.ChangeStream.ADD:
            raise InvalidArgument(
                f"log {request.log!r} runs with protocol {self.protocol!r}, which has no streams "
                f"to add{f': {instead}' if instead else ''}"
            )
        if instead:
            raise InvalidArgument(
                f"stream {request.log_stream_id} is of protocol {self.protocol!r}: {instead}"
            )
        raise InvalidArgument(
            f"stream {request.log_stream_id} is of protocol {self.protocol!r}, whose streams are "
            "not changed in this way: drain a node that should take nothing new, or give the log "
            "other settings with `loom log switch`"
        )

    def describe_replicas(self, stream_id: StreamId) -> list[pb.ReplicaDescription]:
        """Return the replicas of one of its streams as known here."""
        return []

    # ---- storage nodes

    def placement(self) -> list[tuple[NodeId, ...]]:
        """Return the nodes of each set of replicas, the busiest node of each first."""
        return []

    def replicas_on(self, node: NodeId) -> list[ReplicaSet]:
        """Return the sets of replicas of which a node has, or is about to get, a part."""
        return []

    def stuck_on(self, node: NodeId) -> list[str]:
        """Return the replicas that cannot leave a drained node, because there is no other node."""
        return []

    def outage(self, log: LogRecord, away: Collection[NodeId]) -> list[PartOutage]:
        """Return the effect of these nodes' absence on a log, for each part of this protocol."""
        return []

    async def leave(self, node: NodeId, index: int, stored: Collection[pb.StoredReplica]) -> int:
        """Move replicas off a volume of a node; return how many are left there.

        `stored` are the replicas of all protocols that are on the volume."""
        return 0

    def replica_groups(self) -> list[ReplicaGroup]:
        """Return the sets of replicas of which one may be moved to another node now."""
        return []

    def renewals(self) -> list[Renewal]:
        """Return the streams whose new entries would be spread better over other nodes."""
        return []

    def node_conditions(self, node: NodeId) -> list[Condition]:
        """Return the conditions of the node's data of this protocol."""
        return []

    def stored_bytes(self, node: NodeId) -> int:
        """Return the bytes that the node stores of this protocol, if it reports them by stream."""
        return 0

    def forgotten(self, node: NodeId) -> list[str]:
        """Return the names of the node's data of logs that no record names."""
        return []

    def unknown_streams(self, node: NodeId) -> list[StreamId]:
        """Return the streams that the node holds without being a replica of them."""
        return []

    async def clean_up(self, node: NodeId) -> Cleanup:
        """Delete the node's data that no record names."""
        return Cleanup()

    def node_joined(self, node: NodeId) -> None:
        """Called after a node registered and got its answer."""

    def node_changed(self, node: NodeId, *, alive: bool) -> None:
        """Called when a node fell silent, is back, or an operator's wishes for it changed."""

    def is_needed(self, node: NodeId) -> bool:
        """Return whether appends would wait for a node that stops, although others could take over
        in a moment."""
        return False

    # ---- news from nodes

    def has_data(self, request: pb.Register) -> bool:
        """Return whether a registering node reports that it has, or had, data of this protocol."""
        return False

    def note_losses(
        self, node: NodeRecord, request: pb.Register, lost: Collection[int]
    ) -> NodeRecord:
        """Return the record of a registering node, with its losses added.

        `lost` are the indexes of volumes that are empty, or have an older copy of their data.
        """
        return node

    def give_up(self, node: NodeRecord) -> NodeRecord:
        """Return the record of a node whose data an operator gave up; the same one if nothing waits
        for it."""
        return node.given_up() if self.replicas_on(node.node_id) else node

    def fill_registered(self, node: NodeRecord, answer: pb.Registered) -> None:
        """Add the information that the node needs to the answer to its registration."""

    def registered(self, node: NodeRecord, request: pb.Register) -> None:
        """Called when a node is admitted, before it is answered."""

    def report_handler(self) -> TakeReport | None:
        """Return a function to call with every report of a node, if the protocol uses them."""
        return None

    # ---- requests

    def has_loglet(self, loglet: LogId) -> bool:
        """Return whether this protocol keeps a loglet, for requests that several protocols take."""
        return False

    def requests(self) -> Mapping[str, Answer]:
        """Return the handlers of this protocol's requests, by their fields in `pb.Frame`.

        They are called after this process has confirmed that it leads.
        """
        return {}

    def requests_at_once(self) -> Mapping[str, AnswerAtOnce]:
        """Return the handlers of requests on the append path, called without confirming the
        leadership."""
        return {}


class LogletKeeper(ProtocolKeeper, Generic[L]):
    """The keeper of a protocol that has a separate record for each loglet."""

    records: LogletRecords[L]

    @abstractmethod
    def stream(self, log: LogRecord, record: L, segment: Segment) -> pb.LogStream:
        """Return the one stream of a segment for clients."""

    def streams(self, log: LogRecord) -> list[pb.LogStream]:
        segments = {segment.loglet: segment for segment in log.layout.segments}
        records = sorted(self.records.of_log(log.log_id), key=lambda record: record.stream_id)
        return [self.stream(log, r, segments[r.loglet]) for r in records if r.loglet in segments]

    @abstractmethod
    def segment_conditions(self, log: LogRecord, record: L, segment: Segment) -> list[Condition]:
        """Return the conditions of a segment."""

    def conditions(self, log: LogRecord) -> list[Condition]:
        segments = {segment.loglet: segment for segment in log.layout.segments}
        return [
            condition
            for record in self.records.of_log(log.log_id)
            if record.loglet in segments
            for condition in self.segment_conditions(log, record, segments[record.loglet])
        ]

    def has_stream(self, stream_id: StreamId) -> bool:
        return self.records.of_stream(stream_id) is not None

    def has_loglet(self, loglet: LogId) -> bool:
        return self.records.get(loglet) is not None

    def version_of(self, log: LogRecord) -> int:
        return self.records.version_of(log.log_id)

    async def deleted(self, log: LogRecord) -> None:
        self.log_changed(log)


LoadKeeper: TypeAlias = Callable[[KeeperContext], Awaitable[ProtocolKeeper]]


class Keepers(dict[str, ProtocolKeeper]):
    """The keepers of a term, by the names of their protocols."""

    def of(self, protocol: str) -> ProtocolKeeper:
        keeper = self.get(protocol)
        if keeper is None:
            known = ", ".join(self)
            raise InvalidArgument(f"there is no protocol {protocol!r}: available are {known}")
        return keeper

    def check(self, settings: Settings) -> None:
        """Raise InvalidArgument for settings that cannot be used."""
        settings.check()
        keeper = self.of(settings.protocol)
        if settings.min_replicas and not keeper.has_min_replicas:
            raise InvalidArgument(
                f"a log of protocol {keeper.protocol!r} always continues with "
                f"{keeper.replicas_least(settings)} of {settings.replicas} replicas: leave out how "
                "many appends need"
            )
        keeper.check(settings)

    def active(self, log: LogRecord) -> ProtocolKeeper:
        """Return the keeper of the active segment of a log."""
        return self.of(log.layout.active.settings.protocol)

    async def find_tail(self, log: LogRecord) -> Glsn:
        return await self.active(log).find_tail(log, log.layout.active)
