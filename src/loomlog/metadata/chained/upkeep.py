"""Keeps every chained loglet as it should be: asks core.chained.upkeep what to do, and does it.

Three things go on beside each other for a loglet, each only while there is something to do: its
chains are repaired; replicas that nobody needs are removed from their nodes; it is trimmed. Events
wake them: a node registered, fell silent or came back, a log changed, a client cannot reach a node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final

from loomlog.core.chained import upkeep
from loomlog.core.chained.messages import Check, Done, EpochOver, Refused, Remove
from loomlog.core.chained.outcomes import Interrupted, Trimmed
from loomlog.core.chained.projection import Replica
from loomlog.core.chained.reconfigure import Goal
from loomlog.core.chained.replica import NOT_HERE
from loomlog.core.chained.trimming import trim
from loomlog.core.segments import Segment
from loomlog.errors import NotFound, Unavailable
from loomlog.metadata.background import Background
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.chained.catalog import ChainedCatalog
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.epochs import Epochs
from loomlog.metadata.chained.filling import Filling
from loomlog.metadata.chained.nodes import LOOK_S, ChainNodes
from loomlog.metadata.chained.sequencers import Sequencers
from loomlog.metadata.insisting import Insisting, Progress
from loomlog.metadata.node_choice import UNABLE_S
from loomlog.metadata.records import ChainedRecord
from loomlog.types import Glsn, LogId, NodeId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

REPORT_WAIT_S: Final = 5.0  # for a new epoch; less than what a client waits for its answer
CHECKS_MAX: Final = 64  # at one time


class Upkeep:
    def __init__(
        self,
        catalog: Catalog,
        chained: ChainedCatalog,
        sequencers: Sequencers,
        driver: Driver,
        nodes: ChainNodes,
        background: Background,
        sync_bytes_per_s: int,
        node_left: Callable[[NodeId], Awaitable[None]],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._catalog = catalog
        self._chained = chained
        self._sequencers = sequencers
        self._driver = driver
        self._nodes = nodes
        self._background = background
        self.epochs = Epochs(chained, sequencers, driver, nodes, self.wake)
        self.filling = Filling(chained, driver, self.epochs, nodes, sync_bytes_per_s)
        self._node_left = node_left
        self._repair = Insisting("upkeep of segment", self._repair_step, background)
        self._removal = Insisting("removal of replicas of segment", self._remove_step, background)
        self._trim = Insisting("trim of segment", self._trim_step, background)
        self._unfit: set[Replica] = set()
        self._joining: set[Replica] = set()  # by this leader
        self._checks = asyncio.Semaphore(CHECKS_MAX)
        self._timers: dict[object, asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Every loglet that takes appends needs an epoch of this term."""
        for record in self._chained:
            self.wake(record.loglet)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    # ---- waking

    def wake(self, loglet: LogId) -> None:
        record = self._chained.get(loglet)
        if record is None:
            return
        self._repair.wake(loglet)
        if record.dropping or self._segment(record) is None:
            self._removal.wake(loglet)
        if not self.is_trimmed(record):
            self._trim.wake(loglet)

    def log_changed(self, log_id: LogId) -> None:
        for record in self._chained.of_log(log_id):
            self.wake(record.loglet)

    def node_changed(self, node: NodeId, *, alive: bool) -> None:
        """It fell silent, or speaks again, or is drained: also spares are waited for."""
        for record in self._chained:
            self.wake(record.loglet)
        if not alive:
            delay_s = self._nodes.lost_in_s(node)
            self._later(node, delay_s, partial(self.node_changed, node, alive=True))

    def node_joined(self, node: NodeId) -> None:
        """It registered: is what it should have there?"""
        self._nodes.came_back(node)
        self._unfit = {replica for replica in self._unfit if replica.node_id != node}
        for record in self._chained.on_node(node):
            self._background.spawn(self._verify(record, node), f"look at node {node}")
        self.node_changed(node, alive=True)

    def _later(self, key: object, delay_s: float, wake: Callable[[], None]) -> None:
        if key in self._timers:
            self._timers[key].cancel()

        def due() -> None:
            self._timers.pop(key, None)
            wake()

        self._timers[key] = self._loop.call_later(delay_s, due)

    # ---- replicas that are not what they should be

    async def _verify(self, record: ChainedRecord, node: NodeId) -> None:
        """Whether the replicas of a node have not forgotten anything."""
        for replica in record.projection.replicas:
            if replica.node_id != node:
                continue
            async with self._checks:
                answer = await self._driver.ask(replica, Check(record.projection.epoch))
            match answer:
                case Refused(reason):
                    logger.warning(
                        "segment %d: its replica on node %d is of no use: %s",
                        *(record.loglet, node, reason),
                    )
                    self._unfit.add(replica)
                    self.wake(record.loglet)
                case EpochOver(epoch) if epoch > self._epoch_of(record.loglet):
                    self.epochs.unfinished.add(record.loglet)
                    self.wake(record.loglet)

    def _epoch_of(self, loglet: LogId) -> int:
        record = self._chained.get(loglet)
        return record.projection.epoch if record else 0

    async def report(self, request: pb.ReportChain) -> None:
        """A client cannot reach a node: wait for an epoch without it, if we miss it, too."""
        loglet, node = request.loglet_id, request.storage_node_id
        record = self._chained.get(loglet)
        if record is None or self._segment(record) is None:
            raise NotFound(f"there is no segment {loglet} of protocol chained")
        if record.projection.epoch > request.epoch:
            return
        if self._nodes.reachable(node):
            await self._verify(record, node)
        else:
            self._nodes.reported(loglet, node)
        if isinstance(self.decide(record), upkeep.Wait):
            raise Unavailable(f"node {node} is heard from, or nobody can take its place: try again")
        self.wake(loglet)
        try:
            async with asyncio.timeout(REPORT_WAIT_S):
                await self.epochs.newer_than(loglet, request.epoch)
        except TimeoutError:
            raise Unavailable(f"segment {loglet} does not get a new epoch yet") from None

    def trouble(self, loglet: LogId) -> str:
        """Why the last step failed."""
        return self._repair.trouble.get(loglet, "")

    # ---- what is wanted

    def _segment(self, record: ChainedRecord) -> Segment | None:
        """Of its log; None: it is not, or not any more, a part of it."""
        log = self._catalog.log_of(record)
        if log is None:
            return None
        chain = log.chain
        for segment in chain.segments:
            if segment.loglet == record.loglet:
                return segment
        if chain.successor is not None and chain.successor.loglet == record.loglet:
            return Segment(record.loglet, chain.successor.settings, 0)
        return None

    def decide(self, record: ChainedRecord) -> upkeep.Action:
        segment = self._segment(record)
        if segment is None or not record.made:
            return upkeep.Wait()
        loglet = upkeep.Loglet(
            record.projection,
            segment.settings.replicas,
            self._why_epoch(record),
            frozenset(self._unfit.intersection(record.projection.replicas)),
            record.joining,
            record.dropping,
        )
        return upkeep.decide(loglet, self._nodes.of(record))

    def _why_epoch(self, record: ChainedRecord) -> str:
        if record.loglet in self.epochs.unfinished:
            return "an epoch was begun and did not come into force"
        if record.begun and not record.projection.closed and record.loglet not in self._sequencers:
            return "the one who handed out positions is gone"
        return ""

    # ---- chains

    async def _repair_step(self, loglet: LogId) -> Progress:
        record = self._chained.get(loglet)
        segment = None if record is None else self._segment(record)
        if record is None or segment is None or not record.made:
            return Progress.IDLE
        if not record.begun and segment.start:
            await self.epochs.begin(segment)
            return Progress.DONE
        if stale := [r for r in record.joining if r not in self._joining]:
            await self._chained.drop(loglet, *stale)  # of an earlier leader: nobody fills them
            return Progress.DONE
        match self.decide(record):
            case upkeep.NewEpoch(reason, leaving):
                await self.epochs.attempt(loglet, Goal(leaving=leaving), reason)
                return Progress.DONE
            case upkeep.Join(chain, node) if record.begun:
                await self._join(record, chain, node)
                return Progress.DONE
        for replica in record.dropping:
            await self._node_left(replica.node_id)
        return Progress.IDLE

    async def _join(self, record: ChainedRecord, chain: int, node: NodeId) -> None:
        replica = Replica(node, record.loglet, chain, record.births + 1)
        self._joining.add(replica)
        try:
            await self._chained.change(
                record.loglet,
                lambda record: replace(
                    record, births=replica.birth, joining=(*record.joining, replica)
                ),
            )
        except BaseException:
            self._joining.discard(replica)
            raise
        logger.info("segment %d: node %d joins chain %d", record.loglet, node, chain)
        self._background.spawn(self._fill(replica), f"filling of node {node}")

    async def _fill(self, replica: Replica) -> None:
        try:
            await self.filling.fill(replica)
        finally:
            self._joining.discard(replica)
            self.wake(replica.log_id)
            self._later(replica, UNABLE_S, partial(self.wake, replica.log_id))

    # ---- replicas that nobody needs

    async def _remove_step(self, loglet: LogId) -> Progress:
        record = self._chained.get(loglet)
        if record is None:
            return Progress.IDLE
        if self._segment(record) is None:
            return await self._remove_all(record)
        if not record.dropping:
            return Progress.IDLE
        return await self._remove(record, record.dropping)

    async def _remove_all(self, record: ChainedRecord) -> Progress:
        """Its segment is gone: the record stays until the last replica is."""
        self._sequencers.end(record.loglet)
        if any(record.projection.replicas) or record.joining:
            emptied = record.projection._replace(chains=())
            record = await self._chained.change(
                record.loglet,
                lambda r: replace(r, projection=emptied, joining=(), dropping=r.replicas),
            )
        if record.dropping:
            return await self._remove(record, record.dropping)
        await self._chained.forget(record.loglet)
        self.epochs.forget(record.loglet)
        logger.info("segment %d is gone", record.loglet)
        return Progress.IDLE

    async def _remove(self, record: ChainedRecord, replicas: tuple[Replica, ...]) -> Progress:
        """From the nodes that can be reached, and from those that are forgotten."""
        known = self._catalog.nodes
        gone = [replica for replica in replicas if replica.node_id not in known]
        there = [replica for replica in replicas if self._nodes.reachable(replica.node_id)]
        answers = await asyncio.gather(*(self._driver.ask(r, Remove()) for r in there))
        pairs = zip(there, answers, strict=True)
        removed = [r for r, answer in pairs if isinstance(answer, Done) or answer == NOT_HERE]
        if gone or removed:
            await self._chained.removed(record.loglet, *gone, *removed)
            self._repair.wake(record.loglet)  # it may be a spare now
            return Progress.DONE
        return Progress.FAILED if there else Progress.IDLE

    # ---- trim

    async def _trim_step(self, loglet: LogId) -> Progress:
        record = self._chained.get(loglet)
        target = 0 if record is None else self._trim_target(record)
        if record is None or target <= record.trimmed or loglet in self.epochs.unfinished:
            return Progress.IDLE
        outcome = await self._driver.drive(loglet, trim(record.projection, target))
        if isinstance(outcome, Trimmed):
            await self._chained.change(loglet, lambda record: replace(record, trimmed=target))
            logger.info("segment %d is trimmed up to position %d", loglet, target)
            return Progress.DONE
        if isinstance(outcome, Interrupted):
            logger.info("segment %d is not trimmed yet: %s", loglet, outcome.reason)
        return Progress.FAILED

    def _trim_target(self, record: ChainedRecord) -> Glsn:
        """How far it is to be trimmed; 0: nothing of it."""
        segment, log = self._segment(record), self._catalog.log_of(record)
        if segment is None or log is None or not record.begun or log.trimmed < segment.start:
            return 0
        return log.trimmed if segment.end is None else min(log.trimmed, segment.end)

    async def trimmed(self, log_id: LogId) -> None:
        """Wait until the segments of a log are trimmed as far as it is."""
        while not all(map(self.is_trimmed, self._chained.of_log(log_id))):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    def is_trimmed(self, record: ChainedRecord) -> bool:
        return self._trim_target(record) <= record.trimmed
