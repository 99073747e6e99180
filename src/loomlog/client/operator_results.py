"""The results of operators' requests (operator.py), and how they are read from the wire."""

from __future__ import annotations

from dataclasses import dataclass

from loomlog.types import Glsn, Llsn, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.info import StreamInfo, stream_info


@dataclass(frozen=True, slots=True)
class ReplicaScrub:
    """The progress of checking one node's data."""

    node: NodeId
    finished: bool
    checked_bytes: int
    stored_bytes: int  # an estimate from when the check began
    corrupt_batches: int
    missing_copies: int  # copies missing on other nodes, found by comparison with this one
    repaired_batches: int  # including copies
    error: str  # what could not be checked or repaired; empty if nothing


@dataclass(frozen=True, slots=True)
class Change:
    """The result of an operator's request; `Cluster.status` shows the further progress."""

    done: str  # what was done, in one line
    next: str  # what happens in the background, in one line
    stream: StreamId | None = None  # the stream that was added
    scrubs: tuple[ReplicaScrub, ...] = ()
    replicas_left: int = 0  # on a volume that is being drained
    finished: bool | None = None  # whether a replica is filled; None: see `describe_stream`


@dataclass(frozen=True, slots=True)
class LogOutage:
    """The effect on a log if nodes were stopped."""

    log: str
    copies: int  # how many copies an entry should have
    copies_left: int  # how many copies every entry would have at least
    appends_stop: str  # why appends would stop; empty: they continue, perhaps after a moment
    reads_stop: str  # why some entries could not be read; empty: all could be


@dataclass(frozen=True, slots=True)
class NodesOutage:
    """The effect of stopping nodes, in addition to those that are away already."""

    nodes: tuple[NodeId, ...]
    away: tuple[NodeId, ...]  # already
    logs: int  # the number of all logs
    affected: tuple[LogOutage, ...]

    @property
    def stops(self) -> bool:
        """True if appends or reads of any log would stop."""
        return any(log.appends_stop or log.reads_stop for log in self.affected)


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """One node's replica of a stream. A value is None if it is not known, or if the protocol does
    not have it."""

    node: NodeId
    alive: bool
    role: str
    state: str
    epoch: int | None
    written: Llsn | None  # the last entry that it has stored
    committed: Llsn | None  # the last entry that has a position
    high_watermark: Glsn | None  # of the log, as far as this replica knows
    lag: int | None  # how many entries it lacks
    path: str | None  # where it is on the node's disks
    volume: str | None
    stored_bytes: int | None
    free_bytes: int | None  # of the volume
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """A stream and its replicas."""

    log: str
    stream: StreamInfo
    replicas: tuple[ReplicaDescription, ...]


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A replica that would be moved to another node."""

    log: str
    stream: StreamId
    part: int  # which part of the stream to move, if it has several, such as chains
    from_node: NodeId
    to_node: NodeId
    stored_bytes: int  # 0: not known


@dataclass(frozen=True, slots=True)
class PlannedRenewal:
    """A stream whose new entries would be stored on other nodes than now."""

    log: str
    stream: StreamId
    nodes_before: tuple[NodeId, ...]
    nodes_after: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """The load of a node before and after a plan; only replicas that can be moved count."""

    node: NodeId
    replicas_before: int
    replicas_after: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """Changes that would spread the load more evenly; empty if it is even enough."""

    moves: tuple[PlannedMove, ...]
    renewals: tuple[PlannedRenewal, ...]
    loads: tuple[PlannedLoad, ...]
    imbalance_before: float  # by how much the most loaded node exceeds the average
    imbalance_after: float


def change_of(changed: pb.Changed) -> Change:
    return Change(
        done=changed.done,
        next=changed.next,
        stream=changed.log_stream_id or None,
        scrubs=tuple(map(_replica_scrub, changed.scrubs)),
        replicas_left=changed.replicas_left,
        finished=changed.finished if changed.HasField("finished") else None,
    )


def rebalance_plan(plan: pb.RebalancePlan) -> RebalancePlan:
    return RebalancePlan(
        moves=tuple(map(_planned_move, plan.moves)),
        renewals=tuple(
            PlannedRenewal(r.log, r.log_stream_id, tuple(r.nodes_before), tuple(r.nodes_after))
            for r in plan.renewals
        ),
        loads=tuple(map(_planned_load, plan.loads)),
        imbalance_before=plan.imbalance_before,
        imbalance_after=plan.imbalance_after,
    )


def nodes_outage(outage: pb.NodesOutage) -> NodesOutage:
    return NodesOutage(
        nodes=tuple(outage.nodes),
        away=tuple(outage.away),
        logs=outage.logs,
        affected=tuple(map(_log_outage, outage.affected)),
    )


def stream_description(described: pb.StreamDescription) -> StreamDescription:
    return StreamDescription(
        log=described.log,
        stream=stream_info(described.stream),
        replicas=tuple(map(_replica_description, described.replicas)),
    )


def _planned_move(move: pb.PlannedMove) -> PlannedMove:
    return PlannedMove(
        move.log, move.log_stream_id, move.part, move.from_node, move.to_node, move.stored_bytes
    )


def _planned_load(load: pb.PlannedLoad) -> PlannedLoad:
    return PlannedLoad(
        load.storage_node_id,
        load.replicas_before,
        load.replicas_after,
        load.bytes_before,
        load.bytes_after,
    )


def _log_outage(log: pb.LogOutage) -> LogOutage:
    return LogOutage(log.name, log.copies, log.copies_left, log.appends_stop, log.reads_stop)


def _replica_description(replica: pb.ReplicaDescription) -> ReplicaDescription:
    stored = replica.stored if replica.HasField("stored") else None
    return ReplicaDescription(
        node=replica.storage_node_id,
        alive=replica.alive,
        role=replica.role,
        state=replica.state,
        epoch=replica.epoch if replica.HasField("epoch") else None,
        written=replica.written if replica.HasField("written") else None,
        committed=replica.committed if replica.HasField("committed") else None,
        high_watermark=replica.high_watermark if replica.HasField("high_watermark") else None,
        lag=replica.lag if replica.HasField("lag") else None,
        path=stored.path if stored else None,
        volume=stored.volume if stored else None,
        stored_bytes=stored.stored_bytes if stored and stored.HasField("stored_bytes") else None,
        free_bytes=stored.free_bytes if stored else None,
        total_bytes=stored.total_bytes if stored else None,
    )


def _replica_scrub(scrub: pb.ReplicaScrub) -> ReplicaScrub:
    progress = scrub.progress
    return ReplicaScrub(
        node=scrub.storage_node_id,
        finished=progress.finished,
        checked_bytes=progress.checked_bytes,
        stored_bytes=progress.stored_bytes,
        corrupt_batches=progress.corrupt_batches,
        missing_copies=progress.missing_copies,
        repaired_batches=progress.repaired_batches,
        error=progress.error,
    )
