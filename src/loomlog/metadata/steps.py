"""The steps of a repair, carried out: what core.ordered.repair decides, written down and ordered.

What a step decides is in the catalog before any node hears of it, so that a restart at any point
finds it and goes on. Every step may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from loomlog.core.ordered import repair
from loomlog.core.ordered.rounds import LogRounds, StreamRounds
from loomlog.errors import DataLoss, InvalidArgument, LoomError, NotFound, Retryable, Unavailable
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.committer import Committer
from loomlog.metadata.conditions import Copying
from loomlog.metadata.keepers import LoneKeeper
from loomlog.metadata.members import Members
from loomlog.metadata.node_choice import NodeChoice
from loomlog.metadata.orders import Orders
from loomlog.types import NodeId, ReplicaState, Report, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.translate import state_from_wire

logger = logging.getLogger(__name__)

ATTEMPTS: Final = 5  # at filling a replica; then another node is looked for
COPIES_MAX: Final = 16  # at one time; more would only share the same disks and network
COPY_ASKED_EVERY_S: Final = 0.25  # how far is it?

Decide = Callable[[StreamRounds], repair.Action]


class Steps:
    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        members: Members,
        orders: Orders,
        nodes: NodeChoice,
        keepers: Mapping[str, LoneKeeper],
        *,
        request_timeout_s: float,
        sync_bytes_per_s: int,
    ) -> None:
        self._catalog = catalog
        self._committer = committer
        self._members = members
        self._orders = orders
        self._nodes = nodes
        self._keepers = keepers
        self._request_timeout_s = request_timeout_s
        self._sync_bytes_per_s = sync_bytes_per_s
        self._copies = asyncio.Semaphore(COPIES_MAX)
        self.copying: dict[StreamId, Copying] = {}

    async def carry_out(
        self,
        log: LogRounds,
        stream: StreamRounds,
        action: repair.Action,
        attempt: int,
        decide: Decide,
        woken: asyncio.Event,
    ) -> bool:
        """False if that did not bring us on; `attempt` counts how often in a row."""
        match action:
            case repair.BeginSeal(reason):
                return await self.begin_seal(log, stream, reason)
            case repair.SendSeal(nodes):
                return await self._send_seal(log, stream, nodes)
            case repair.Unseal():
                return await self._unseal(log, stream)
            case repair.Join(node):
                return await self._join(log, stream, node, attempt)
            case repair.Synchronise():
                return await self._synchronise(log, stream, action, attempt, decide, woken)
            case repair.Swap(replicas):
                return await self._swap(log, stream, replicas)
            case repair.DropJoining(node, reason):
                return await self._drop_joining(stream, node, reason)
            case repair.Wait():
                return True

    # ---- seal

    async def begin_seal(self, log: LogRounds, stream: StreamRounds, reason: str) -> bool:
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
                self._seal_failed(stream, node, answer)
            elif isinstance(answer, BaseException):
                raise answer
        return all(answer is ReplicaState.SEALED for answer in answers)

    def _seal_failed(self, stream: StreamRounds, node: NodeId, error: LoomError) -> None:
        logger.warning("stream %d: node %d: %s", stream.stream_id, node, error)
        if isinstance(error, NotFound):  # it lost its replica
            self._members.removed(node, stream.stream_id)
            stream.reports.pop(node, None)
        elif not isinstance(error, Retryable | DataLoss | InvalidArgument):
            self._nodes.set_unable(stream.stream_id, node)

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
            damaged=known.damaged if known else False,
        )
        self._committer.report(node, sealed)
        return state

    # ---- unseal

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
            await self.begin_seal(log, stream, f"cannot unseal: {error}")
            return False
        stream.sealed = False
        logger.info("stream %d runs in epoch %d on nodes %s", stream_id, epoch, stream.replicas)
        self._committer.look(log)
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

    # ---- a newcomer

    async def _join(self, log: LogRounds, stream: StreamRounds, node: NodeId, attempt: int) -> bool:
        if node not in stream.replicas and not await self._write_joining(stream, node):
            return True
        if node in stream.reports:  # nobody is there who could fill it
            return False
        remains = self._members.report_of(node, stream.stream_id)
        if remains is not None:  # it goes on from there
            self._committer.report(node, remains)
            return node in stream.reports
        try:
            await self._orders.add_replica(log.log_id, stream.stream_id, node)
        except LoomError as error:
            if isinstance(error, Retryable) and attempt < ATTEMPTS:
                raise
            await self._give_up(stream, node, error)
        return True

    async def _write_joining(self, stream: StreamRounds, node: NodeId) -> bool:
        """False if somebody else was faster."""
        if stream.joining is not None:
            return stream.joining == node
        stream.joining = node  # before waiting: an operator may ask for another one meanwhile
        try:
            await self._catalog.update_stream(stream.stream_id, joining=node)
        except BaseException:
            stream.joining = None
            raise
        logger.info("stream %d: node %d joins", stream.stream_id, node)
        return True

    async def _give_up(self, stream: StreamRounds, node: NodeId, error: LoomError) -> None:
        """Somebody else has to take its place."""
        logger.warning("stream %d: node %d cannot take it: %s", *(stream.stream_id, node, error))
        self._nodes.set_unable(stream.stream_id, node)
        if node == stream.joining:
            await self._drop_joining(stream, node, str(error))

    async def _drop_joining(self, stream: StreamRounds, node: NodeId, reason: str) -> bool:
        await self._catalog.drop_joining(stream.stream_id, node)
        stream.joining = None
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
        attempt: int,
        decide: Decide,
        woken: asyncio.Event,
    ) -> bool:
        source = self._source(stream, action, attempt)
        try:
            async with self._copies:
                finished = await self._copy(stream, source, action, decide, woken)
        except LoomError as error:
            if attempt < ATTEMPTS:
                raise
            await self._give_up(stream, action.destination, error)
            return True
        finally:
            self.copying.pop(stream.stream_id, None)
        if not finished:
            return True
        if not stream.sealed:  # only what is being appended now is missing
            return await self.begin_seal(log, stream, f"node {action.destination} joins")
        if _still(action, decide(stream)):  # its own report is on the way
            await first(woken, COPY_ASKED_EVERY_S)
        return not _still(action, decide(stream))

    def _source(self, stream: StreamRounds, action: repair.Synchronise, attempt: int) -> NodeId:
        """Another one after each failure: it may be the source that is ill."""
        reports = stream.reports
        others = [
            node
            for node in stream.replicas
            if node not in (action.source, action.destination)
            and self._members.reachable(node)
            and node in reports
            and reports[node].epoch == stream.epoch
            and reports[node].state is not ReplicaState.SEALING
            and not reports[node].damaged
        ]
        sources = [action.source, *others]
        return sources[attempt % len(sources)]

    async def _copy(
        self,
        stream: StreamRounds,
        source: NodeId,
        action: repair.Synchronise,
        decide: Decide,
        woken: asyncio.Event,
    ) -> bool:
        """True when the destination has all; False if that is not what is wanted any more."""
        stream_id, destination = stream.stream_id, action.destination
        while _still(action, decide(stream)):
            woken.clear()
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
            await first(woken, COPY_ASKED_EVERY_S)
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
                *(stream_id, source, destination),
                *(answer.copied_llsn, answer.last_llsn, answer.copied_bytes),
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
        # Who was moved away is not needed any more. Who was away, or unregistered, keeps its data.
        moved = len(replicas) == len(before)
        dropping = [node for node in gone if moved and node == stream.leaving]
        record = await self._catalog.swap_replicas(stream.stream_id, replicas, dropping)
        if log.streams.get(stream.stream_id) is not stream:
            return True  # deleted, or taken back, meanwhile
        log.change_replicas(stream.stream_id, replicas)
        stream.joining = record.joining
        adopt_wishes(stream, self._catalog)
        logger.info(
            "stream %d goes on with nodes %s instead of %s", stream.stream_id, replicas, before
        )
        for node in replicas:
            if node not in before:
                self._orders.trim_soon(node, stream.stream_id)
                # There may be no round for a long time, or never again.
                self._committer.tell(node, log, empty=True)
        for node in gone:
            if node in dropping:
                self._orders.drop_soon(node, stream.stream_id)
            await self.forget_if_removed(node)
        return True

    async def forget_if_removed(self, node: NodeId) -> None:
        """A node that an operator removed is forgotten once nothing refers to it any more."""
        record = self._catalog.nodes.get(node)
        if record is None or not record.removing or self._catalog.streams_on(node):
            return
        if not any(keeper.replicas_on(node) for keeper in self._keepers.values()):
            await self._catalog.remove_node(node)
            self._members.forget(node)
            logger.info("node %d is removed", node)
            for keeper in self._keepers.values():
                keeper.node_changed(node, alive=True)

    async def _ask(self, node: NodeId, frame: pb.Frame) -> pb.Frame:
        return await self._members.request(node, frame, self._request_timeout_s)


def _still(copy: repair.Synchronise, action: repair.Action) -> bool:
    """Whether the same replica is to be filled, from whomever."""
    return isinstance(action, repair.Synchronise) and action.destination == copy.destination


def adopt_wishes(stream: StreamRounds, catalog: Catalog) -> None:
    """What the catalog wants of the stream; who joins is written by whoever decides it."""
    record = catalog.streams.get(stream.stream_id)
    if record is not None:
        stream.closed = not catalog.takes_appends(record)
        stream.wanted_running = record.wanted_running and not stream.closed
        stream.wanted_replicas = catalog.wanted_replicas(record)
        stream.leaving = catalog.leaving(record)


async def first(woken: asyncio.Event, delay_s: float) -> None:
    """Wait for the event or the end of the delay."""
    try:
        async with asyncio.timeout(delay_s):
            await woken.wait()
    except TimeoutError:
        pass
