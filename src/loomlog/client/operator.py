"""Requests for operators: seal, move and scrub streams; drain, replace and remove nodes.

The metadata repository answers once it has recorded the decision and carries it out afterwards:
`Change` says what was done and what happens next, and `Cluster.status()` shows the progress.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loomlog import limits
from loomlog.client.arguments import (
    check_each,
    check_flag,
    check_name,
    check_seconds,
    check_text,
    is_int,
)
from loomlog.client.servers import Metadata
from loomlog.errors import InvalidArgument
from loomlog.types import Glsn, Llsn, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.info import StreamInfo, stream_info


@dataclass(frozen=True, slots=True)
class ReplicaScrub:
    """The progress of checking what one node stores."""

    node: NodeId
    finished: bool
    checked_bytes: int
    stored_bytes: int  # about, when it began
    corrupt_batches: int
    missing_copies: int  # that other nodes should have: found by comparison with this one
    repaired_batches: int  # and copies
    error: str  # what could not be checked or repaired; empty if there is nothing


@dataclass(frozen=True, slots=True)
class Change:
    """The result of an operator's request; `Cluster.status` shows how it proceeds."""

    done: str  # in one line
    next: str  # what happens in the background, in one line
    stream: StreamId | None = None  # the stream that was added
    scrubs: tuple[ReplicaScrub, ...] = ()
    replicas_left: int = 0  # on a volume that is drained


@dataclass(frozen=True, slots=True)
class LogOutage:
    """The loss of a log if nodes were stopped."""

    log: str
    copies: int  # that an entry should have
    copies_left: int  # that each entry would have at least
    appends_stop: str  # why; empty: they continue, perhaps after a moment
    reads_stop: str  # why some entries could not be read; empty: all could


@dataclass(frozen=True, slots=True)
class NodesOutage:
    """The cost of stopping nodes, in addition to those that are away already."""

    nodes: tuple[NodeId, ...]
    away: tuple[NodeId, ...]  # already
    logs: int  # that there are
    affected: tuple[LogOutage, ...]

    @property
    def stops(self) -> bool:
        """Whether appends or reads of any log would stop."""
        return any(log.appends_stop or log.reads_stop for log in self.affected)


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """One node's part in a stream. None: nobody knows it, or the protocol does not count it."""

    node: NodeId
    alive: bool
    role: str
    state: str
    epoch: int | None
    written: Llsn | None  # its last entry
    committed: Llsn | None  # its last entry that has a position
    high_watermark: Glsn | None  # of the log, as it knows it
    lag: int | None  # entries that it lacks
    path: str | None  # where on the node's disks it is
    volume: str | None
    stored_bytes: int | None
    free_bytes: int | None  # of the volume
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """A stream with all that is known of its replicas."""

    log: str
    stream: StreamInfo
    replicas: tuple[ReplicaDescription, ...]


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A replica that would go to another node."""

    log: str
    stream: StreamId
    part: int  # of a stream that has several, such as chains
    from_node: NodeId
    to_node: NodeId
    stored_bytes: int  # 0: not known


@dataclass(frozen=True, slots=True)
class PlannedRenewal:
    """A stream whose new entries would be stored on other nodes."""

    log: str
    stream: StreamId
    nodes_before: tuple[NodeId, ...]
    nodes_after: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """The load of a node before and after a plan, in replicas that can be moved."""

    node: NodeId
    replicas_before: int
    replicas_after: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """Changes that would spread the load more evenly; none: it is even enough."""

    moves: tuple[PlannedMove, ...]
    renewals: tuple[PlannedRenewal, ...]
    loads: tuple[PlannedLoad, ...]
    imbalance_before: float  # how much more than the average the node with the most load has
    imbalance_after: float


class Operator:
    """The part of a Cluster that operators use. Idempotent requests are retried automatically; the
    others raise an error that says so when their outcome is unknown."""

    _metadata: Metadata

    # ---- streams

    async def seal_stream(self, stream: StreamId) -> Change:
        """Stop appends to a stream until it is unsealed; it stays readable."""
        return await self._change_stream(pb.ChangeStream.SEAL, stream)

    async def unseal_stream(self, stream: StreamId) -> Change:
        """Allow appends to a sealed stream again."""
        return await self._change_stream(pb.ChangeStream.UNSEAL, stream)

    async def add_stream(self, log: str, nodes: Sequence[NodeId] = ()) -> Change:
        """Add a stream to a log; `Change.stream` is its id. `nodes`: where its replicas are, the
        primary first; empty: the best ones."""
        numbers = [_number("node", node) for node in check_each("nodes", nodes, int)]
        name = check_name("a log's name", log)
        request = pb.ChangeStream(action=pb.ChangeStream.ADD, log=name, nodes=numbers)
        return await self._change(pb.Frame(change_stream=request), repeatable=False)

    async def remove_stream(self, stream: StreamId) -> Change:
        """Let a stream take no more appends, for good. Its entries stay readable, and it is removed
        when all of them are trimmed; at once if it has none."""
        return await self._change_stream(pb.ChangeStream.REMOVE, stream, repeatable=False)

    async def move_stream(
        self, stream: StreamId, from_node: NodeId, to_node: NodeId | None = None, part: int = 0
    ) -> Change:
        """Move a replica from `from_node` to `to_node`, or to the best node if that is None. Of a
        stream that has several parts, such as chains, one is moved."""
        return await self._change_stream(
            pb.ChangeStream.MOVE, stream, from_node, to_node, part=part, repeatable=False
        )

    async def renew_stream(self, stream: StreamId) -> Change:
        """Store new entries of a stream on the nodes that are best now; those that it has stay
        where they are. For protocols whose entries may be on any nodes."""
        return await self._change_stream(pb.ChangeStream.RENEW, stream)

    # ---- load

    async def plan_rebalance(self) -> RebalancePlan:
        """Return what would spread the load more evenly over the nodes: moves for `move_stream`
        and renewals for `renew_stream`. Nothing is changed."""
        question = pb.Frame(plan_rebalance=pb.PlanRebalance())
        plan = (await self._metadata.request(question, repeatable=True)).rebalance_plan
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

    async def unregister_replica(self, stream: StreamId, node: NodeId) -> Change:
        """Remove the replica on `node` from the stream; its data stays on the node's disk."""
        return await self._change_stream(
            pb.ChangeStream.UNREGISTER, stream, from_node=node, repeatable=False
        )

    async def add_replica(self, stream: StreamId, node: NodeId | None = None) -> Change:
        """Add a replica on `node`, or on the best node if that is None."""
        return await self._change_stream(
            pb.ChangeStream.ADD_REPLICA, stream, to_node=node, repeatable=False
        )

    async def set_primary(self, stream: StreamId, node: NodeId) -> Change:
        """Make the replica on `node` the primary; the stream is sealed for a moment."""
        return await self._change_stream(pb.ChangeStream.PRIMARY, stream, to_node=node)

    async def sync_replica(self, stream: StreamId, from_node: NodeId, to_node: NodeId) -> Change:
        """Copy what the replica on `to_node` lacks from the one on `from_node`, instead of from
        the one that would be chosen."""
        return await self._change_stream(pb.ChangeStream.SYNC, stream, from_node, to_node)

    async def describe_stream(self, stream: StreamId) -> StreamDescription:
        """Return the state of a stream and of each of its replicas, with their disks."""
        request = pb.DescribeStream(log_stream_id=_number("stream", stream))
        answer = await self._metadata.request(pb.Frame(describe_stream=request), repeatable=True)
        described = answer.stream_description
        return StreamDescription(
            log=described.log,
            stream=stream_info(described.stream),
            replicas=tuple(map(_replica_description, described.replicas)),
        )

    async def scrub_stream(self, stream: StreamId, *, tell_only: bool = False) -> Change:
        """Check all stored data of a stream and repair it from other replicas. With `tell_only`,
        only report the progress."""
        return await self._change_stream(pb.ChangeStream.SCRUB, stream, tell_only=tell_only)

    # ---- logs

    async def scrub_log(self, log: str, *, tell_only: bool = False) -> Change:
        """Check all stored data of a log, of any protocol, and repair it from other nodes. With
        `tell_only`, only report the progress."""
        check_name("a log's name", log)
        check_flag("tell_only", tell_only)
        request = pb.ChangeStream(action=pb.ChangeStream.SCRUB, log=log, tell_only=tell_only)
        return await self._change(pb.Frame(change_stream=request), repeatable=True)

    async def switch_log(
        self,
        log: str,
        *,
        protocol: str | None = None,
        streams: int | None = None,
        replicas: int | None = None,
        min_replicas: int | None = None,
        nodeset: int | None = None,
        compression: str | None = None,
    ) -> Change:
        """Switch a log to other settings while it is in use. They apply to new entries; settings
        that are None do not change."""
        request = pb.SwitchLog(
            name=check_name("a log's name", log),
            protocol="" if protocol is None else check_text("protocol", protocol),
            streams=_count("streams", streams),
            replicas=_count("replicas", replicas),
            nodeset=_count("nodeset", nodeset),
            min_replicas=_count("min_replicas", min_replicas),
            compression="" if compression is None else check_text("compression", compression),
        )
        return await self._change(pb.Frame(switch_log=request), repeatable=True)

    # ---- nodes

    async def check_nodes(self, *nodes: NodeId, location: str = "") -> NodesOutage:
        """Return what it would cost to stop these nodes, and all nodes of a location. Without any:
        what those cost that are away now."""
        numbers = [_number("node", node) for node in nodes]
        request = pb.CheckNodes(nodes=numbers, location=check_text("location", location))
        answer = await self._metadata.request(pb.Frame(check_nodes=request), repeatable=True)
        outage = answer.nodes_outage
        return NodesOutage(
            nodes=tuple(outage.nodes),
            away=tuple(outage.away),
            logs=outage.logs,
            affected=tuple(map(_log_outage, outage.affected)),
        )

    async def drain_node(self, node: NodeId) -> Change:
        """Move all data away from a node and place nothing new on it."""
        return await self._change_node(pb.ChangeNode.DRAIN, node)

    async def drain_volume(self, node: NodeId, volume: str) -> Change:
        """Move the replicas on one volume of a node to other nodes and place nothing new on it.
        Repeat it to see how many are left (`Change.replicas_left`)."""
        return await self._change_volume(pb.ChangeNode.DRAIN, node, volume)

    async def undrain_volume(self, node: NodeId, volume: str) -> Change:
        """Use a volume that is drained again."""
        return await self._change_volume(pb.ChangeNode.UNDRAIN, node, volume)

    async def undrain_node(self, node: NodeId) -> Change:
        """Use a draining node again."""
        return await self._change_node(pb.ChangeNode.UNDRAIN, node)

    async def remove_node(self, node: NodeId, force: bool = False) -> Change:
        """Remove an empty node; with `force`, also a dead one that is not empty."""
        return await self._change_node(pb.ChangeNode.REMOVE, node, force, repeatable=False)

    async def replace_node(self, node: NodeId) -> Change:
        """Allow a new node to register under this number with empty volumes, once. The old node's
        data then counts as lost."""
        return await self._change_node(pb.ChangeNode.REPLACE, node, repeatable=False)

    async def replace_volume(self, node: NodeId, volume: str) -> Change:
        """Give up a volume that a node was started without: another one may take its place. Its
        data then counts as lost."""
        return await self._change_volume(pb.ChangeNode.REPLACE, node, volume)

    async def restart_node(self, node: NodeId, within_s: float) -> Change:
        """Let a node hand over what it sequences, and do not replace its replicas while it is
        restarted, within this many seconds at most. 0: it is not restarted after all."""
        check_seconds("within_s", within_s, 0.0, math.inf)
        request = pb.ChangeNode(
            action=pb.ChangeNode.RESTART, storage_node_id=_number("node", node), for_s=within_s
        )
        return await self._change(pb.Frame(change_node=request), repeatable=True)

    async def mark_unrecoverable(self, node: NodeId) -> Change:
        """Declare that what a node that is away had will not come back: what it waits for is made
        from other copies, or reported as lost."""
        return await self._change_node(pb.ChangeNode.MARK_UNRECOVERABLE, node, repeatable=False)

    async def cleanup_node(self, node: NodeId) -> Change:
        """Delete a node's data of replicas that the cluster does not know."""
        return await self._change_node(pb.ChangeNode.CLEANUP, node)

    # ---- replicated metadata repositories

    async def add_metadata(self, member: int, address: str) -> Change:
        """Add a metadata repository that already runs at `address`."""
        return await self._change_metadata(pb.ChangeMetadata.ADD, member, address)

    async def remove_metadata(self, member: int) -> Change:
        """Remove a metadata repository; stop its process afterwards."""
        return await self._change_metadata(pb.ChangeMetadata.REMOVE, member)

    # ---- requests

    async def _change_metadata(
        self, action: pb.ChangeMetadata.Action, member: int, address: str = ""
    ) -> Change:
        number = _number("metadata repository", member)
        check_text("address", address)
        request = pb.ChangeMetadata(action=action, member_id=number, address=address)
        return await self._change(pb.Frame(change_metadata=request), repeatable=False)

    async def _change_stream(
        self,
        action: pb.ChangeStream.Action,
        stream: StreamId,
        from_node: NodeId | None = None,
        to_node: NodeId | None = None,
        *,
        tell_only: bool = False,
        part: int = 0,
        repeatable: bool = True,
    ) -> Change:
        check_flag("tell_only", tell_only)
        if not is_int(part) or part:
            _number("part of a stream", part)
        request = pb.ChangeStream(
            action=action,
            log_stream_id=_number("stream", stream),
            from_node=0 if from_node is None else _number("node", from_node),
            to_node=0 if to_node is None else _number("node", to_node),
            tell_only=tell_only,
            part=part,
        )
        return await self._change(pb.Frame(change_stream=request), repeatable)

    async def _change_node(
        self,
        action: pb.ChangeNode.Action,
        node: NodeId,
        force: bool = False,
        *,
        repeatable: bool = True,
    ) -> Change:
        check_flag("force", force)
        request = pb.ChangeNode(action=action, storage_node_id=_number("node", node), force=force)
        return await self._change(pb.Frame(change_node=request), repeatable)

    async def _change_volume(
        self, action: pb.ChangeNode.Action, node: NodeId, volume: str
    ) -> Change:
        path = check_text("volume", volume).rstrip("/") or "/"
        request = pb.ChangeNode(action=action, storage_node_id=_number("node", node), volume=path)
        return await self._change(pb.Frame(change_node=request), repeatable=True)

    async def _change(self, frame: pb.Frame, repeatable: bool) -> Change:
        answer = await self._metadata.request(frame, repeatable=repeatable)
        return _change_of(answer.changed)


def _change_of(changed: pb.Changed) -> Change:
    return Change(
        done=changed.done,
        next=changed.next,
        stream=changed.log_stream_id or None,
        scrubs=tuple(map(_replica_scrub, changed.scrubs)),
        replicas_left=changed.replicas_left,
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


def _count(what: str, count: object) -> int:
    """Return a checked count; 0 for None."""
    if count is None:
        return 0
    if not is_int(count) or not 1 <= count <= limits.STREAMS_PER_LOG_MAX:
        raise InvalidArgument(
            f"{what} must be a number from 1 to {limits.STREAMS_PER_LOG_MAX}, not {count!r:.100}"
        )
    return count


def _number(what: str, number: object) -> int:
    if not is_int(number) or not 1 <= number < 1 << 32:
        raise InvalidArgument(f"a {what} is named by its number, 1 or more, not {number!r:.100}")
    return number
