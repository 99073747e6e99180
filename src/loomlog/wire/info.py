"""Descriptions of a cluster, its nodes and logs: plain data that `dataclasses.asdict` makes
JSON-ready."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from loomlog import protocol_names
from loomlog.core.copyset.nodeset import node_of, shard_name
from loomlog.core.copyset.record import EPOCH_MAX, OFFSET_MAX, epoch_of, lsn_words, make
from loomlog.staging_logs import staged_log
from loomlog.types import Glsn, Llsn, LogId, NodeId, ReplicaState, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.conditions import ConditionInfo, condition_info

_STATES = {
    pb.SEALING: ReplicaState.SEALING,
    pb.STREAM_SEALED: ReplicaState.SEALED,
    pb.RUNNING: ReplicaState.RUNNING,
}


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A replica of a log stream."""

    node: NodeId
    address: str


@dataclass(frozen=True, slots=True)
class EpochsInfo:
    """The nodes that store the entries of a `copyset` segment from epoch `since` on."""

    since: int
    nodeset: tuple[NodeId, ...]
    replicas: int  # copies of each entry, on any of these nodes
    shards: tuple[str, ...]  # volumes of these nodes: 3 is the first one of node 3, 3/1 the next


@dataclass(frozen=True, slots=True)
class CopysetInfo:
    """A segment of protocol `copyset`."""

    sequencer: NodeId | None  # the node that started the newest epoch; None: none has
    last_clean: int  # all epochs up to here are recovered
    closed: bool
    history: tuple[EpochsInfo, ...]  # oldest first; each is valid until the next one


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A log stream; its first replica is the primary."""

    id: StreamId
    state: str
    epoch: int
    replicas: tuple[ReplicaInfo, ...]
    entries: int | None  # committed entries; None: not known, or the protocol does not count them
    condition: str = ""  # why it does not run, or what is in progress; empty: all is well
    joining: NodeId | None = None  # the node to which a new replica is being copied
    copied_entries: int = 0  # entries copied to `joining` so far
    segment: LogId = 0  # the id of its segment
    protocol: str = protocol_names.DEFAULT  # of its segment
    chains: tuple[tuple[NodeId, ...], ...] = ()  # protocol `chained`: nodes, head first
    copyset: CopysetInfo | None = None  # protocol `copyset`
    last: Glsn | None = None  # the last position, if LLSNs are positions and it is known
    removing: bool = False  # takes nothing more; removed when all its entries are trimmed

    def nodes_of(self, part: int = 0) -> tuple[NodeId, ...]:
        """Return the nodes with its replicas; of a stream that has several parts, of one."""
        if self.chains:
            return self.chains[part] if part < len(self.chains) else ()
        return tuple(replica.node for replica in self.replicas)

    def primary_of(self, part: int = 0) -> NodeId | None:
        """Return the node that orders its appends, or takes them first; None: none does."""
        if self.copyset is not None:
            return self.sequencer
        return next(iter(self.nodes_of(part)), None)

    @property
    def placement(self) -> str:
        """The nodes of the stream and their roles, for people."""
        if self.chains:
            chains = ", ".join("-".join(map(str, chain)) for chain in self.chains)
            return f"{chains} (head to tail)"
        numbers = [str(replica.node) for replica in self.replicas]
        nodes = ", ".join(numbers)
        if self.copyset is not None:
            return f"{self.copyset.history[-1].replicas} copies on any of {nodes}"
        if len(numbers) < 2:
            return nodes
        return ", ".join([f"{numbers[0]} (primary)", *numbers[1:]])

    @property
    def is_sealable(self) -> bool:
        """Return whether operators may seal it: it has a primary, which stops taking appends."""
        return not self.chains and self.copyset is None

    @property
    def sequencer(self) -> NodeId | None:
        """The storage node that sequences it, if any does."""
        return None if self.copyset is None or self.copyset.closed else self.copyset.sequencer

    @property
    def last_llsn(self) -> Llsn:
        """The LLSN of its last known entry; 0 if there is none."""
        return (self.entries if self.last is None else self.last) or 0


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A range of a log's positions with its own protocol and settings."""

    id: LogId
    protocol: str
    streams: int  # as requested
    replicas: int
    start: Glsn
    end: Glsn | None  # the last position, start - 1 if it is empty; None: it is active
    nodeset: int | None = None  # protocol `copyset`: its size, if requested
    min_replicas: int = 1  # appends continue with this many while nodes are away
    compression: str = "none"  # of batches, by clients that do not choose themselves


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The progress of a consumer group: the last committed position of each shard."""

    name: str
    members: int
    positions: tuple[Glsn, ...]
    behind: tuple[int, ...] | None  # positions of each shard up to the tail; None: not known


@dataclass(frozen=True, slots=True)
class QueueLag:
    """The progress of a work queue."""

    name: str
    members: int
    position: Glsn  # every entry up to here was taken at least once
    behind: int | None  # positions up to the tail that nobody has taken; None: not known
    taken: int  # jobs that a member has
    free: int  # jobs that were taken before and wait to be taken again


@dataclass(frozen=True, slots=True)
class LogInfo:
    """A log with its bounds, segments and streams."""

    id: LogId
    name: str
    protocol: str
    replicas: int  # wanted per stream
    head: Glsn  # first position that is not trimmed
    tail: Glsn | None  # last committed position, 0 if none; None: it cannot be found now
    streams: tuple[StreamInfo, ...]
    staging_for: str | None = None  # the log whose staged rows it holds; None: an ordinary log
    segments: tuple[SegmentInfo, ...] = ()  # in order; the last one is active
    switching: str = ""  # target and progress of a switch; empty: none is in progress
    retention_s: int | None = None  # entries older than this may be deleted; None: kept forever
    retention_bytes: int | None = None  # of the newest entries, which stay; None: all stay
    reached: Glsn = 0  # the last known position; below the tail if `tail` is None
    groups: tuple[GroupLag, ...] = ()  # only in the status of a cluster
    queues: tuple[QueueLag, ...] = ()  # the same

    def epoch_and_offset(self, position: Glsn) -> str:
        """Return what a position is made of, such as e3n17; empty: it is just a number."""
        has_epochs = any(stream.copyset is not None for stream in self.streams)
        return lsn_words(position) if has_epochs and epoch_of(position) else ""

    @property
    def active_streams(self) -> tuple[StreamInfo, ...]:
        """The streams of the active segment, which take appends."""
        active = self.segments[-1].id
        return tuple(s for s in self.streams if s.segment == active and not s.removing)


@dataclass(frozen=True, slots=True)
class VolumeInfo:
    """The space on a volume of a storage node, in bytes, as it last reported it."""

    path: str
    used: int  # by this node
    limit: int | None  # of that; None: there is none
    free: int  # of its file system
    total: int
    full: bool = False  # no append begins there
    failed: bool = False
    shard: int = 0  # its index, which never changes


@dataclass(frozen=True, slots=True)
class ScrubInfo:
    """The findings of a node that reads all that it stores, since it was started."""

    passes: int  # that were finished
    last_pass_s: float | None  # ago; None: none was finished yet
    bytes: int  # read
    damaged: int
    repaired: int
    unrepaired: int  # in the last pass and the one under way


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A storage node as the metadata repository sees it."""

    id: NodeId
    address: str
    alive: bool
    last_report_s: float | None  # seconds since its last report; None: none to this leader yet
    sync_mode: str
    replicas: int
    stored_bytes: int | None  # None: it has not reported that to this leader yet
    draining: bool = False  # its data is being moved away, and it gets nothing new
    unknown_streams: tuple[StreamId, ...] = ()  # streams it has data of but is no replica of
    location: str = ""  # its failure domain; empty: one of its own
    conditions: tuple[str, ...] = ()  # those of the cluster that are about it, a sentence each
    held_back: str | None = None  # why it may not take part, though it is there; None: it may
    process: str = ""  # that registered last: another one after every start
    restarting: bool = False  # an operator restarts it: its replicas are not replaced yet
    volumes: tuple[VolumeInfo, ...] = ()
    scrub: ScrubInfo | None = None  # None: it does not scrub, or is not there


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A metadata repository as the leader sees it."""

    id: int
    address: str
    reachable: bool
    lag: int  # records of the round log that it has not stored yet
    leaving: bool = False  # being removed; counts for quorums until that is done
    leads: bool = False
    connected_s: float = 0.0  # for how long to the leader; of the leader itself: its term


@dataclass(frozen=True, slots=True)
class RebuildInfo:
    """Copies of a node that are made again: elsewhere, or in place."""

    shard: str  # the number of its node, and of the volume if it is not the first
    node: NodeId
    status: str  # restoring, lost, refilling, relocating
    records: int  # restored so far
    bytes: int
    part_done: float  # from 0 to 1
    left_s: float | None = None  # about; None: not known
    waiting: str = ""  # what it waits for; empty: nothing


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The whole cluster at one moment."""

    cluster_id: str
    metadata_address: str
    uptime_s: float
    rounds: int  # commit rounds since the metadata repository started
    nodes: tuple[NodeInfo, ...]
    logs: tuple[LogInfo, ...]
    leader: int = 0  # the id of the leading metadata repository
    leader_epoch: int = 0
    members: tuple[MemberInfo, ...] = ()  # all metadata repositories
    # The most urgent first. None: every acknowledged entry has all its copies.
    conditions: tuple[ConditionInfo, ...] = ()
    rebuilds: tuple[RebuildInfo, ...] = ()
    denials: int = 0  # requests that the leading metadata repository denied


_EPOCH_AND_OFFSET = re.compile(r"e(\d{1,10})n(\d{1,10})", re.ASCII)
_NUMBER = re.compile(r"\d{1,19}|\d{1,3}(,\d{3}){1,6}", re.ASCII)


def parse_position(text: str) -> Glsn | None:
    """Return a position as people write it: 4200, 4,200 or, if it has an epoch, e3n17."""
    if found := _EPOCH_AND_OFFSET.fullmatch(text.strip()):
        epoch, offset = int(found[1]), int(found[2])
        return make(epoch, offset) if epoch <= EPOCH_MAX and offset <= OFFSET_MAX else None
    return int(text.replace(",", "")) if _NUMBER.fullmatch(text.strip()) else None


def log_info(log: pb.Log) -> LogInfo:
    return LogInfo(
        id=log.log_id,
        name=log.name,
        protocol=log.protocol,
        replicas=log.replicas,
        head=log.head,
        tail=None if log.tail_unknown else log.tail,
        reached=log.tail,
        streams=tuple(map(stream_info, log.streams)),
        staging_for=staged_log(log.name),
        segments=tuple(map(_segment_info, log.segments)),
        switching=log.switching,
        retention_s=log.retention_s or None,
        retention_bytes=log.retention_bytes or None,
        groups=tuple(_group_lag(group, log) for group in log.groups),
        queues=tuple(_queue_lag(queue, log) for queue in log.queues),
    )


def _group_lag(group: pb.GroupStatus, log: pb.Log) -> GroupLag:
    behind = tuple(max(0, log.tail - position) for position in group.positions)
    return GroupLag(
        name=group.name,
        members=group.members,
        positions=tuple(group.positions),
        behind=None if log.tail_unknown else behind,
    )


def _queue_lag(queue: pb.QueueStatus, log: pb.Log) -> QueueLag:
    return QueueLag(
        name=queue.name,
        members=queue.members,
        position=queue.position,
        behind=None if log.tail_unknown else max(0, log.tail - queue.position),
        taken=queue.taken,
        free=queue.free,
    )


def cluster_status(status: pb.Status) -> ClusterStatus:
    conditions = tuple(map(condition_info, status.conditions))
    return ClusterStatus(
        cluster_id=status.cluster_id,
        metadata_address=status.metadata_address,
        uptime_s=status.uptime_s,
        rounds=status.rounds,
        nodes=tuple(_node_info(node, conditions) for node in status.nodes),
        logs=tuple(map(log_info, status.logs)),
        leader=status.leader,
        leader_epoch=status.leader_epoch,
        members=tuple(_member_info(member, status.leader) for member in status.members),
        conditions=conditions,
        rebuilds=tuple(map(_rebuild_info, status.rebuilds)),
        denials=status.denials,
    )


def _rebuild_info(rebuild: pb.RebuildStatus) -> RebuildInfo:
    return RebuildInfo(
        shard=rebuild.shard,
        node=rebuild.storage_node_id,
        status=rebuild.status,
        records=rebuild.records,
        bytes=rebuild.size_bytes,
        part_done=rebuild.part_done,
        left_s=rebuild.left_s if rebuild.HasField("left_s") else None,
        waiting=rebuild.waiting,
    )


def _member_info(member: pb.MetadataMember, leader: int) -> MemberInfo:
    return MemberInfo(
        id=member.member_id,
        address=member.address,
        reachable=member.reachable,
        lag=member.lag,
        leaving=member.leaving,
        leads=member.member_id == leader,
        connected_s=member.connected_s,
    )


def stream_info(stream: pb.LogStream) -> StreamInfo:
    return StreamInfo(
        id=stream.log_stream_id,
        state=str(_STATES.get(stream.state, "unknown")),
        epoch=stream.seal_epoch,
        replicas=tuple(ReplicaInfo(r.storage_node_id, r.address) for r in stream.replicas),
        entries=stream.entries if stream.HasField("entries") else None,
        last=stream.last if stream.HasField("last") else None,
        condition=stream.condition,
        joining=stream.joining_node or None,
        copied_entries=stream.copied_entries,
        removing=stream.removing,
        segment=stream.loglet_id,
        protocol=stream.protocol,
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
            EpochsInfo(
                epochs.since,
                tuple(dict.fromkeys(map(node_of, epochs.nodeset))),
                epochs.replication,
                tuple(map(shard_name, epochs.nodeset)),
            )
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
        min_replicas=segment.min_replicas or 1,
        compression=segment.compression or "none",
    )


def _node_info(node: pb.NodeStatus, conditions: Sequence[ConditionInfo]) -> NodeInfo:
    return NodeInfo(
        id=node.storage_node_id,
        address=node.address,
        alive=node.alive,
        last_report_s=node.last_report_s if node.HasField("last_report_s") else None,
        sync_mode=node.sync_mode,
        replicas=node.replicas,
        stored_bytes=node.stored_bytes if node.HasField("stored_bytes") else None,
        draining=node.draining,
        unknown_streams=tuple(node.unknown_streams),
        location=node.location,
        conditions=tuple(c.sentence for c in conditions if c.node == node.storage_node_id),
        held_back=node.held_back or None,
        process=node.process,
        restarting=node.restarting,
        volumes=tuple(map(_volume_info, node.volumes)),
        scrub=_scrub_info(node.scrub) if node.HasField("scrub") else None,
    )


def _scrub_info(scrub: pb.ScrubStatus) -> ScrubInfo:
    return ScrubInfo(
        passes=scrub.passes,
        last_pass_s=scrub.last_pass_s if scrub.HasField("last_pass_s") else None,
        bytes=scrub.bytes,
        damaged=scrub.damaged,
        repaired=scrub.repaired,
        unrepaired=scrub.unrepaired,
    )


def _volume_info(volume: pb.VolumeSpace) -> VolumeInfo:
    return VolumeInfo(
        path=volume.path,
        used=volume.used,
        limit=volume.limit or None,
        free=volume.free,
        total=volume.total,
        full=volume.full,
        failed=volume.failed,
        shard=volume.shard,
    )
