"""What the cluster says about itself, as plain data; `dataclasses.asdict` makes it JSON-ready."""

from __future__ import annotations

from dataclasses import dataclass

from loomlog.client.orders import protocol_of
from loomlog.staging_logs import staged_log
from loomlog.types import Glsn, LogId, NodeId, ReplicaState, StreamId
from loomlog.wire import loomlog_pb2 as pb

_STATES = {
    pb.SEALING: ReplicaState.SEALING,
    pb.STREAM_SEALED: ReplicaState.SEALED,
    pb.RUNNING: ReplicaState.RUNNING,
}


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """Where one copy of a log stream lives."""

    node: NodeId
    address: str


@dataclass(frozen=True, slots=True)
class EpochsInfo:
    """Where entries of protocol `copyset` lie, from an epoch on."""

    since: int
    nodeset: tuple[NodeId, ...]
    replicas: int  # of each entry, on any of these nodes


@dataclass(frozen=True, slots=True)
class CopysetInfo:
    """A segment of protocol `copyset`."""

    sequencer: NodeId | None  # the node that took the newest epoch; None: none did yet
    last_clean: int  # all epochs up to here are recovered
    closed: bool
    history: tuple[EpochsInfo, ...]  # oldest first; each holds until the next one


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A log stream; its first replica is the primary."""

    id: StreamId
    state: str
    epoch: int
    replicas: tuple[ReplicaInfo, ...]
    entries: int  # committed so far
    condition: str = ""  # why it does not run, what is under way; empty: all is well
    joining: NodeId | None = None  # is being filled with this stream's data
    copied_entries: int = 0  # by that one, so far
    segment: LogId = 0  # that it belongs to
    protocol: str = "ordered"  # of its segment
    chains: tuple[tuple[NodeId, ...], ...] = ()  # of protocol `chained`: nodes, head first
    copyset: CopysetInfo | None = None  # of protocol `copyset`


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A part of a log's positions, and how it is run."""

    id: LogId
    protocol: str
    streams: int  # as it was asked for
    replicas: int
    start: Glsn
    end: Glsn | None  # the last position; start - 1 if it has none; None: it is active
    nodeset: int | None = None  # of `copyset`, if it was asked for


@dataclass(frozen=True, slots=True)
class LogInfo:
    """A log with its streams."""

    id: LogId
    name: str
    protocol: str
    replicas: int  # wanted per stream
    head: Glsn  # first position that is not trimmed
    tail: Glsn  # last committed position, 0 if none
    streams: tuple[StreamInfo, ...]
    staging_for: str | None = None  # the log whose staged rows it holds; None: it has its own
    segments: tuple[SegmentInfo, ...] = ()  # in their order; the last one is active
    switching: str = ""  # how far a switch is, and to what; empty: none is under way
    retention_s: int | None = None  # entries may go when they are so old; None: they stay

    @property
    def active_streams(self) -> tuple[StreamInfo, ...]:
        """Those that appends go to; the others are of segments that have ended, or come next."""
        active = self.segments[-1].id if self.segments else 0
        return tuple(stream for stream in self.streams if stream.segment == active)


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A storage node as the metadata repository sees it."""

    id: NodeId
    address: str
    alive: bool
    last_report_s: float  # ago
    sync_mode: str
    replicas: int
    stored_bytes: int
    draining: bool = False  # everything moves away, nothing new comes
    unknown_streams: tuple[
        StreamId, ...
    ] = ()  # its data of streams that are not (any more) its own
    location: str = ""  # its failure domain; empty: one of its own


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A metadata repository as the one that leads sees it."""

    id: int
    address: str
    reachable: bool
    lag: int  # records of the round log that it has not stored yet
    leaving: bool = False  # counts until the change that removes it is over
    leads: bool = False


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The whole cluster at one moment."""

    cluster_id: str
    metadata_address: str
    uptime_s: float
    rounds: int  # commit rounds since the metadata repository started
    nodes: tuple[NodeInfo, ...]
    logs: tuple[LogInfo, ...]
    leader: int = 0  # which metadata repository leads ...
    leader_epoch: int = 0  # ... since which epoch
    members: tuple[MemberInfo, ...] = ()  # all metadata repositories


def log_info(log: pb.Log) -> LogInfo:
    return LogInfo(
        id=log.log_id,
        name=log.name,
        protocol=log.protocol,
        replicas=log.replicas,
        head=log.head,
        tail=log.tail,
        streams=tuple(map(_stream_info, log.streams)),
        staging_for=staged_log(log.name),
        segments=tuple(map(_segment_info, log.segments)),
        switching=log.switching,
        retention_s=log.retention_s or None,
    )


def cluster_status(status: pb.Status) -> ClusterStatus:
    return ClusterStatus(
        cluster_id=status.cluster_id,
        metadata_address=status.metadata_address,
        uptime_s=status.uptime_s,
        rounds=status.rounds,
        nodes=tuple(map(_node_info, status.nodes)),
        logs=tuple(map(log_info, status.logs)),
        leader=status.leader,
        leader_epoch=status.leader_epoch,
        members=tuple(_member_info(member, status.leader) for member in status.members),
    )


def _member_info(member: pb.MetadataMember, leader: int) -> MemberInfo:
    return MemberInfo(
        id=member.member_id,
        address=member.address,
        reachable=member.reachable,
        lag=member.lag,
        leaving=member.leaving,
        leads=member.member_id == leader,
    )


def _stream_info(stream: pb.LogStream) -> StreamInfo:
    return StreamInfo(
        id=stream.log_stream_id,
        state=str(_STATES.get(stream.state, "unknown")),
        epoch=stream.seal_epoch,
        replicas=tuple(ReplicaInfo(r.storage_node_id, r.address) for r in stream.replicas),
        entries=stream.entries,
        condition=stream.condition,
        joining=stream.joining_node or None,
        copied_entries=stream.copied_entries,
        segment=stream.loglet_id,
        protocol=protocol_of(stream),
        chains=tuple(
            tuple(replica.storage_node_id for replica in chain.replicas)
            for chain in stream.projection.chains
        ),
        copyset=_copyset_info(stream.copyset) if stream.HasField("copyset") else None,
    )


def _copyset_info(state: pb.CopysetState) -> CopysetInfo:
    return CopysetInfo(
        sequencer=state.sequencer or None,
        last_clean=state.last_clean,
        closed=state.closed,
        history=tuple(
            EpochsInfo(epochs.since, tuple(epochs.nodeset), epochs.replication)
            for epochs in state.history
        ),
    )


def _segment_info(segment: pb.Segment) -> SegmentInfo:
    return SegmentInfo(
        id=segment.loglet_id,
        protocol=segment.protocol,
        streams=segment.streams,
        replicas=segment.replicas,
        start=segment.start,
        end=segment.end if segment.HasField("end") else None,
        nodeset=segment.nodeset or None,
    )


def _node_info(node: pb.NodeStatus) -> NodeInfo:
    return NodeInfo(
        id=node.storage_node_id,
        address=node.address,
        alive=node.alive,
        last_report_s=node.last_report_s,
        sync_mode=node.sync_mode,
        replicas=node.replicas,
        stored_bytes=node.stored_bytes,
        draining=node.draining,
        unknown_streams=tuple(node.unknown_streams),
        location=node.location,
    )
