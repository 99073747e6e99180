"""What operators do with streams and nodes.

An operator's wish is written down (catalog); the reconcile loop makes it so, however long that
takes and whatever fails meanwhile. An answer says in a line what was done, and in another what
happens next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from loomlog.core.ordered.rounds import StreamRounds
from loomlog.errors import Busy, InvalidArgument, LoomError, NotFound, Unavailable
from loomlog.metadata.admin import Admin
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.committer import Committer
from loomlog.metadata.keepers import LoneKeeper
from loomlog.metadata.members import Members
from loomlog.metadata.node_choice import NodeChoice
from loomlog.metadata.orders import Orders
from loomlog.metadata.reconcile import Reconciler
from loomlog.metadata.records import StreamRecord
from loomlog.metadata.steps import Steps
from loomlog.types import NodeId, ReplicaState, Report, StreamId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

WAIT_S: Final = 5.0  # for what is done in a moment; less than what a client waits for its answer


class Operator:
    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        members: Members,
        orders: Orders,
        nodes: NodeChoice,
        steps: Steps,
        reconciler: Reconciler,
        admin: Admin,
        keepers: Mapping[str, LoneKeeper],
    ) -> None:
        self._catalog = catalog
        self._committer = committer
        self._members = members
        self._orders = orders
        self._nodes = nodes
        self._steps = steps
        self._reconciler = reconciler
        self._admin = admin
        self._keepers = keepers
        change = pb.ChangeStream
        self._stream_changes: dict[int, Callable[[pb.ChangeStream], Awaitable[pb.Changed]]] = {
            change.SEAL: self._seal,
            change.UNSEAL: self._unseal,
            change.ADD: self._add,
            change.MOVE: self._move,
            change.UNREGISTER: self._unregister,
            change.ADD_REPLICA: self._add_replica,
            change.SCRUB: self._scrub,
        }
        node_change = pb.ChangeNode
        self._node_changes: dict[int, Callable[[pb.ChangeNode], Awaitable[pb.Changed]]] = {
            node_change.DRAIN: self._drain,
            node_change.UNDRAIN: self._undrain,
            node_change.REMOVE: self._remove,
            node_change.CLEANUP: self._cleanup,
        }

    async def change_stream(self, request: pb.ChangeStream) -> pb.Changed:
        change = self._stream_changes.get(request.action)
        if change is None:
            raise InvalidArgument(f"there is no change {request.action} of a stream")
        return _logged(await change(request))

    async def change_node(self, request: pb.ChangeNode) -> pb.Changed:
        change = self._node_changes.get(request.action)
        if change is None:
            raise InvalidArgument(f"there is no change {request.action} of a node")
        self._catalog.node(request.storage_node_id)
        return _logged(await change(request))

    # ---- seal and unseal

    async def _seal(self, request: pb.ChangeStream) -> pb.Changed:
        stream = self._active_stream(request.log_stream_id)
        await self._wish(stream, wanted_running=False)
        if await self._comes_true(stream, self._is_sealed):
            done = f"stream {stream.stream_id} is sealed after {_entries(stream)}"
        else:
            done = f"stream {stream.stream_id} will be sealed"
        unseal = f"`loom stream unseal {stream.stream_id}`"
        return pb.Changed(done=done, next=f"it stays readable, and takes appends after {unseal}")

    def _is_sealed(self, stream: StreamRounds) -> bool:
        return stream.sealed and bool(self._whole(stream))

    async def _unseal(self, request: pb.ChangeStream) -> pb.Changed:
        stream = self._active_stream(request.log_stream_id)
        await self._wish(stream, wanted_running=True)
        if await self._comes_true(stream, lambda stream: not stream.sealed):
            return pb.Changed(
                done=f"stream {stream.stream_id} runs in epoch {stream.epoch}",
                next="it takes appends",
            )
        return pb.Changed(
            done=f"stream {stream.stream_id} is to run",
            next=f"it cannot yet: {self._reconciler.condition(stream)}",
        )

    # ---- streams and replicas come, go and move

    async def _add(self, request: pb.ChangeStream) -> pb.Changed:
        record, runs = await self._admin.add_stream(request.log)
        where = _nodes(record.replicas)
        return pb.Changed(
            done=f"log {request.log!r} has a new stream {record.stream_id} on {where}",
            next="it takes appends" if runs else "it takes appends as soon as it is unsealed",
            log_stream_id=record.stream_id,
        )

    async def _move(self, request: pb.ChangeStream) -> pb.Changed:
        stream = self._stream(request.log_stream_id)
        origin = self._replica_on(stream, request.from_node)
        target = self._target(stream, request.to_node)
        await self._wish(stream, joining=target, leaving=origin)
        return pb.Changed(
            done=f"stream {stream.stream_id} begins to move from node {origin} to node {target}",
            next=(
                f"{_entries(stream)} are copied while it runs; then it is sealed for a moment, "
                f"node {target} takes over, and the data on node {origin} is deleted"
            ),
        )

    async def _add_replica(self, request: pb.ChangeStream) -> pb.Changed:
        stream = self._stream(request.log_stream_id)
        target = self._target(stream, request.to_node)
        wanted = len(stream.replicas) + 1
        await self._wish(stream, joining=target, wanted_replicas=wanted)
        return pb.Changed(
            done=f"stream {stream.stream_id} begins to get a replica on node {target}",
            next=(
                f"{_entries(stream)} are copied; then it is sealed for a moment and goes on with "
                f"{wanted} replicas"
            ),
        )

    async def _unregister(self, request: pb.ChangeStream) -> pb.Changed:
        stream = self._stream(request.log_stream_id)
        node = self._replica_on(stream, request.from_node)
        if len(stream.replicas) == 1:
            raise InvalidArgument(
                f"node {node} has the only replica of stream {stream.stream_id}: "
                "add another one first, or delete the log"
            )
        self._check_not_filled(stream)
        if not any(n != node for n in self._whole(stream)):
            raise InvalidArgument(
                f"no other live replica of stream {stream.stream_id} has all its entries: "
                f"it would lose data without node {node}"
            )
        await self._wish(stream, leaving=node, wanted_replicas=len(stream.replicas) - 1)
        left = await self._comes_true(stream, lambda s: node not in s.replicas)
        does = "has left" if left else "leaves"
        return pb.Changed(
            done=f"the replica on node {node} {does} stream {stream.stream_id}",
            next=(
                f"it goes on with {_nodes(n for n in stream.replicas if n != node)}; the data on "
                f"node {node} stays until `loom node cleanup {node}`"
            ),
        )

    # ---- scrub

    async def _scrub(self, request: pb.ChangeStream) -> pb.Changed:
        stream = self._stream(request.log_stream_id)
        scrubs = await asyncio.gather(
            *(self._scrub_on(stream, node, start=not request.tell_only) for node in stream.replicas)
        )
        corrupt = sum(scrub.progress.corrupt_batches for scrub in scrubs)
        repaired = sum(scrub.progress.repaired_batches for scrub in scrubs)
        finished = sum(scrub.progress.finished for scrub in scrubs)
        found = f"{corrupt} corrupt batches found, {repaired} repaired"
        verb = "was" if request.tell_only else "is"
        return pb.Changed(
            done=f"stream {stream.stream_id} {verb} checked on {_nodes(stream.replicas)}: {found}",
            next=(
                "the check is finished"
                if finished == len(scrubs)
                else f"{finished} of {len(scrubs)} replicas are finished; ask again to see how far"
            ),
            scrubs=scrubs,
        )

    async def _scrub_on(
        self, stream: StreamRounds, node: NodeId, *, start: bool
    ) -> pb.ReplicaScrub:
        peers = [
            pb.Replica(storage_node_id=n, address=self._catalog.nodes[n].address)
            for n in stream.replicas
            if n != node
        ]
        order = pb.Scrub(log_stream_id=stream.stream_id, replicas=peers, start=start)
        try:
            answer = await self._members.request(node, pb.Frame(scrub=order), WAIT_S)
            progress = answer.scrub_response
        except LoomError as error:
            progress = pb.ScrubResponse(error=str(error))
        return pb.ReplicaScrub(storage_node_id=node, progress=progress)

    # ---- nodes

    async def _drain(self, request: pb.ChangeNode) -> pb.Changed:
        node = request.storage_node_id
        await self._catalog.update_node(node, draining=True)
        streams = self._node_wishes_changed(node)
        moving = len(streams) + len(self._lone_replicas(node))
        if not moving:
            then = f"it is empty: `loom node remove {node}` forgets it"
        elif stuck := [s for s in streams if not self._can_move(s)]:
            then = (
                f"{moving} replicas move away, but {len(stuck)} of them find no other node "
                f"yet ({_streams(s.stream_id for s in stuck)}): start another one"
            )
        elif not all(keeper.can_leave(node) for keeper in self._keepers.values()):
            then = f"{moving} replicas move away, but some find no other node yet: start another"
        else:
            then = f"{moving} replicas move to other nodes, a few at a time"
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

    def _node_wishes_changed(self, node: NodeId) -> list[StreamRecord]:
        streams = self._catalog.streams_on(node)
        for stream in streams:
            self._reconciler.wishes_changed(stream.stream_id)
        for keeper in self._keepers.values():
            keeper.node_changed(node, alive=True)
        return streams

    async def _cleanup(self, request: pb.ChangeNode) -> pb.Changed:
        node = request.storage_node_id
        if not self._members.reachable(node):
            raise Unavailable(f"node {node} is not alive: start it first")
        unknown = self.unknown_streams(node)
        kept = [stream_id for stream_id in unknown if self._may_be_needed(stream_id)]
        going = [stream_id for stream_id in unknown if stream_id not in kept]
        gone = await asyncio.gather(*(self._orders.clean_up(node, s) for s in going))
        removed = [s for s, is_gone in zip(going, gone, strict=True) if is_gone]
        done = (
            f"node {node} deleted its data of {_streams(removed)}"
            if removed
            else f"node {node} deleted nothing"
        )
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

    # ---- all

    def _stream(self, stream_id: StreamId) -> StreamRounds:
        for protocol, keeper in self._keepers.items():
            if keeper.has_stream(stream_id):
                raise InvalidArgument(
                    f"stream {stream_id} is of protocol {protocol!r}, which repairs and moves its "
                    "replicas by itself: drain a node to empty it, or give the log other settings "
                    "with `loom log switch`"
                )
        self._catalog.stream(stream_id)
        stream = self._committer.stream(stream_id)
        if stream is None:
            raise NotFound(f"stream {stream_id} was deleted")
        return stream

    def _active_stream(self, stream_id: StreamId) -> StreamRounds:
        """One that operators may seal and unseal."""
        stream = self._stream(stream_id)
        if stream.closed:
            raise InvalidArgument(
                f"stream {stream_id} is of a segment of its log that is not active: "
                "it is sealed as long as that is so; see `loom log describe`"
            )
        return stream

    def _replica_on(self, stream: StreamRounds, node: NodeId) -> NodeId:
        self._catalog.node(node)
        if node not in stream.replicas:
            raise InvalidArgument(
                f"node {node} has no replica of stream {stream.stream_id}: "
                f"those are on {_nodes(stream.replicas)}"
            )
        return node

    def _target(self, stream: StreamRounds, node: NodeId) -> NodeId:
        """Where the next replica goes: to that node, or (0) to the best one."""
        self._check_not_filled(stream)
        if not node:
            spare = self._nodes.spare(stream)
            if spare is None:
                self._check_none_is_freed(stream)
                raise InvalidArgument(
                    f"there is no spare node for stream {stream.stream_id}: start another one"
                )
            return spare
        self._catalog.node(node)
        reason = self._nodes.why_not(stream, node)
        if reason is not None:
            if node in self._nodes.freed_soon(stream):
                raise Busy(reason)
            raise InvalidArgument(f"{reason}; choose another node")
        return node

    def _check_none_is_freed(self, stream: StreamRounds) -> None:
        for node in self._nodes.freed_soon(stream):
            raise Busy(self._nodes.why_not(stream, node))

    def _check_not_filled(self, stream: StreamRounds) -> None:
        if stream.joining is not None:
            raise Busy(
                f"stream {stream.stream_id} is just being copied to node {stream.joining}: "
                "wait until that is done"
            )

    def _whole(self, stream: StreamRounds) -> list[NodeId]:
        """Live replicas with every committed entry."""
        found = []
        for node in stream.replicas:
            report = stream.reports.get(node)
            if report and self._members.reachable(node) and _is_whole(stream, report):
                found.append(node)
        return found

    async def _wish(self, stream: StreamRounds, **wishes: Any) -> None:
        """Write it down and set the loop to work. Nothing is awaited before `joining` shows."""
        if "joining" in wishes:
            stream.joining = wishes["joining"]
        try:
            await self._catalog.update_stream(stream.stream_id, **wishes)
        except BaseException:
            if "joining" in wishes:
                stream.joining = None
            raise
        self._reconciler.wishes_changed(stream.stream_id)

    async def _comes_true(self, stream: StreamRounds, true: Callable[[StreamRounds], bool]) -> bool:
        try:
            async with asyncio.timeout(WAIT_S):
                await self._reconciler.until(stream.stream_id, true)
        except TimeoutError:
            return False
        return True


def _is_whole(stream: StreamRounds, report: Report) -> bool:
    if report.epoch != stream.epoch or report.damaged:
        return False
    if stream.sealed:
        return report.state is ReplicaState.SEALED
    return report.state is ReplicaState.RUNNING


def _after_cleanup(kept: list[StreamId], failed: int) -> str:
    if kept:
        return (
            f"kept: {_streams(kept)}, of which no replica has everything now; "
            "clean up again when they run"
        )
    return f"{failed} failed: see the node's log, then try again" if failed else "nothing is left"


def _logged(changed: pb.Changed) -> pb.Changed:
    logger.info("operator: %s; %s", changed.done, changed.next)
    return changed


def _entries(stream: StreamRounds) -> str:
    return f"{stream.committed_llsn_end - 1} entries"


def _nodes(nodes: Iterable[NodeId]) -> str:
    listed = [str(node) for node in nodes]
    return f"node{'s' * (len(listed) != 1)} {', '.join(listed)}"


def _streams(streams: Iterable[StreamId]) -> str:
    listed = [str(stream_id) for stream_id in streams]
    return f"stream{'s' * (len(listed) != 1)} {', '.join(listed)}"
