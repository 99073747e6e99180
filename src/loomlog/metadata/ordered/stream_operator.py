"""Operators' requests about streams, and about data of streams that no record names.

The desired state is recorded in the catalog; the repair loop reaches it, however long that takes
and despite failures. An answer has one line about what was done, and another about what happens
next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from loomlog.core.ordered.outage import StreamCopies
from loomlog.core.ordered.rounds import StreamRounds
from loomlog.core.packed import HeldReplica
from loomlog.errors import Busy, InvalidArgument, NotFound
from loomlog.metadata.ordered.committer import Committer
from loomlog.metadata.ordered.node_choice import NodeChoice
from loomlog.metadata.ordered.orders import Orders
from loomlog.metadata.ordered.repair_loop import Reconciler
from loomlog.metadata.ordered.streams import OrderedStreams
from loomlog.metadata.protocol import Cleanup
from loomlog.types import NodeId, ReplicaState, Report, StreamId
from loomlog.wire import loomlog_pb2 as pb

WAIT_S: Final = 5.0  # for quick changes; less than a client waits for its answer


class StreamOperator:
    """Carries out operators' commands about streams."""

    def __init__(
        self,
        committer: Committer,
        choice: NodeChoice,
        orders: Orders,
        reconciler: Reconciler,
        streams: OrderedStreams,
    ) -> None:
        self._catalog, self._records = committer.catalog, committer.records
        self._nodes, self._held = committer.nodes, committer.held
        self._committer = committer
        self._choice = choice
        self._orders = orders
        self._reconciler = reconciler
        self._streams = streams
        change = pb.ChangeStream
        self._stream_changes: dict[int, Callable[[pb.ChangeStream], Awaitable[pb.Changed]]] = {
            change.SEAL: self._seal,
            change.UNSEAL: self._unseal,
            change.ADD: self._add,
            change.MOVE: self._move,
            change.UNREGISTER: self._unregister,
            change.ADD_REPLICA: self._add_replica,
            change.REMOVE: self._remove,
            change.PRIMARY: self._primary,
            change.SYNC: self._sync,
        }

    async def change_stream(self, request: pb.ChangeStream) -> pb.Changed:
        change = self._stream_changes.get(request.action)
        if change is None:
            raise InvalidArgument(f"there is no change {request.action} of a stream")
        if request.HasField("part"):
            raise InvalidArgument(f"stream {request.log_stream_id} has no chains: leave out part")
        return await change(request)

    # ---- seal and unseal

    async def _seal(self, request: pb.ChangeStream) -> pb.Changed:
        stream = self._active_stream(request.log_stream_id)
        await self._want_running(stream, wanted=False)
        if await self._comes_true(stream, self._is_sealed):
            done = f"stream {stream.stream_id} is sealed after {_entries(stream)}"
        else:
            done = f"stream {stream.stream_id} will be sealed"
        unseal = f"`loom stream unseal {stream.stream_id}`"
        return pb.Changed(done=done, next=f"it stays readable, and takes appends after {unseal}")

    async def _want_running(self, stream: StreamRounds, *, wanted: bool) -> None:
        await self._records.update(stream.stream_id, wanted_running=wanted)
        self._reconciler.wishes_changed(stream.stream_id)

    def _is_sealed(self, stream: StreamRounds) -> bool:
        return stream.sealed and bool(self._whole(stream))

    async def _unseal(self, request: pb.ChangeStream) -> pb.Changed:
        stream = self._active_stream(request.log_stream_id)
        await self._want_running(stream, wanted=True)
        if await self._comes_true(stream, lambda stream: not stream.sealed):
            return pb.Changed(
                done=f"stream {stream.stream_id} runs in epoch {stream.epoch}",
                next="it takes appends",
            )
        return pb.Changed(
            done=f"stream {stream.stream_id} is to run",
            next=f"it cannot yet: {self._reconciler.condition(stream)}",
        )

    # ---- adding, removing and moving streams and replicas

    async def _add(self, request: pb.ChangeStream) -> pb.Changed:
        record, runs = await self._streams.add_stream(request.log, nodes=tuple(request.nodes))
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
                f"{_entries(stream)} are copied; then it is sealed for a moment and continues with "
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
                f"it continues with {_nodes(n for n in stream.replicas if n != node)}; the data on "
                f"node {node} stays until `loom node cleanup {node}`"
            ),
        )

    async def _primary(self, request: pb.ChangeStream) -> pb.Changed:
        stream = self._stream(request.log_stream_id)
        if not request.to_node:
            raise InvalidArgument(
                f"the primary of stream {stream.stream_id} is not chosen for good: another one "
                "follows when its replicas change"
            )
        node = self._replica_on(stream, request.to_node)
        if stream.replicas[0] == node:
            return pb.Changed(
                done=f"node {node} is the primary of stream {stream.stream_id} already", next=""
            )
        await self._wish(stream, wanted_primary=node)
        if await self._comes_true(stream, lambda now: now.replicas[0] == node):
            return pb.Changed(
                done=f"node {node} is the primary of stream {stream.stream_id}",
                next="" if stream.sealed and not stream.wanted_running else "it takes appends",
            )
        return pb.Changed(
            done=f"node {node} is to be the primary of stream {stream.stream_id}",
            next=f"that waits: {self._reconciler.condition(stream) or 'others are moved first'}",
        )

    async def _sync(self, request: pb.ChangeStream) -> pb.Changed:
        """Prefer a source until the destination is filled by the repair loop."""
        stream = self._stream(request.log_stream_id)
        source, node = self._replica_on(stream, request.from_node), request.to_node
        if node != stream.joining:
            self._replica_on(stream, node)
        if source == node:
            raise InvalidArgument(f"node {node} cannot be filled from itself: name another source")
        whole = self._whole(stream)
        if source not in whole:
            raise InvalidArgument(
                f"node {source} is away, or does not have all of stream {stream.stream_id}: "
                f"choose {_nodes(whole) if whole else 'another source when one is back'}"
            )
        if node in whole:
            return pb.Changed(
                done=f"node {node} has all {_entries(stream)} of stream {stream.stream_id} already",
                next="nothing is copied; `loom stream scrub` checks what is stored",
                finished=True,
            )
        self._reconciler.prefer_source(stream.stream_id, source)
        return pb.Changed(
            done=f"stream {stream.stream_id} is copied from node {source} to node {node}",
            next=self._reconciler.condition(stream) or "it begins in a moment",
        )

    async def _remove(self, request: pb.ChangeStream) -> pb.Changed:
        stream = self._stream(request.log_stream_id)
        stream_id = stream.stream_id
        if request.nodes:
            raise InvalidArgument(
                f"stream {stream_id} is removed as a whole: leave out nodes; `loom stream "
                f"unregister {stream_id} --node NODE` takes a replica away"
            )
        await self._streams.retire(stream_id)
        try:
            await self._comes_true(stream, lambda now: now.has_entries and self._is_sealed(now))
        except NotFound:
            return pb.Changed(done=f"stream {stream_id} is removed", next="nothing of it was left")
        return pb.Changed(
            done=f"stream {stream_id} takes no more appends",
            next=f"{_entries(stream)} stay readable; it is removed when all of them are trimmed",
        )

    # ---- data of streams on nodes that are not their replicas

    def unknown_streams(self, node: NodeId) -> list[StreamId]:
        """Return the streams that the node holds without being, or becoming, a replica."""
        held = self._held.on(node).values() if self._nodes.get(node) else ()
        return sorted(each.report.stream_id for each in held if not self._owns(node, each))

    def _owns(self, node: NodeId, held: HeldReplica) -> bool:
        stream = self._records.streams.get(held.report.stream_id)
        return stream is not None and stream.stamp == held.stamp and node in stream.filled

    async def clean_up(self, node: NodeId) -> Cleanup:
        """Delete the node's unknown streams, except those that may be the only copies."""
        unknown = self.unknown_streams(node)
        kept = [stream_id for stream_id in unknown if self._may_be_needed(stream_id)]
        going = [stream_id for stream_id in unknown if stream_id not in kept]
        gone = await asyncio.gather(*(self._orders.clean_up(node, s) for s in going))
        removed = [s for s, is_gone in zip(going, gone, strict=True) if is_gone]
        left = ""
        if kept:
            left = (
                f"kept: {_list('stream', kept)}, of which no replica has everything now; "
                "clean up again when they run"
            )
        elif failed := len(going) - len(removed):
            left = f"{failed} failed: see the node's log, then try again"
        return Cleanup(f"its data of {_list('stream', removed)}" if removed else "", left)

    def _may_be_needed(self, stream_id: StreamId) -> bool:
        """Return whether no replica of the stream has everything, so that old data may be
        needed."""
        stream = self._committer.stream(stream_id)
        return stream is not None and not self._whole(stream)

    # ---- all

    def _stream(self, stream_id: StreamId) -> StreamRounds:
        self._records.stream(stream_id)
        stream = self._committer.stream(stream_id)
        if stream is None:
            raise NotFound(f"stream {stream_id} was deleted")
        return stream

    def _active_stream(self, stream_id: StreamId) -> StreamRounds:
        """Return a stream that operators may seal and unseal."""
        stream = self._stream(stream_id)
        if stream.removing:
            raise InvalidArgument(f"stream {stream_id} is being removed: it takes no more appends")
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
        """Return the node for the next replica: the given one, or the best one if it is 0."""
        self._check_not_filled(stream)
        if not node:
            spare = self._choice.spare(stream)
            if spare is None:
                self._check_none_is_freed(stream)
                raise InvalidArgument(
                    f"there is no spare node for stream {stream.stream_id}: start another one"
                )
            return spare
        self._catalog.node(node)
        reason = self._choice.why_not(stream, node)
        if reason is not None:
            if node in self._choice.freed_soon(stream):
                raise Busy(reason)
            raise InvalidArgument(f"{reason}; choose another node")
        return node

    def _check_none_is_freed(self, stream: StreamRounds) -> None:
        for node in self._choice.freed_soon(stream):
            raise Busy(self._choice.why_not(stream, node))

    def _check_not_filled(self, stream: StreamRounds) -> None:
        if stream.joining is not None:
            raise Busy(
                f"stream {stream.stream_id} is just being copied to node {stream.joining}: "
                "wait until that is done"
            )

    def _whole(self, stream: StreamRounds) -> list[NodeId]:
        """Return the live replicas with every committed entry."""
        found = []
        for node in stream.replicas:
            report = stream.reports.get(node)
            if report and self._nodes.reachable(node) and _is_whole(stream, report):
                found.append(node)
        return found

    def copies_of(self, stream: StreamRounds) -> StreamCopies:
        """Return which nodes have the entries of a stream."""
        return StreamCopies(
            stream.stream_id,
            stream.replicas,
            frozenset(self._whole(stream)),
            stream.wanted_replicas,
            has_entries=stream.has_entries and not stream.is_trimmed,
            takes_appends=not stream.sealed and stream.wanted_running,
        )

    async def _wish(self, stream: StreamRounds, **wishes: Any) -> None:
        """Record the replicas that it should have, and wake the loop."""
        await self._records.wish(stream.stream_id, **wishes)
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


def _entries(stream: StreamRounds) -> str:
    return f"{stream.committed_llsn_end - 1} entries"


def _nodes(nodes: Iterable[NodeId]) -> str:
    return _list("node", nodes)


def _list(what: str, numbers: Iterable[int]) -> str:
    listed = [str(number) for number in numbers]
    return f"{what}{'s' * (len(listed) != 1)} {', '.join(listed)}"
