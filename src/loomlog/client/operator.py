"""Requests of operators: seal, move and scrub streams; drain, replace and remove nodes.

The metadata repository answers once it has recorded the decision, and carries it out afterwards:
`Change` says what was done and what happens next, and `Cluster.status` shows the progress.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from loomlog import limits
from loomlog.client.arguments import (
    check_count,
    check_each,
    check_flag,
    check_name,
    check_seconds,
    check_text,
    is_int,
)
from loomlog.client.operator_results import (
    Change,
    NodesOutage,
    RebalancePlan,
    StreamDescription,
    change_of,
    nodes_outage,
    rebalance_plan,
    stream_description,
)
from loomlog.client.servers import Metadata
from loomlog.errors import InvalidArgument, shown
from loomlog.types import NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb


class Operator:
    """The methods of a Cluster for operators.

    They raise NotFound if a log, stream or node does not exist, and InvalidArgument if the change
    is not possible. Idempotent requests are retried automatically; the others raise an error that
    says so if their outcome is unknown."""

    _metadata: Metadata

    # ---- streams

    async def seal_stream(self, stream: StreamId) -> Change:
        """Stop appends to a stream until `unseal_stream`. Its entries stay readable."""
        return await self._change_stream(pb.ChangeStream.SEAL, stream)

    async def unseal_stream(self, stream: StreamId) -> Change:
        """Allow appends to a sealed stream again."""
        return await self._change_stream(pb.ChangeStream.UNSEAL, stream)

    async def add_stream(self, log: str, nodes: Sequence[NodeId] = ()) -> Change:
        """Add a stream to a log; its id is `Change.stream`. Place its replicas on `nodes`, the
        primary first; by default, on the best nodes.

        A `chained` log continues with another chain on these nodes, in a segment with a new stream.
        A `copyset` log stores new entries on these nodes, too; by default, on the best other one.
        """
        numbers = [_number("node", node) for node in check_each("nodes", nodes, int)]
        name = check_name("a log's name", log)
        request = pb.ChangeStream(action=pb.ChangeStream.ADD, log=name, nodes=numbers)
        return await self._change(pb.Frame(change_stream=request), repeatable=False)

    async def remove_stream(
        self, stream: StreamId, nodes: Sequence[NodeId] = (), part: int | None = None
    ) -> Change:
        """Stop appends to a stream permanently. Its entries stay readable; the stream is removed
        once all of them are trimmed, or at once if it has none.

        A `chained` log continues with one chain less, in a segment with a new stream: without
        `part`, by default the last chain. A `copyset` log stores no new entries on `nodes`, by
        default on the node that was chosen last; its stream stays."""
        return await self._change_stream(
            pb.ChangeStream.REMOVE,
            stream,
            nodes=nodes,
            part=None if part is None else _part(part) or 0,
            repeatable=False,
        )

    async def move_stream(
        self, stream: StreamId, from_node: NodeId, to_node: NodeId | None = None, part: int = 0
    ) -> Change:
        """Move a replica from `from_node` to `to_node`; by default, to the best node. If the stream
        has several parts, such as chains, `part` says which one to move."""
        return await self._change_stream(
            pb.ChangeStream.MOVE, stream, from_node, to_node, part=_part(part), repeatable=False
        )

    async def renew_stream(self, stream: StreamId) -> Change:
        """Store new entries of a stream on the nodes that are best now. Existing entries stay where
        they are. For protocols whose entries may be on any nodes, such as "copyset"."""
        return await self._change_stream(pb.ChangeStream.RENEW, stream)

    # ---- load

    async def plan_rebalance(self) -> RebalancePlan:
        """Return the changes that would spread the load more evenly over the nodes, to be made with
        `move_stream` and `renew_stream`. Change nothing."""
        request = pb.Frame(plan_rebalance=pb.PlanRebalance())
        answer = await self._metadata.request(request, repeatable=True)
        return rebalance_plan(answer.rebalance_plan)

    async def unregister_replica(self, stream: StreamId, node: NodeId) -> Change:
        """Remove the replica on `node` from a stream. Its data stays on the node's disk."""
        return await self._change_stream(
            pb.ChangeStream.UNREGISTER, stream, from_node=node, repeatable=False
        )

    async def add_replica(self, stream: StreamId, node: NodeId | None = None) -> Change:
        """Add a replica of a stream on `node`; by default, on the best node."""
        return await self._change_stream(
            pb.ChangeStream.ADD_REPLICA, stream, to_node=node, repeatable=False
        )

    async def set_primary(self, stream: StreamId, node: NodeId | None, part: int = 0) -> Change:
        """Let appends go to `node` first: as the primary of a stream, as the head of a chain
        (`part`), or as the sequencer of a `copyset` log. None takes the choice of a sequencer
        back."""
        return await self._change_stream(
            pb.ChangeStream.PRIMARY, stream, to_node=node, part=_part(part)
        )

    async def sync_replica(
        self, stream: StreamId, from_node: NodeId, to_node: NodeId, part: int = 0
    ) -> Change:
        """Copy what the replica on `to_node` lacks from the one on `from_node`, rather than from
        the one that would be chosen automatically. In a chain (`part`) that has too few replicas,
        `to_node` gets another one. `Change.finished` is the answer to "is it done?" for protocols
        whose replicas have no lag; then ask again."""
        return await self._change_stream(
            pb.ChangeStream.SYNC, stream, from_node, to_node, part=_part(part)
        )

    async def describe_stream(self, stream: StreamId) -> StreamDescription:
        """Return the state of a stream and of its replicas, including the state of their disks."""
        request = pb.DescribeStream(log_stream_id=_number("stream", stream))
        answer = await self._metadata.request(pb.Frame(describe_stream=request), repeatable=True)
        return stream_description(answer.stream_description)

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
        """Change the settings of a log while it is in use. They apply to new entries. Settings that
        are None do not change; `Cluster.create_log` explains them."""
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
        """Return the effect of stopping these nodes, and all nodes of `location`. Without
        arguments, return the effect of the nodes that are away now."""
        numbers = [_number("node", node) for node in nodes]
        request = pb.CheckNodes(nodes=numbers, location=check_text("location", location))
        answer = await self._metadata.request(pb.Frame(check_nodes=request), repeatable=True)
        return nodes_outage(answer.nodes_outage)

    async def drain_node(self, node: NodeId) -> Change:
        """Move all data off a node, and place nothing new on it until `undrain_node`."""
        return await self._change_node(pb.ChangeNode.DRAIN, node)

    async def drain_volume(self, node: NodeId, volume: str) -> Change:
        """Move the replicas on one volume of a node to other nodes, and place nothing new on it
        until `undrain_volume`. Repeat the call to see `Change.replicas_left`."""
        return await self._change_volume(pb.ChangeNode.DRAIN, node, volume)

    async def undrain_volume(self, node: NodeId, volume: str) -> Change:
        """Place new data again on a volume that was drained."""
        return await self._change_volume(pb.ChangeNode.UNDRAIN, node, volume)

    async def undrain_node(self, node: NodeId) -> Change:
        """Place new data again on a node that was drained."""
        return await self._change_node(pb.ChangeNode.UNDRAIN, node)

    async def remove_node(self, node: NodeId, force: bool = False) -> Change:
        """Remove an empty node from the cluster; with `force`, also a dead one that has data."""
        return await self._change_node(pb.ChangeNode.REMOVE, node, force, repeatable=False)

    async def replace_node(self, node: NodeId) -> Change:
        """Allow a new node with empty volumes to register under this number, once. The data of the
        old node then counts as lost."""
        return await self._change_node(pb.ChangeNode.REPLACE, node, repeatable=False)

    async def replace_volume(self, node: NodeId, volume: str) -> Change:
        """Give up a volume that a node was started without, so that another one may take its place.
        Its data then counts as lost."""
        return await self._change_volume(pb.ChangeNode.REPLACE, node, volume)

    async def restart_node(self, node: NodeId, within_s: float) -> Change:
        """Prepare for the restart of a node: it hands over its sequencers, and its replicas are not
        replaced for up to `within_s`. With 0, cancel this."""
        check_seconds("within_s", within_s, 0.0, math.inf)
        request = pb.ChangeNode(
            action=pb.ChangeNode.RESTART, storage_node_id=_number("node", node), for_s=within_s
        )
        return await self._change(pb.Frame(change_node=request), repeatable=True)

    async def mark_unrecoverable(self, node: NodeId) -> Change:
        """Declare that the data of a node that is away will not come back. What waits for it is
        then restored from other copies, or reported as lost."""
        return await self._change_node(pb.ChangeNode.MARK_UNRECOVERABLE, node, repeatable=False)

    async def cleanup_node(self, node: NodeId) -> Change:
        """Delete data on a node that belongs to no replica that the cluster knows."""
        return await self._change_node(pb.ChangeNode.CLEANUP, node)

    # ---- replicated metadata repositories

    async def add_metadata(self, member: int, address: str) -> Change:
        """Add the metadata repository with id `member`, which already runs at `address`."""
        return await self._change_metadata(pb.ChangeMetadata.ADD, member, address)

    async def remove_metadata(self, member: int) -> Change:
        """Remove the metadata repository with id `member`; stop its process afterwards."""
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
        part: int | None = None,
        nodes: Sequence[NodeId] = (),
        repeatable: bool = True,
    ) -> Change:
        check_flag("tell_only", tell_only)
        request = pb.ChangeStream(
            action=action,
            log_stream_id=_number("stream", stream),
            from_node=0 if from_node is None else _number("node", from_node),
            to_node=0 if to_node is None else _number("node", to_node),
            tell_only=tell_only,
            part=part,
            nodes=[_number("node", node) for node in check_each("nodes", nodes, int)],
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
        return change_of(answer.changed)


def _count(what: str, count: object) -> int:
    return 0 if count is None else check_count(what, count, limits.STREAMS_PER_LOG_MAX)


def _part(part: int) -> int | None:
    """Return the number of a part as it is sent: that of the first one is left out."""
    return None if is_int(part) and not part else _number("part of a stream", part)


def _number(what: str, number: object) -> int:
    if not is_int(number) or not 1 <= number < 1 << 32:
        raise InvalidArgument(f"a {what} is named by its number, 1 or more, not {shown(number)}")
    return number
