"""What operators do with nodes: wishes, written down, that the loops of all protocols make true."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from loomlog.core.ordered.rounds import StreamRounds
from loomlog.errors import InvalidArgument, Unavailable
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.committer import Committer
from loomlog.metadata.keepers import LoneKeeper
from loomlog.metadata.members import Members
from loomlog.metadata.node_choice import NodeChoice
from loomlog.metadata.operator import logged
from loomlog.metadata.orders import Orders
from loomlog.metadata.reconcile import Reconciler
from loomlog.metadata.records import StreamRecord
from loomlog.metadata.steps import Steps
from loomlog.types import NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb


class NodeOperator:
    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        members: Members,
        orders: Orders,
        nodes: NodeChoice,
        steps: Steps,
        reconciler: Reconciler,
        keepers: Mapping[str, LoneKeeper],
        whole: Callable[[StreamRounds], list[NodeId]],
    ) -> None:
        self._catalog = catalog
        self._committer = committer
        self._members = members
        self._orders = orders
        self._nodes = nodes
        self._steps = steps
        self._reconciler = reconciler
        self._keepers = keepers
        self._whole = whole
        change = pb.ChangeNode
        self._changes: dict[int, Callable[[pb.ChangeNode], Awaitable[pb.Changed]]] = {
            change.DRAIN: self._drain,
            change.UNDRAIN: self._undrain,
            change.REMOVE: self._remove,
            change.CLEANUP: self._cleanup,
        }

    async def change(self, request: pb.ChangeNode) -> pb.Changed:
        change = self._changes.get(request.action)
        if change is None:
            raise InvalidArgument(f"there is no change {request.action} of a node")
        self._catalog.node(request.storage_node_id)
        return logged(await change(request))

    # ---- drain and undrain

    async def _drain(self, request: pb.ChangeNode) -> pb.Changed:
        node = request.storage_node_id
        await self._catalog.update_node(node, draining=True)
        streams = self._node_wishes_changed(node)
        moving, kept = len(streams) + len(self._moving(node)), self._kept_on(node)
        if kept and not moving:
            then = f"it gets nothing new; {_stays(node, kept)}"
        elif not moving:
            then = f"it is empty: `loom node remove {node}` forgets it"
        elif stuck := [s for s in streams if not self._can_move(s)]:
            then = (
                f"{moving} replicas move away, but {len(stuck)} of them find no other node "
                f"yet ({_streams(s.stream_id for s in stuck)}): start another one"
            )
        elif not all(keeper.can_leave(node) for keeper in self._keepers.values()):
            then = f"{moving} replicas move away, but some find no other node yet: start another"
        else:
            stays = f"; {_stays(node, kept)}" if kept else ""
            then = f"{moving} replicas move to other nodes, a few at a time{stays}"
        return pb.Changed(done=f"node {node} is being drained: it takes nothing new", next=then)

    def _can_move(self, record: StreamRecord) -> bool:
        stream = self._committer.stream(record.stream_id)
        if stream is None or stream.joining is not None:
            return True
        return self._nodes.spare(stream) is not None

    async def _undrain(self, request: pb.ChangeNode) -> pb.Changed:
        node = request.storage_node_id
        if self._catalog.node(node).removing:
            raise InvalidArgument(f"node {node} is being removed")
        await self._catalog.update_node(node, draining=False)
        streams = self._node_wishes_changed(node)
        self._reconciler.wake_waiting()
        return pb.Changed(
            done=f"node {node} is not drained any more",
            next=f"it keeps its {len(streams) + len(self._lone_replicas(node))} replicas and "
            "takes new ones",
        )

    # ---- remove

    async def _remove(self, request: pb.ChangeNode) -> pb.Changed:
        node = request.storage_node_id
        streams, lone = self._catalog.streams_on(node), self._lone_replicas(node)
        if not streams and not lone:
            await self._catalog.update_node(node, draining=True, removing=True)
            await self._steps.forget_if_removed(node)
            return pb.Changed(
                done=f"node {node} is removed",
                next="if it runs, it stops; with empty volumes it may come again",
            )
        self._check_removable(node, streams, lone, force=request.force)
        await self._catalog.update_node(node, draining=True, removing=True)
        self._node_wishes_changed(node)
        return pb.Changed(
            done=f"node {node} is not used any more",
            next=f"its {len(streams) + len(lone)} replicas are made anew elsewhere; then it is "
            "forgotten",
        )

    def _check_removable(
        self,
        node: NodeId,
        streams: list[StreamRecord],
        lone: list[tuple[NodeId, ...]],
        *,
        force: bool,
    ) -> None:
        if kept := self._kept_on(node):
            raise InvalidArgument(f"node {node} cannot be removed: {_stays(node, kept)}")
        holds = f"node {node} has {len(streams) + len(lone)} replicas"
        if self._members.alive(node):
            raise InvalidArgument(
                f"{holds} and is alive: `loom node drain {node}`, wait until it is empty, "
                "then remove it"
            )
        if not force:
            raise InvalidArgument(
                f"{holds}: start it and drain it; or, if it never comes back, remove it with "
                "--force, and its replicas are made anew from the others"
            )
        only = [s.stream_id for s in streams if s.replicas == (node,)]
        if only:
            raise InvalidArgument(
                f"node {node} has the only replica of {_streams(only)}: start it again, or delete "
                "the logs that it belongs to"
            )
        if (node,) in lone:
            raise InvalidArgument(
                f"node {node} has the only replica of a chain: start it again, or delete the logs "
                "that it belongs to; see `loom log list`"
            )

    def _lone_replicas(self, node: NodeId) -> list[tuple[NodeId, ...]]:
        """Of protocols without commit rounds: for each replica, those that belong together."""
        return [nodes for keeper in self._keepers.values() for nodes in keeper.replicas_on(node)]

    def _moving(self, node: NodeId) -> list[tuple[NodeId, ...]]:
        """Those of `_lone_replicas` that go elsewhere when the node is drained."""
        return [
            nodes
            for keeper in self._keepers.values()
            if not keeper.kept_on(node)
            for nodes in keeper.replicas_on(node)
        ]

    def _kept_on(self, node: NodeId) -> list[str]:
        return [name for keeper in self._keepers.values() for name in keeper.kept_on(node)]

    def _node_wishes_changed(self, node: NodeId) -> list[StreamRecord]:
        streams = self._catalog.streams_on(node)
        for stream in streams:
            self._reconciler.wishes_changed(stream.stream_id)
        for keeper in self._keepers.values():
            keeper.node_changed(node, alive=True)
        return streams

    # ---- what nobody needs

    async def _cleanup(self, request: pb.ChangeNode) -> pb.Changed:
        node = request.storage_node_id
        if not self._members.reachable(node):
            raise Unavailable(f"node {node} is not alive: start it first")
        unknown = self.unknown_streams(node)
        kept = [stream_id for stream_id in unknown if self._may_be_needed(stream_id)]
        going = [stream_id for stream_id in unknown if stream_id not in kept]
        gone = await asyncio.gather(*(self._orders.clean_up(node, s) for s in going))
        removed = [s for s, is_gone in zip(going, gone, strict=True) if is_gone]
        lone = [await keeper.clean_up(node) for keeper in self._keepers.values()]
        deleted = [f"its data of {_streams(removed)}"] if removed else []
        deleted += [f"{sum(lone)} replicas of chains that nobody knows"] if sum(lone) else []
        done = f"node {node} deleted {' and '.join(deleted) or 'nothing'}"
        return pb.Changed(done=done, next=_after_cleanup(kept, len(going) - len(removed)))

    def _may_be_needed(self, stream_id: StreamId) -> bool:
        """While no replica of a stream has everything, remains of it may be all there is."""
        stream = self._committer.stream(stream_id)
        return stream is not None and not self._whole(stream)

    def unknown_streams(self, node: NodeId) -> list[StreamId]:
        """What the node holds without being (or becoming) a replica of it."""
        member = self._members.get(node)
        return sorted(s for s in (member.reports if member else ()) if not self._owns(node, s))

    def _owns(self, node: NodeId, stream_id: StreamId) -> bool:
        stream = self._catalog.streams.get(stream_id)
        return stream is not None and node in (*stream.replicas, stream.joining)


def _stays(node: NodeId, logs: list[str]) -> str:
    """Nothing copies records of `copyset` logs from one node to another yet."""
    shown = ", ".join(logs[:3]) + (f" and {len(logs) - 3} more" if len(logs) > 3 else "")
    return (
        f"copies of {shown} (protocol copyset) stay on node {node} until they are trimmed: trim or "
        "delete these logs, or keep the node, with empty volumes if its disk is lost"
    )


def _after_cleanup(kept: list[StreamId], failed: int) -> str:
    if kept:
        return (
            f"kept: {_streams(kept)}, of which no replica has everything now; "
            "clean up again when they run"
        )
    return f"{failed} failed: see the node's log, then try again" if failed else "nothing is left"


def _streams(streams: Iterable[StreamId]) -> str:
    listed = [str(stream_id) for stream_id in streams]
    return f"stream{'s' * (len(listed) != 1)} {', '.join(listed)}"
