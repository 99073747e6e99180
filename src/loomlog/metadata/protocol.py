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
    contradicted: Callable[[str], None]  # call it when a node knows what this metadata lacks
    failed: Callable[[BaseException], None]  # call it when the term cannot continue


class ReplicaSet(NamedTuple):
    """Replicas of the same data; one is on the node that was asked about."""

    name: str  # for people, such as "stream 3"
    nodes: tuple[NodeId, ...]  # that have a complete replica


class Renewal(NamedTuple):
    """The nodes of a stream, and those that a new one would have."""

    stream_id: StreamId
    before: tuple[NodeId, ...]
    after: tuple[NodeId, ...]


class Cleanup(NamedTuple):
    """Replicas deleted from a node that no log needs."""

    deleted: str = ""  # for people; "": nothing
    left: str = ""  # what could not be deleted, and why


class ProtocolKeeper(ABC):
    """Keeps the loglets of one protocol: makes, seals, trims, repairs and shows them.

    Every call may be repeated. Every protocol needs the abstract methods; the others have defaults
    that suit a protocol without the feature.
    """

    protocol: ClassVar[str]
    has_streams: ClassVar[bool] = True  # a segment may have more than one stream
    has_nodesets: ClassVar[bool] = False
    has_min_replicas: ClassVar[bool] = False  # its logs may say how many replicas appends need
    # What operators do instead of changes of streams that it does not know, by ChangeStream.Action.
    instead: ClassVar[Mapping[int, str]] = MappingProxyType({})

    # ---- life

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
        """Let a segment take appends from its start on. Return whether it takes them already."""

    async def why_not_sealed(self, log: LogRecord, segment: Segment) -> str:
        """Return why sealing the segment would have to wait now, or ""."""
        return ""

    @abstractmethod
    async def seal(self, log: LogRecord, segment: Segment) -> Glsn:
        """End a segment for good and return its last position."""

    async def discard(self, log: LogRecord, loglet: LogId) -> None:
        """Remove a loglet that was made and will never begin."""

    def log_changed(self, log: LogRecord) -> None:
        """Called when the segments of a log changed, or its successor is ready."""

    @abstractmethod
    async def trim(self, log: LogRecord) -> None:
        """Trim as far as the log is trimmed, on nodes that can be reached; on others later."""

    async def deleted(self, log: LogRecord) -> None:
        """Called when a log is gone: delete what there is of it, now or later."""

    # ---- positions

    @abstractmethod
    async def find_tail(self, log: LogRecord, segment: Segment) -> Glsn:
        """Return a position at or above all that was acknowledged before this was called.

        Unavailable: it is not known now. RolledBack: it is lost.
        """

    async def settle(self, log: LogRecord, segment: Segment) -> Glsn:
        """Return a position up to which everything is decided: what is not written there by now
        never will be, even if it was reserved. Any LoomError: it cannot be decided now."""
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

        This holds for all entries appended before the call. Any LoomError: not known now.
        """
        raise Unavailable(f"protocol {self.protocol!r} does not look for times")

    async def measure(
        self, log: LogRecord, segment: Segment, first: Glsn, last: Glsn
    ) -> Sequence[Measured]:
        """Return the sizes of the parts of a segment, of batches that begin in a range; or of its
        beginning, if a part looks no further at once. Never more than is stored."""
        raise Unavailable(f"protocol {self.protocol!r} does not measure what it stores")

    # ---- status

    @abstractmethod
    def streams(self, log: LogRecord) -> list[pb.LogStream]:
        """Return the streams of the segments of this protocol for clients, in order."""

    @abstractmethod
    def conditions(self, log: LogRecord) -> list[Condition]:
        """Return what is not as it should be with the segments of this protocol. None: every
        acknowledged entry in them has all its copies."""

    def has_stream(self, stream_id: StreamId) -> bool:
        return False

    def version_of(self, log: LogRecord) -> int:
        """Return the version of the newest record that `streams` depends on."""
        return 0

    def extend_status(self, status: pb.Status) -> None:
        """Add what only this protocol knows."""

    def metrics(self, status: pb.Status) -> list[Metric]:
        return []

    # ---- operators

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
        """Return what is known here of the replicas of one of its streams."""
        return []

    # ---- storage nodes

    def placement(self) -> list[tuple[NodeId, ...]]:
        """Return the nodes of each set of replicas, the busiest node of each first."""
        return []

    def replicas_on(self, node: NodeId) -> list[ReplicaSet]:
        """Return the sets of replicas that a node has a part of, or is about to have."""
        return []

    def stuck_on(self, node: NodeId) -> list[str]:
        """Return what cannot leave a node that is drained, for lack of another node."""
        return []

    def outage(self, log: LogRecord, away: Collection[NodeId]) -> list[PartOutage]:
        """Return what it costs a log if these nodes are away, for each part of this protocol."""
        return []

    async def leave(self, node: NodeId, index: int, stored: Collection[pb.StoredReplica]) -> int:
        """Move away what is on a volume of a node; return how many replicas are left there.
        `stored`: the replicas of all protocols that are found there."""
        return 0

    def replica_groups(self) -> list[ReplicaGroup]:
        """Return the sets of replicas of which one may be moved to another node now."""
        return []

    def renewals(self) -> list[Renewal]:
        """Return the streams whose new entries would be spread better over other nodes."""
        return []

    def node_conditions(self, node: NodeId) -> list[Condition]:
        """Return what operators should know about the node's data of this protocol."""
        return []

    def stored_bytes(self, node: NodeId) -> int:
        """Return what the node stores of this protocol, if it reports that by stream."""
        return 0

    def forgotten(self, node: NodeId) -> list[str]:
        """Return the names of what the node holds of logs that no record names."""
        return []

    def unknown_streams(self, node: NodeId) -> list[StreamId]:
        """Return the streams that the node holds without being a replica of them."""
        return []

    async def clean_up(self, node: NodeId) -> Cleanup:
        """Delete what a node has that no record names."""
        return Cleanup()

    def node_joined(self, node: NodeId) -> None:
        """Called after a node registered and got its answer."""

    def node_changed(self, node: NodeId, *, alive: bool) -> None:
        """Called when a node fell silent, is back, or an operator's wishes for it changed."""

    def is_needed(self, node: NodeId) -> bool:
        """Return whether appends would wait for a node that stops, though others can do its part
        in a moment."""
        return False

    # ---- news from nodes

    def has_data(self, request: pb.Register) -> bool:
        """Return whether a node that registers says that it has, or had, data of this protocol."""
        return False

    def note_losses(
        self, node: NodeRecord, request: pb.Register, lost: Collection[int]
    ) -> NodeRecord:
        """Return the record of a node that registers, with what it has lost.

        `lost`: the indexes of volumes that are empty, or have an older copy of their data.
        """
        return node

    def give_up(self, node: NodeRecord) -> NodeRecord:
        """Return the record of a node whose data will not come back, as an operator says; the same
        one if nothing waits for it."""
        return node.given_up() if self.replicas_on(node.node_id) else node

    def fill_registered(self, node: NodeRecord, answer: pb.Registered) -> None:
        """Add to the answer to a registration what the node has to know."""

    def registered(self, node: NodeRecord, request: pb.Register) -> None:
        """Called when a node is admitted, before it is answered."""

    def report_handler(self) -> TakeReport | None:
        """Return a function to call with every report of a node, if the protocol uses them."""
        return None

    # ---- requests

    def requests(self) -> Mapping[str, Answer]:
        """Return the requests that only this protocol knows, by their fields in `pb.Frame`.

        They are answered after this process has confirmed that it leads.
        """
        return {}

    def requests_at_once(self) -> Mapping[str, AnswerAtOnce]:
        """Return requests on the append path: answered without confirming the leadership."""
        return {}


class LogletKeeper(ProtocolKeeper, Generic[L]):
    """The keeper of a protocol that has its own record for each loglet."""

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
        """Return what is not as it should be with a segment."""

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
