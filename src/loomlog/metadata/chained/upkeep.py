"""Maintain chained loglets: core.chained.upkeep decides what to do, this module does it.

Each loglet has four kinds of concurrent work, each only while there is something to do: chains are
repaired, unneeded replicas are removed, the loglet is trimmed (removal.py), and unheard replicas
are compared with it (comparer.py). Events wake them: a node registered, fell silent or came back, a
log changed, a client cannot reach a node, a new epoch began.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from loomlog.core.chained import upkeep
from loomlog.core.chained.chain import Replica
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.messages import Check, Done, EpochOver, Refused
from loomlog.core.chained.replica import DAMAGED, FORGETFUL, NOT_HERE
from loomlog.core.requests import Lost
from loomlog.errors import Busy, NotFound, Unavailable
from loomlog.metadata.background import RetryLoop, StepResult
from loomlog.metadata.chained.comparer import ChainComparer
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.epochs import Epochs
from loomlog.metadata.chained.newcomers import Newcomers
from loomlog.metadata.chained.nodes import ChainNodes
from loomlog.metadata.chained.records import ChainedCatalog
from loomlog.metadata.chained.removal import ChainRemover, ChainTrimmer
from loomlog.metadata.chained.sequencers import Sequencers
from loomlog.metadata.nodes.placement import UNABLE_S
from loomlog.metadata.protocol import KeeperContext
from loomlog.net.timers import Timers
from loomlog.types import LogId, NodeId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

REPORT_WAIT_S: Final = 5.0  # for a new epoch; less than a client waits for its answer
CHECKS_MAX: Final = 64  # at one time


class Upkeep:
    """Repairs the chains of all loglets."""

    def __init__(
        self,
        context: KeeperContext,
        chained: ChainedCatalog,
        sequencers: Sequencers,
        driver: Driver,
        nodes: ChainNodes,
    ) -> None:
        catalog, background = context.catalog, context.background
        self._catalog = catalog
        self._chained = chained
        self._sequencers = sequencers
        self._driver = driver
        self._nodes = nodes
        self._background = background
        self.epochs = Epochs(catalog, chained, sequencers, driver, nodes, self.wake)
        self.newcomers = Newcomers(self.epochs, context.settings.sync_bytes_per_s)
        self._node_left = context.forget_if_removed
        self._repair = RetryLoop("upkeep of segment", self._repair_step, background)
        self.remover = ChainRemover(self.epochs, background, self._is_needless)
        self.trimmer = ChainTrimmer(self.epochs, background)
        self.comparer = ChainComparer(self.epochs, background, self._repair.wake)
        self._unfit: set[Replica] = set()
        self._damaged: set[Replica] = set()  # unfit, because blocks are damaged
        self._missing: set[Replica] = set()  # unfit, because they do not exist
        self.unverified: set[Replica] = (
            set()
        )  # their nodes are back, but have not been asked for them yet
        self._joining: set[Replica] = set()  # by this leader
        self._wanted: set[LogId] = set()  # an append was refused for lack of space
        self._checks = asyncio.Semaphore(CHECKS_MAX)
        self._timers = Timers()

    def start(self) -> None:
        """Begin an epoch of this term for every loglet that takes appends."""
        for record in self._chained:
            self.wake(record.loglet)

    def stop(self) -> None:
        self._timers.stop()

    # ---- events

    def wake(self, loglet: LogId) -> None:
        record = self._chained.get(loglet)
        if record is not None:
            self._repair.wake(loglet)
            self._look(record)

    def _look(self, record: ChainedRecord) -> None:
        """Wake the other work on a loglet."""
        self.remover.look(record)
        self.trimmer.look(record)
        self.comparer.look(record)

    def log_changed(self, log_id: LogId) -> None:
        for record in self._chained.of_log(log_id):
            self.wake(record.loglet)

    def node_changed(self, node: NodeId, *, alive: bool) -> None:
        """Called when a node fell silent, is back, is drained or has other restrictions. It may be
        a spare that loglets wait for."""
        self._nodes.note_full(node)
        for record in self._chained:
            if not isinstance(self.decide(record), upkeep.Wait):
                self._repair.wake(record.loglet)
            self._look(record)
        if not alive:
            delay_s = self._nodes.lost_in_s(node)
            self._timers.set(node, delay_s, partial(self.node_changed, node, alive=True))

    def node_joined(self, node: NodeId) -> None:
        """Check that a registered node has the replicas that it should have."""
        self._nodes.came_back(node)
        self.remover.node_joined(node)
        self._unfit = {replica for replica in self._unfit if replica.node_id != node}
        self._damaged.intersection_update(self._unfit)
        self._missing.intersection_update(self._unfit)
        for record in filter(lambda record: record.made, self._chained.on_node(node)):
            replicas = record.projection.replicas
            self.unverified.update(replica for replica in replicas if replica.node_id == node)
            self._background.spawn(self._verify(record, node), f"look at node {node}")
        self.node_changed(node, alive=True)

    # ---- replicas without room

    def lacks_space(self, loglet: LogId) -> None:
        """Called when an append is refused because a replica has no room."""
        if loglet not in self._wanted:
            self._wanted.add(loglet)
            self.wake(loglet)

    def full(self, record: ChainedRecord) -> frozenset[Replica]:
        """Return the replicas that appends wait for because they have no room."""
        if record.loglet not in self._wanted:
            return frozenset()
        full = self._nodes.full(record)
        if not full:
            self._wanted.discard(record.loglet)
        return full

    # ---- unfit replicas

    async def _verify(self, record: ChainedRecord, node: NodeId) -> None:
        """Check that the replicas of a node have forgotten nothing, and that their disk works."""
        for replica in record.projection.replicas:
            if replica.node_id != node:
                continue
            async with self._checks:
                answer = await self._driver.ask(replica, Check(record.projection.epoch))
            self.unverified.discard(replica)
            match answer:
                case Lost():
                    self.unverified.add(replica)
                    self._check_later(replica)
                case Refused() if answer == FORGETFUL:
                    self._is_fit(replica)
                    self.epochs.unfinished.add(record.loglet)
                    self.wake(record.loglet)
                case Refused(reason):
                    if answer == DAMAGED:
                        self._damaged.add(replica)
                    if answer == NOT_HERE:
                        self._missing.add(replica)
                    else:
                        self._missing.discard(replica)
                    self._is_unfit(replica, reason)
                case EpochOver(epoch) if epoch > self._epoch_of(record.loglet):
                    self._is_fit(replica)  # it was sealed for an epoch that failed
                    self.epochs.unfinished.add(record.loglet)
                    self.wake(record.loglet)
                case Done():
                    self._is_fit(replica)

    def _is_fit(self, replica: Replica) -> None:
        self.unverified.discard(replica)
        self._unfit.discard(replica)
        self._damaged.discard(replica)
        self._missing.discard(replica)

    def _is_unfit(self, replica: Replica, reason: str) -> None:
        logger.warning(
            "segment %d: its replica on node %d is unusable: %s",
            replica.log_id,
            replica.node_id,
            reason,
        )
        self._unfit.add(replica)
        self.wake(replica.log_id)
        self._check_later(replica)

    def _check_later(self, replica: Replica) -> None:
        self._timers.set(replica, UNABLE_S, partial(self._look_again, replica))

    def _look_again(self, replica: Replica) -> None:
        """Try an unfit replica again, because the log waits for it if no other one has its
        chain."""
        record, doubtful = self._chained.get(replica.log_id), self._unfit | self.unverified
        if record is None or replica not in doubtful.intersection(record.projection.replicas):
            self._is_fit(replica)
            return

        async def look() -> None:
            await self._verify(record, replica.node_id)
            self.wake(replica.log_id)

        self._background.spawn(look(), f"look at node {replica.node_id}")

    def _epoch_of(self, loglet: LogId) -> int:
        record = self._chained.get(loglet)
        return record.projection.epoch if record else 0

    async def report(self, request: pb.ReportChain) -> None:
        """Wait for an epoch without a node that neither a client nor this process can reach."""
        loglet, node = request.loglet_id, request.storage_node_id
        if self._used(loglet).projection.epoch > request.epoch:
            return
        self._nodes.reported(loglet, node)
        newer = asyncio.ensure_future(self.epochs.newer_than(loglet, request.epoch))
        try:
            if self._nodes.reachable(node):
                await self._verify_until(newer, self._used(loglet), node)
            if not newer.done() and isinstance(self.decide(self._used(loglet)), upkeep.Wait):
                raise Unavailable(
                    f"node {node} still reports, or no node can replace it: try again"
                )
            self.wake(loglet)
            async with asyncio.timeout(REPORT_WAIT_S):
                await newer
        except TimeoutError:
            raise Unavailable(f"segment {loglet} does not get a new epoch yet") from None
        finally:
            newer.cancel()

    async def _verify_until(
        self, newer: asyncio.Future[None], record: ChainedRecord, node: NodeId
    ) -> None:
        """Verify a node, unless a newer epoch begins first because it is missed."""
        verifying = asyncio.ensure_future(self._verify(record, node))
        try:
            ends = (verifying, newer)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED, timeout=REPORT_WAIT_S)
            if verifying.done():
                verifying.result()
        finally:
            verifying.cancel()

    def _used(self, loglet: LogId) -> ChainedRecord:
        """Return the record of a loglet whose segment is part of a log."""
        record = self._chained.get(loglet)
        if record is None or self._catalog.segment_of(record) is None:
            raise NotFound(f"there is no segment {loglet} of protocol chained")
        return record

    def trouble(self, loglet: LogId) -> str:
        """Return why the last step failed; "" if it succeeded."""
        return self._repair.trouble.get(loglet, "")

    # ---- decisions

    def decide(self, record: ChainedRecord) -> upkeep.Action:
        standing = self.standing(record)
        if standing is None:
            return upkeep.Wait()
        return upkeep.decide(standing, self._nodes)

    def _is_needless(self, record: ChainedRecord, replica: Replica) -> bool:
        """Return whether a replica that is no longer used may be removed from its node."""
        standing = self.standing(record)
        return standing is None or upkeep.is_needless(standing, replica, self._nodes)

    def standing(self, record: ChainedRecord) -> upkeep.ChainsStanding | None:
        """Return the state of a loglet; None if it is not created yet, or no longer belongs to a
        log."""
        segment = self._catalog.segment_of(record)
        if segment is None or not record.made:
            return None
        used = frozenset(record.projection.replicas)
        lost = frozenset(filter(self._nodes.lost, record.replicas))
        return upkeep.ChainsStanding(
            record,
            segment.settings.replicas,
            self._why_epoch(record),
            used.intersection(lost | self._unfit),
            lost,
            used.intersection(self._damaged),
            frozenset(r for r in used & self._missing if self._nodes.serves_chains(r.node_id)),
            self.full(record),
        )

    def _why_epoch(self, record: ChainedRecord) -> str:
        if record.loglet in self.epochs.unfinished:
            return "an epoch was begun and did not come into force"
        if record.begun and not record.projection.closed and record.loglet not in self._sequencers:
            return "its sequencer is gone"
        return ""

    # ---- chains

    async def _repair_step(self, loglet: LogId) -> StepResult:
        record = self._chained.get(loglet)
        segment = None if record is None else self._catalog.segment_of(record)
        if record is None or segment is None or not record.made:
            return StepResult.IDLE
        if not record.begun and segment.start:
            await self.epochs.begin(segment)
            return StepResult.DONE
        if stale := [r for r in record.joining if r not in self._joining]:
            # Of an earlier leader, so nothing fills them.
            await self._chained.change(loglet, lambda record: record.give_up(*stale))
            return StepResult.DONE
        match self.decide(record):
            case upkeep.NewEpoch() as wanted:
                await self._begin_epoch(record, wanted)
                return StepResult.DONE
            case upkeep.Join(chain, node) if record.begun:
                await self.join(record, chain, node)
                return StepResult.DONE
        for replica in record.needless:
            await self._node_left(replica.node_id)
        return StepResult.IDLE

    async def _begin_epoch(self, record: ChainedRecord, wanted: upkeep.NewEpoch) -> None:
        """Begin an epoch. If that fails, the next step drops the fresh replicas."""
        fresh = tuple(
            Replica(node, record.loglet, chain, self._catalog.new_stamp())
            for chain, node in wanted.fresh
        )
        self._joining.update(fresh)
        try:
            damaged = sorted(wanted.damaged)
            await self._chained.change(
                record.loglet,
                lambda record: (
                    record.note_damaged(*damaged).note_witnesses(*wanted.given_up).admit(*fresh)
                ),
            )
            goal, epoch = wanted.goal(*fresh), record.projection.epoch
            new = await self.epochs.attempt(record.loglet, goal, wanted.reason, after=epoch)
        finally:
            self._joining.difference_update(fresh)
        for replica in wanted.given_up:  # if it is already back, it has to learn that it left
            self._nodes.register_again(replica.node_id)
        for replica in set(fresh).intersection(new.replicas):
            logger.warning(
                "segment %d: no replica of chain %d was whole: what is left of it is on node %d",
                record.loglet,
                replica.chain,
                replica.node_id,
            )

    async def join(self, record: ChainedRecord, chain: int, node: NodeId) -> Replica:
        """Begin to fill a replica on a node, which then joins the chain. Raise Busy if the replicas
        are not those of the record any more, on which this was decided."""
        replica = Replica(node, record.loglet, chain, self._catalog.new_stamp())

        def admitted(now: ChainedRecord) -> ChainedRecord:
            if now.replicas != record.replicas:
                raise Busy(f"the replicas of chain {chain} have just changed: try again")
            return now.admit(replica)

        self._joining.add(replica)
        try:
            await self._chained.change(record.loglet, admitted)
        except BaseException:
            self._joining.discard(replica)
            raise
        logger.info("segment %d: node %d joins chain %d", record.loglet, node, chain)
        self._background.spawn(self._admit(replica), f"copying to node {node}")
        return replica

    async def _admit(self, replica: Replica) -> None:
        try:
            await self.newcomers.admit(replica)
        finally:
            self._joining.discard(replica)
            self.wake(replica.log_id)
            self._timers.set(replica, UNABLE_S, partial(self.wake, replica.log_id))
