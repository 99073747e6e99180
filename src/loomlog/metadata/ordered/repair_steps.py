"""Carry out the decisions of core.ordered.repair.

A step is written to the catalog before it is sent to any node, so that it is resumed after a
restart at any point. Every step is idempotent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from loomlog.core.ordered import repair
from loomlog.core.ordered.repair import Copying
from loomlog.core.ordered.rounds import LogRounds, StreamRounds
from loomlog.errors import DataLoss, InvalidArgument, LoomError, NotFound, Retryable, Unavailable
from loomlog.metadata.ordered.committer import Committer
from loomlog.metadata.ordered.node_choice import NodeChoice
from loomlog.metadata.ordered.orders import Orders
from loomlog.metadata.ordered.records import StreamRecords
from loomlog.types import NodeId, ReplicaState, Report, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.translate import state_from_wire

logger = logging.getLogger(__name__)

ATTEMPTS: Final = 5  # to fill a replica; then another node is chosen
COPIES_MAX: Final = 16  # at a time; more would only share the same disks and network
COPY_ASKED_EVERY_S: Final = 0.25  # between questions about progress


class RepairAttempt(NamedTuple):
    """One attempt at an action."""

    number: int  # consecutive failures of this kind before it
    is_wanted: Callable[[], bool]  # False once another action is needed
    pause: Callable[[float], Awaitable[None]]  # returns early when something changes


class RepairSteps:
    """Carries out the actions of core.ordered.repair on nodes and in the catalog."""

    def __init__(
        self,
        committer: Committer,
        orders: Orders,
        choice: NodeChoice,
        forget_if_removed: Callable[[NodeId], Awaitable[None]],
        joined: Callable[[NodeId], None],
        *,
        request_timeout_s: float,
        sync_bytes_per_s: int,
    ) -> None:
        self._catalog, self._records = committer.catalog, committer.records
        self._nodes, self._held = committer.nodes, committer.held
        self._committer = committer
        self._orders = orders
        self._choice = choice
        self._forget_if_removed = forget_if_removed
        self._joined = joined
        self._request_timeout_s = request_timeout_s
        self._sync_bytes_per_s = sync_bytes_per_s
        self._copies = asyncio.Semaphore(COPIES_MAX)
        self.copying: dict[StreamId, Copying] = {}
        self.preferred: dict[StreamId, NodeId] = {}  # to copy from, by operators

    async def carry_out(
        self,
        log: LogRounds,
        stream: StreamRounds,
        action: repair.Action,
        attempt: RepairAttempt,
    ) -> bool:
        """Carry out an action. Return False if it made no progress."""
        match action:
            case repair.BeginSeal(reason):
                return await self.begin_seal(log, stream, reason)
            case repair.SendSeal(nodes):
                return await self._send_seal(log, stream, nodes)
            case repair.Unseal():
                return await self._unseal(log, stream)
            case repair.Join(node):
                return await self._join(log, stream, node, attempt.number)
            case repair.Synchronise():
                return await self._synchronise(log, stream, action, attempt)
            case repair.Swap(replicas):
                return await self._swap(log, stream, replicas)
            case repair.DropJoining(node, reason):
                return await self._drop_joining(stream, node, reason)
            case repair.Remove():
                return await self._remove(stream)
            case repair.Wait():
                return True

    # ---- seal

    async def begin_seal(self, log: LogRounds, stream: StreamRounds, reason: str) -> bool:
        """Decide the last commit, then raise the epoch. Everything that is durable before that
        counts."""
        stream.sealed, stream.sealed_at = True, 0
        await self._committer.settled(log)
        epoch = 1 + max(stream.epoch, *(report.epoch for report in stream.reports.values()), 0)
        sealed_at = max(log.high_watermark, 1)
        await self._records.update(stream.stream_id, epoch=epoch, sealed=True, sealed_at=sealed_at)
        stream.epoch, stream.sealed_at = epoch, sealed_at
        logger.info(
            "stream %d is sealed in epoch %d after LLSN %d: %s",
            stream.stream_id,
            epoch,
            stream.committed_llsn_end - 1,
            reason,
        )
        return True

    async def _send_seal(
        self, log: LogRounds, stream: StreamRounds, nodes: tuple[NodeId, ...]
    ) -> bool:
        answers = await asyncio.gather(
            *(self._seal_replica(log, stream, node) for node in nodes), return_exceptions=True
        )
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, LoomError):
                self._seal_failed(stream, node, answer)
            elif isinstance(answer, BaseException):
                raise answer
        return all(answer is ReplicaState.SEALED for answer in answers)

    def _seal_failed(self, stream: StreamRounds, node: NodeId, error: LoomError) -> None:
        logger.warning("stream %d: node %d: %s", stream.stream_id, node, error)
        if isinstance(error, NotFound):  # it lost its replica
            self._held.removed(node, stream.stream_id)
            stream.reports.pop(node, None)
        elif not isinstance(error, Retryable | DataLoss | InvalidArgument):
            self._choice.set_unable(stream.stream_id, node)

    async def _seal_replica(
        self, log: LogRounds, stream: StreamRounds, node: NodeId
    ) -> ReplicaState:
        # On the same connection, so they arrive first.
        self._committer.tell(node, log, stream, empty=False)
        epoch = stream.epoch
        order = pb.Seal(
            log_stream_id=stream.stream_id,
            seal_epoch=epoch,
            last_committed_llsn=stream.committed_llsn_end - 1,
            stamp=self._records.stream(stream.stream_id).stamp,
        )
        answer = await self._ask(node, pb.Frame(seal=order))
        response = answer.seal_response
        state = state_from_wire(response.state)
        known = stream.reports.get(node)
        # Entries reported beyond its last commit are dropped and must not be counted later.
        sealed = Report(
            stream.stream_id,
            uncommitted_llsn_offset=response.last_committed_llsn + 1,
            uncommitted_llsn_length=0,
            high_watermark=response.high_watermark,
            epoch=epoch,
            state=state,
            stored_high_watermark=known.stored_high_watermark if known else 0,
            resend=True,
            damaged=known.damaged if known else False,
        )
        self._committer.report(node, sealed)
        return state

    # ---- unseal

    async def _unseal(self, log: LogRounds, stream: StreamRounds) -> bool:
        stream_id, epoch = stream.stream_id, stream.epoch
        await self._records.update(stream_id, epoch=epoch, sealed=False, sealed_at=0)
        replicas = self._catalog.addressed(stream.replicas)
        order = pb.Unseal(log_stream_id=stream_id, seal_epoch=epoch, replicas=replicas)
        try:
            await self._unseal_replicas(stream, order)
        except LoomError as error:
            await self.begin_seal(log, stream, f"cannot unseal: {error}")
            return False
        stream.sealed, stream.sealed_at = False, 0
        logger.info("stream %d runs in epoch %d on nodes %s", stream_id, epoch, stream.replicas)
        self._committer.look(log)
        return True

    async def _unseal_replicas(self, stream: StreamRounds, order: pb.Unseal) -> None:
        """Unseal the backups first, because a running primary writes to them."""
        primary, *backups = stream.replicas
        orders = (self._unseal_replica(stream, node, order) for node in backups)
        for failure in await asyncio.gather(*orders, return_exceptions=True):
            if failure is not None:
                raise failure
        await self._unseal_replica(stream, primary, order)

    async def _unseal_replica(self, stream: StreamRounds, node: NodeId, order: pb.Unseal) -> None:
        await self._ask(node, pb.Frame(unseal=order))
        report = stream.reports.get(node)
        if report is None or report.epoch != order.seal_epoch:
            return
        if report.state is ReplicaState.SEALED:
            stream.reports[node] = report._replace(state=ReplicaState.RUNNING)

    # ---- a newcomer

    async def _join(self, log: LogRounds, stream: StreamRounds, node: NodeId, attempt: int) -> bool:
        if node not in stream.replicas and not await self._write_joining(stream, node):
            return True
        if node in stream.reports:  # no other replica could fill it
            return False
        if (remains := self._remains_on(stream, node)) is not None:  # it continues from its data
            self._committer.report(node, remains)
            return node in stream.reports
        try:
            await self._orders.add_replica(log.log_id, stream.stream_id, node)
        except LoomError as error:
            if isinstance(error, Retryable) and attempt < ATTEMPTS:
                raise
            await self._give_up(stream, node, error)
        return True

    def _remains_on(self, stream: StreamRounds, node: NodeId) -> Report | None:
        stamp = self._records.stream(stream.stream_id).stamp
        held = self._held.matching(node, stream.stream_id, stamp)
        return held.report if held else None

    async def _write_joining(self, stream: StreamRounds, node: NodeId) -> bool:
        """Record that the node joins; return whether it is the one that joins."""
        if stream.joining is None:
            await self._records.wish(stream.stream_id, joining=node)
            adopt_wishes(stream, self._records)
            logger.info("stream %d: node %d joins", stream.stream_id, node)
        return stream.joining == node

    async def _give_up(self, stream: StreamRounds, node: NodeId, error: LoomError) -> None:
        """Let another node take its place."""
        logger.warning("stream %d: node %d cannot take it: %s", stream.stream_id, node, error)
        self._choice.set_unable(stream.stream_id, node)
        if node == stream.joining:
            await self._drop_joining(stream, node, str(error))

    async def _drop_joining(self, stream: StreamRounds, node: NodeId, reason: str) -> bool:
        await self._records.change(stream.stream_id, lambda s: s.drop_joining(node))
        adopt_wishes(stream, self._records)
        stream.reports.pop(node, None)
        stream.sent.pop(node, None)
        logger.info("stream %d: node %d does not join: %s", stream.stream_id, node, reason)
        self._orders.drop_soon(node, stream.stream_id)
        return True

    # ---- copying

    async def _synchronise(
        self,
        log: LogRounds,
        stream: StreamRounds,
        action: repair.Synchronise,
        attempt: RepairAttempt,
    ) -> bool:
        source = repair.choose_source(
            stream,
            action,
            attempt.number,
            self._nodes.reachable,
            self.preferred.get(stream.stream_id),
        )
        try:
            async with self._copies:
                finished = await self._copy(stream, source, action.destination, attempt)
        except LoomError as error:
            if attempt.number < ATTEMPTS:
                raise
            await self._give_up(stream, action.destination, error)
            return True
        finally:
            self.copying.pop(stream.stream_id, None)
        if not finished:
            return True
        self.preferred.pop(stream.stream_id, None)
        if not stream.sealed:  # only current appends are missing
            return await self.begin_seal(log, stream, f"node {action.destination} joins")
        if attempt.is_wanted():  # its report is in flight
            await attempt.pause(COPY_ASKED_EVERY_S)
        return not attempt.is_wanted()

    async def _copy(
        self,
        stream: StreamRounds,
        source: NodeId,
        destination: NodeId,
        attempt: RepairAttempt,
    ) -> bool:
        """Return True when the destination has everything, False if the copy is no longer
        wanted."""
        stream_id = stream.stream_id
        preferred = self.preferred.get(stream_id)
        while attempt.is_wanted() and self.preferred.get(stream_id) == preferred:
            order = pb.Synchronise(
                log_stream_id=stream_id,
                seal_epoch=stream.epoch,
                destination=pb.Replica(
                    storage_node_id=destination, address=self._catalog.nodes[destination].address
                ),
                bytes_per_s=self._sync_bytes_per_s,
            )
            answer = (await self._ask(source, pb.Frame(synchronise=order))).synchronise_response
            if answer.error:
                raise Unavailable(f"copying from node {source}: {answer.error}")
            self._note_copying(stream_id, source, destination, answer)
            if answer.finished:
                return True
            await attempt.pause(COPY_ASKED_EVERY_S)
        return False

    def _note_copying(
        self,
        stream_id: StreamId,
        source: NodeId,
        destination: NodeId,
        answer: pb.SynchroniseResponse,
    ) -> None:
        if stream_id not in self.copying or answer.finished:
            logger.info(
                "stream %d: node %d copies to node %d: %d of %d entries, %d bytes",
                stream_id,
                source,
                destination,
                answer.copied_llsn,
                answer.last_llsn,
                answer.copied_bytes,
            )
        self.copying[stream_id] = Copying(
            source, destination, answer.copied_llsn, answer.last_llsn, answer.copied_bytes
        )

    # ---- other replicas

    async def _swap(
        self, log: LogRounds, stream: StreamRounds, replicas: tuple[NodeId, ...]
    ) -> bool:
        before = stream.replicas
        gone = [node for node in before if node not in replicas]
        new = {*replicas} - {*before}
        # A moved replica is deleted. One that was away, or unregistered, keeps its data, and so
        # does one that may have more than the newcomer.
        moved = len(replicas) == len(before) and all(map(partial(_is_whole, stream), new))
        dropping = [node for node in gone if moved and node == stream.leaving]
        held = {n: self._held.get(n, stream.stream_id) for n in new}
        births = {node: replica.birth if replica else 0 for node, replica in held.items()}
        await self._records.swap_replicas(stream.stream_id, replicas, dropping, births)
        if log.streams.get(stream.stream_id) is not stream:
            return True  # deleted, or cancelled, meanwhile
        log.change_replicas(stream.stream_id, replicas)
        adopt_wishes(stream, self._records)
        logger.info(
            "stream %d continues with nodes %s instead of %s", stream.stream_id, replicas, before
        )
        for node in births:
            self._orders.trim_soon(node, stream.stream_id)
            # There may be no round for a long time, or ever.
            self._committer.tell(node, log, stream, empty=True)
            self._joined(node)
        for node in gone:
            if node in dropping:
                self._orders.drop_soon(node, stream.stream_id)
            await self._forget_if_removed(node)
        return True

    # ---- the end of a stream

    async def _remove(self, stream: StreamRounds) -> bool:
        nodes = self._records.stream(stream.stream_id).holders
        await self._orders.abandon(stream)
        logger.info("stream %d is removed: nothing of it is left", stream.stream_id)
        for node in nodes:
            await self._forget_if_removed(node)
        return True

    async def _ask(self, node: NodeId, frame: pb.Frame) -> pb.Frame:
        return await self._nodes.request(node, frame, self._request_timeout_s)


def _is_whole(stream: StreamRounds, node: NodeId) -> bool:
    report = stream.reports.get(node)
    return report is not None and report.state is ReplicaState.SEALED


def adopt_wishes(stream: StreamRounds, records: StreamRecords) -> None:
    """Copy the desired state from its record, where it is durable, to the stream."""
    record = records.streams.get(stream.stream_id)
    if record is not None:
        stream.joining = record.joining
        stream.closed = not records.takes_appends(record)
        stream.relief, stream.removing = record.relief, record.removing
        stream.sealed_at, stream.trimmed = record.sealed_at, records.trimmed(record)
        is_wanted = record.wanted_running and not record.removing
        stream.wanted_running = is_wanted and not stream.closed
        stream.wanted_replicas = records.wanted_replicas(record)
        stream.leaving = records.leaving(record)
        stream.wanted_primary = record.wanted_primary
