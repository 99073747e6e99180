"""Keeps every stream running: asks core.ordered.repair what to do, and does it.

Nothing runs while nothing is to be done. Events wake a stream (a node registered, fell silent or
came back, a replica reported another state); then one task per stream works until there is nothing
to do but wait. A failed step is tried again, later and later; an event cuts that short.

Seams for repair by replacement: `repair.decide` will name more actions, `_carry_out` does them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from loomlog.core.ordered import repair
from loomlog.core.ordered.replica import Report
from loomlog.core.ordered.rounds import LogRounds, StreamRounds
from loomlog.errors import LoomError, NotFound
from loomlog.metadata.background import Background
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.committer import Committer
from loomlog.metadata.members import Members
from loomlog.metadata.translate import state_from_wire
from loomlog.types import NodeId, ReplicaState, StreamId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 5.0


class Reconciler:
    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        members: Members,
        background: Background,
        request_timeout_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._catalog = catalog
        self._committer = committer
        self._members = members
        self._background = background
        self._request_timeout_s = request_timeout_s
        self._woken: dict[StreamId, None] = {}  # an ordered set
        self._at_work: dict[StreamId, asyncio.Event] = {}  # set: look again at once
        self._awaited: dict[StreamId, list[asyncio.Future[None]]] = {}

    # ---- waking

    def wake(self, stream_id: StreamId) -> None:
        """Something about the stream changed; looked at when this turn of the loop is over."""
        if not self._woken:
            self._loop.call_soon(self._look)
        self._woken[stream_id] = None

    def wake_node(self, node: NodeId) -> None:
        for log in self._committer.logs.values():
            for stream in log.streams.values():
                if node in stream.replicas:
                    self.wake(stream.stream_id)

    def _look(self) -> None:
        woken, self._woken = self._woken, {}
        for stream_id in woken:
            if stream_id in self._at_work:
                self._at_work[stream_id].set()
                continue
            log = self._committer.log_of(stream_id)
            if log is None or isinstance(self._decide(log.streams[stream_id]), repair.Wait):
                continue
            self._at_work[stream_id] = asyncio.Event()
            self._background.spawn(self._repair(log, stream_id), f"repair of stream {stream_id}")

    async def running(self, stream_ids: Iterable[StreamId]) -> None:
        """Wait until all these streams run."""
        for stream_id in stream_ids:
            stream = self._committer.stream(stream_id)
            if stream is None:
                raise NotFound(f"stream {stream_id} was deleted")
            if stream.sealed:
                waiting: asyncio.Future[None] = self._loop.create_future()
                self._awaited.setdefault(stream_id, []).append(waiting)
                await waiting

    # ---- one stream

    def _decide(self, stream: StreamRounds) -> repair.Action:
        if stream.sealed:  # nothing can be asked of a node in its grace
            return repair.decide(stream, _Nodes(self._members.reachable))
        for node in stream.replicas:
            if self._members.connected(node) and node not in stream.reports:
                return repair.BeginSeal(f"node {node} came back without its replica")
        return repair.decide(stream, _Nodes(self._members.alive))

    async def _repair(self, log: LogRounds, stream_id: StreamId) -> None:
        stream = log.streams[stream_id]
        woken = self._at_work[stream_id]
        delay = RETRY_FIRST_S
        try:
            while self._committer.stream(stream_id) is stream:
                woken.clear()
                action = self._decide(stream)
                if isinstance(action, repair.Wait):
                    logger.info("stream %d: %s", stream_id, action.reason)
                    return
                if await self._tried(log, stream, action):
                    delay = RETRY_FIRST_S
                    continue
                await _first(woken, delay)
                delay = min(2 * delay, RETRY_MAX_S)
        finally:
            del self._at_work[stream_id]

    async def _tried(self, log: LogRounds, stream: StreamRounds, action: repair.Action) -> bool:
        """Carry it out; False if that did not bring us on."""
        try:
            return await self._carry_out(log, stream, action)
        except LoomError as error:
            logger.warning("stream %d: %s failed: %s", stream.stream_id, action, error)
            return False

    async def _carry_out(self, log: LogRounds, stream: StreamRounds, action: repair.Action) -> bool:
        match action:
            case repair.BeginSeal(reason):
                return await self._begin_seal(log, stream, reason)
            case repair.SendSeal(nodes):
                return await self._send_seal(log, stream, nodes)
            case repair.Unseal():
                return await self._unseal(log, stream)
            case repair.Wait():
                return True
            case _:
                return False

    async def _begin_seal(self, log: LogRounds, stream: StreamRounds, reason: str) -> bool:
        """Decide the last commit, then raise the epoch: what is durable first counts."""
        stream.sealed = True
        await self._committer.settled(log)
        epoch = 1 + max(stream.epoch, *(report.epoch for report in stream.reports.values()), 0)
        await self._catalog.update_stream(stream.stream_id, epoch=epoch, sealed=True)
        stream.epoch = epoch
        logger.info(
            "stream %d is sealed in epoch %d after LLSN %d: %s",
            *(stream.stream_id, epoch, stream.committed_llsn_end - 1, reason),
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
                logger.warning("stream %d: node %d: %s", stream.stream_id, node, answer)
            elif isinstance(answer, BaseException):
                raise answer
        return all(answer is ReplicaState.SEALED for answer in answers)

    async def _seal_replica(
        self, log: LogRounds, stream: StreamRounds, node: NodeId
    ) -> ReplicaState:
        self._committer.tell(node, log, empty=False)  # on the same connection: comes first
        epoch = stream.epoch
        order = pb.Seal(
            log_stream_id=stream.stream_id,
            seal_epoch=epoch,
            last_committed_llsn=stream.committed_llsn_end - 1,
            last_committed_glsn=log.high_watermark,
        )
        answer = await self._ask(node, pb.Frame(seal=order))
        response = answer.seal_response
        state = state_from_wire(response.state)
        known = stream.reports.get(node)
        # Whatever it had reported beyond its last commit is gone: it must not be counted later.
        sealed = Report(
            stream.stream_id,
            uncommitted_llsn_offset=response.last_committed_llsn + 1,
            uncommitted_llsn_length=0,
            high_watermark=response.high_watermark,
            epoch=epoch,
            state=state,
            stored_high_watermark=known.stored_high_watermark if known else 0,
            resend=True,
        )
        self._committer.report(node, sealed)
        return state

    async def _unseal(self, log: LogRounds, stream: StreamRounds) -> bool:
        stream_id, epoch = stream.stream_id, stream.epoch
        await self._catalog.update_stream(stream_id, epoch=epoch, sealed=False)
        replicas = [
            pb.Replica(storage_node_id=node, address=self._catalog.nodes[node].address)
            for node in stream.replicas
        ]
        order = pb.Unseal(log_stream_id=stream_id, seal_epoch=epoch, replicas=replicas)
        try:
            await self._unseal_replicas(stream, order)
        except LoomError as error:
            await self._begin_seal(log, stream, f"cannot unseal: {error}")
            return False
        stream.sealed = False
        logger.info("stream %d runs in epoch %d on nodes %s", stream_id, epoch, stream.replicas)
        self._committer.look(log)
        self._runs(stream_id)
        return True

    async def _unseal_replicas(self, stream: StreamRounds, order: pb.Unseal) -> None:
        """The backups first: a primary that runs writes to them."""
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

    async def _ask(self, node: NodeId, frame: pb.Frame) -> pb.Frame:
        return await self._members.request(node, frame, self._request_timeout_s)

    def _runs(self, stream_id: StreamId) -> None:
        for waiting in self._awaited.pop(stream_id, ()):
            if not waiting.done():
                waiting.set_result(None)


class _Nodes:
    """The nodes as they are; replacement is not built yet."""

    def __init__(self, alive: Callable[[NodeId], bool]) -> None:
        self.alive = alive

    def lost(self, node: NodeId) -> bool:
        return False

    def spare(self, stream: StreamRounds) -> NodeId | None:
        return None


async def _first(woken: asyncio.Event, delay_s: float) -> None:
    """Wait for the event or the end of the delay."""
    try:
        async with asyncio.timeout(delay_s):
            await woken.wait()
    except TimeoutError:
        pass
