"""Orders to storage nodes about whole replicas: add, trim, remove.

Trims and removals are recorded first, so that an absent node gets them when it registers, and a
node that fails gets them again while it is connected; this module only sends them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from loomlog.core.backoff import Backoff
from loomlog.core.ordered.replica import START
from loomlog.core.ordered.rounds import StreamRounds
from loomlog.core.ordered.stream_record import StreamRecord
from loomlog.errors import Conflict, LoomError, NotFound
from loomlog.metadata.background import Background, RetryLoop, StepResult
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.ordered.committer import Committer
from loomlog.types import LogId, NodeId, Report, StreamId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

ORDER_TIMEOUT_S: Final = 5.0  # less than a client waits for an answer
ORDERS_UNDER_WAY_MAX: Final = 64  # each creates or removes files on a node
RETRY: Final = Backoff(0.5, 30.0)


class _Target(NamedTuple):
    """The replica of a stream on a node."""

    node: NodeId
    stream_id: StreamId

    def __str__(self) -> str:
        return f"stream {self.stream_id} on node {self.node}"


class Orders:
    """Sends orders about replicas to nodes, and repeats failed ones."""

    def __init__(self, committer: Committer, background: Background) -> None:
        self._catalog, self._records = committer.catalog, committer.records
        self._nodes, self._held = committer.nodes, committer.held
        self._committer = committer
        self._room = asyncio.Semaphore(ORDERS_UNDER_WAY_MAX)
        self._trims = RetryLoop("trim of", self._trim_step, background, RETRY)
        self._drops = RetryLoop("deletion of", self._drop_step, background, RETRY)
        self._removals = RetryLoop("removal of stream", self._remove_step, background, RETRY)

    def start(self) -> None:
        """Resume removals that an earlier leader left unfinished."""
        for stream_id in self._records.abandoned:
            self._removals.wake(stream_id)

    def greet(self, node: NodeId) -> None:
        """Send a registered node the orders that it may have missed."""
        for stream in self._records.held_by(node):
            log = self._catalog.log_of(stream)
            if node in stream.replicas and log is not None and log.trimmed:
                self.trim_soon(node, stream.stream_id)
            if node in stream.dropping:
                self.drop_soon(node, stream.stream_id)
        self.node_changed(node)

    def node_changed(self, node: NodeId) -> None:
        """Called when a node may be able to delete again, or has left the cluster."""
        for stream in self._records.abandoned.values():
            if node in stream.holders:
                self._removals.wake(stream.stream_id)

    # ---- add

    async def add_stream(self, log_id: LogId, stream_id: StreamId) -> None:
        """Create every replica of the stream; raise the first refusal."""
        replicas = self._records.stream(stream_id).replicas
        orders = (self.add_replica(log_id, stream_id, node) for node in replicas)
        for failure in await asyncio.gather(*orders, return_exceptions=True):
            if failure is not None:
                raise failure

    async def add_replica(self, log_id: LogId, stream_id: StreamId, node: NodeId) -> None:
        record = self._records.stream(stream_id)
        order = pb.AddLogStream(
            log_id=log_id,
            log_stream_id=stream_id,
            replicas=self._catalog.addressed(record.replicas),
            stamp=record.stamp,
            birth=record.birth_on(node),
        )
        await self._order(node, pb.Frame(add_log_stream=order))
        stream = self._committer.stream(stream_id)
        if stream is not None and node not in stream.reports:  # its report may be in flight
            empty = Report(stream_id, 1, 0, 0, 0, START, 0, False)
            self._committer.report(node, empty)

    async def relocate(self, node: NodeId, stream: StreamRecord) -> None:
        """Have a node move its replica to another of its volumes."""
        order = pb.RelocateLogStream(log_stream_id=stream.stream_id, stamp=stream.stamp)
        await self._order(node, pb.Frame(relocate_log_stream=order))

    # ---- trim

    async def trim(self, log: LogRecord) -> None:
        """Trim every reachable replica; others and failed ones are trimmed later."""
        streams = self._records.of_log(log.log_id)
        targets = [_Target(node, s.stream_id) for s in streams for node in s.replicas]
        await asyncio.gather(*map(self._trims.step_now, targets))

    def trim_soon(self, node: NodeId, stream_id: StreamId) -> None:
        """Trim a replica as far as its log, retrying until it succeeds."""
        self._trims.wake(_Target(node, stream_id))

    async def _trim_step(self, target: _Target) -> StepResult:
        node, stream_id = target
        stream = self._records.streams.get(stream_id)
        log = self._catalog.log_of(stream) if stream else None
        if stream is None or log is None or not log.trimmed or node not in stream.replicas:
            return StepResult.IDLE
        if self._nodes.connected(node):
            order = pb.TrimLogStream(log_stream_id=stream_id, glsn=log.trimmed, stamp=stream.stamp)
            try:
                await self._order(node, pb.Frame(trim_log_stream=order))
            except NotFound as error:  # it lost its replica
                logger.warning("%s is not trimmed to %d yet: %s", target, log.trimmed, error)
                return StepResult.FAILED
        return StepResult.IDLE

    # ---- remove

    async def abandon(self, stream: StreamRounds) -> None:
        """Remove an empty stream from its log, and then from its nodes."""
        stream_id = stream.stream_id
        rounds = self._committer.log_of(stream_id)
        self._committer.remove_stream(stream_id)  # before waiting: it must not begin to run
        try:
            gone = stream.committed_llsn_end - 1
            await self._records.update(stream_id, taken_back=True, entries_gone=gone)
        except BaseException:
            if rounds is not None and stream_id in self._records.streams:
                self._committer.add_stream(rounds, stream)
            raise
        await self.remove(stream_id)

    async def remove(self, stream_id: StreamId) -> None:
        """Remove an abandoned stream from every reachable node, and later from others."""
        await self._removals.step_now(stream_id)

    async def _remove_step(self, stream_id: StreamId) -> StepResult:
        stream = self._records.abandoned.get(stream_id)
        if stream is None:
            return StepResult.IDLE
        holders = [node for node in stream.holders if node in self._catalog.nodes]
        there = [node for node in holders if self._nodes.connected(node)]
        orders = (self._remove_replica(node, stream_id, stream.stamp) for node in there)
        done = await asyncio.gather(*orders)
        gone = [node for node, is_gone in zip(there, done, strict=True) if is_gone]
        if len(gone) == len(holders) and not self._records.counts(stream):
            await self._records.forget(stream_id)
        elif len(gone) == len(holders):
            everybody = stream.holders
            await self._records.change(stream_id, lambda stream: stream.without_holders(everybody))
        elif gone:
            await self._records.change(stream_id, lambda stream: stream.without_holders(gone))
        return StepResult.IDLE if len(gone) == len(there) else StepResult.FAILED

    def drop_soon(self, node: NodeId, stream_id: StreamId) -> None:
        """Delete a node's data of a stream of which it is not a replica."""
        self._drops.wake(_Target(node, stream_id))

    async def _drop_step(self, target: _Target) -> StepResult:
        node, stream_id = target
        stream = self._records.streams.get(stream_id)
        if stream is None or node not in stream.dropping or not self._nodes.connected(node):
            return StepResult.IDLE
        birth = stream.birth_on(node)
        if birth and not await self._remove_replica(node, stream_id, stream.stamp, birth):
            return StepResult.FAILED
        await self._records.change(stream_id, lambda stream: stream.without_dropped(node))
        return StepResult.IDLE

    async def clean_up(self, node: NodeId, stream_id: StreamId) -> bool:
        """Delete the reported data of a stream of which the node is not a replica."""
        held = self._held.get(node, stream_id)
        if held is None or not await self._remove_replica(node, stream_id, held.stamp):
            return False
        record = self._records.streams.get(stream_id)
        if record is not None and record.stamp == held.stamp:
            await self._records.change(stream_id, lambda stream: stream.without_holders({node}))
        return True

    async def _remove_replica(
        self, node: NodeId, stream_id: StreamId, stamp: int, birth: int = 0
    ) -> bool:
        """Delete a replica and its data; True if there is none with this stamp and birth."""
        order = pb.RemoveLogStream(log_stream_id=stream_id, stamp=stamp, birth=birth)
        try:
            await self._order(node, pb.Frame(remove_log_stream=order))
        except NotFound:
            pass
        except Conflict as error:
            logger.warning("stream %d is not deleted: %s", stream_id, error)
            return True
        except LoomError as error:
            logger.warning("stream %d is not removed from node %d yet: %s", stream_id, node, error)
            return False
        self._held.removed(node, stream_id)
        return True

    async def _order(self, node: NodeId, frame: pb.Frame) -> None:
        async with self._room:
            await self._nodes.request(node, frame, ORDER_TIMEOUT_S)
