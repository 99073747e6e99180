"""Begin new epochs of copyset loglets without an append, as core.copyset.upkeep decides.

The epoch is taken for a node, which is ordered to recover all epochs before it and sequences from
then on, unless the loglet is closed. A node that registers again is asked to resume as sequencer:
it may have restarted.

Another attempt takes another epoch, unless the node is known to be still recovering: storage nodes
cannot distinguish two recoveries of one epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

from loomlog.core.copyset.nodeset import Member
from loomlog.core.copyset.record import Epoch
from loomlog.core.copyset.upkeep import (
    LogSituation,
    change_of_copies,
    crashed_nodes,
    lossy_shards,
    reason_for_epoch,
)
from loomlog.core.segments import Segment
from loomlog.errors import LoomError, Retryable, Timeout, Unavailable
from loomlog.metadata.background import Background, RetryLoop, StepResult
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.nodes import CopysetNodes
from loomlog.metadata.copyset.records import CopysetRecord
from loomlog.net.timers import Timers
from loomlog.types import LogId, NodeId, ShardId

logger = logging.getLogger(__name__)

AT_ONCE: Final = 64  # recoveries; each asks a few nodes for a few records
SEQUENCER_LOST_S: Final = 1.0  # within this time clients that append replace a sequencer


class Recoveries:
    """Takes epochs for loglets that need one, and has nodes recover them."""

    def __init__(
        self,
        epochs: EpochStore,
        rebuilt: Callable[[LogId], Mapping[ShardId, Epoch]],
        background: Background,
    ) -> None:
        """`rebuilt` returns the shards that are rebuilt, with the last affected epoch."""
        self._rebuilt = rebuilt
        self._catalog, self._records, self._nodes = epochs.catalog, epochs.records, epochs.nodes
        self._epochs = epochs
        self._work = RetryLoop("recovery of segment", self._step, background)
        self._sequencers = RetryLoop("sequencer of segment", self._sequence_step, background)
        self._room = asyncio.Semaphore(AT_ONCE)
        self._failed: dict[LogId, NodeId] = {}  # failed to recover it last time
        self._timers = Timers()

    def stop(self) -> None:
        self._timers.stop()

    # ---- events

    def look(self, record: CopysetRecord) -> None:
        if self.reason(record):
            self._work.wake(record.loglet)

    def look_at_all(self) -> None:
        for record in self._records:
            self.look(record)

    def node_changed(self, node: NodeId, *, alive: bool) -> None:
        if alive:
            self.look_at_all()
        else:
            self._look_at_copies()
            is_certain = self._nodes.silent(node) or self._nodes.is_stopping(node)
            self._look_later(node, 0.0 if is_certain else SEQUENCER_LOST_S)

    def node_joined(self, node: NodeId) -> None:
        """Check the loglets that a node sequenced: it may have restarted."""
        self.look_at_all()
        for record in self._records:
            if record.state.sequencer == node and not record.state.closed:
                self._sequencers.wake(record.loglet)

    def _look_at_copies(self) -> None:
        """Check loglets whose wanted number of copies changes, since appends may be waiting."""
        for record in self._records:
            segment = self._catalog.segment_of(record)
            if segment is None or not record.begun:
                continue
            if change_of_copies(record.state, self._nodes_of(record, segment)):
                self.look(record)

    def _look_later(self, node: NodeId, delay_s: float) -> None:
        """Check after a delay, and again when other nodes should replace this one."""

        def due() -> None:
            self.look_at_all()
            if not self._nodes.alive(node) and (left_s := self._nodes.lost_in_s(node)):
                self._look_later(node, left_s)

        self._timers.set(node, delay_s, due)

    def trouble(self, loglet: LogId) -> str:
        """Return why the last attempt failed; "" if it did not."""
        return self._work.trouble.get(loglet, "")

    # ---- decisions

    def reason(self, record: CopysetRecord) -> str:
        """Return why the loglet needs another epoch; "" if it does not."""
        segment = self._catalog.segment_of(record)
        if segment is None or not segment.start:
            return ""
        standing = LogSituation(
            record.state,
            record.holders,
            nodeset_wanted=segment.settings.nodeset,
            aim=record.aim,
            begun=record.begun,
            ends=self._ends(record),
            renewed=record.loglet in self._epochs.renewing,
            changed=self._is_to_change(record),
        )
        return reason_for_epoch(standing, self._nodes_of(record, segment))

    def _nodes_of(self, record: CopysetRecord, segment: Segment) -> _LogletNodes:
        rebuilt = self._rebuilt(record.loglet)
        avoided = self._avoided(record.loglet)
        return _LogletNodes(self._nodes, self._epochs, record, segment, rebuilt, avoided)

    def _ends(self, record: CopysetRecord) -> bool:
        """Return whether its segment takes no more appends, because a later one is active."""
        log = self._catalog.log_of(record)
        return log is not None and not log.layout.takes_appends(record.loglet)

    def _is_to_change(self, record: CopysetRecord) -> bool:
        """Return whether the nodeset is not yet as operators want it."""
        aim = record.aim
        if not (aim.joined or aim.left):
            return False
        return not aim.is_met(record.state.history[-1].nodeset, self._nodes.usable())

    # ---- actions

    async def _sequence_step(self, loglet: LogId) -> StepResult:
        """Ask a node for the tail, so that it sequences the log or names the node that does. If a
        leader ended after it had taken the newest epoch but before the epoch was used, an older
        sequencer ends now, and another epoch is taken, which recovers both."""
        record = self._records.get(loglet)
        if record is None or record.state.closed or self._catalog.segment_of(record) is None:
            return StepResult.IDLE
        chosen = self._nodes.sequencer(loglet, record.state)
        asked = dict.fromkeys(node for node in (record.state.sequencer, chosen) if node)
        there = [node for node in asked if self._nodes.reachable(node)]
        async with self._room:
            for node in there:
                with suppress(Retryable):
                    tail = await self._nodes.find_tail(node, loglet)
                    if tail.epoch >= record.state.epoch:
                        return StepResult.IDLE
                    await self._nodes.finish(node, loglet)
        return StepResult.FAILED if there else StepResult.IDLE

    async def _step(self, loglet: LogId) -> StepResult:
        async with self._room:
            record = self._records.get(loglet)
            reason = "" if record is None else self.reason(record)
            if record is None or not reason:
                self._failed.pop(loglet, None)
                return StepResult.IDLE
            segment = self._catalog.segment_of(record)
            if segment and self._may_miss(record, segment):
                await self._finish(record)
            node = self._choose(record)
            closed = self._ends(record)
            taken = await self._epochs.take_epoch(loglet, node, record.state.epoch, closed=closed)
        if taken is None:
            return StepResult.DONE
        logger.info("segment %d: node %d recovers: %s", loglet, node, reason)
        try:
            await self._recovered(node, taken)
        except LoomError:
            self._failed[loglet] = node
            raise
        return StepResult.DONE

    def _may_miss(self, record: CopysetRecord, segment: Segment) -> bool:
        """Return whether nodes may have lost or forgotten copies of the newest epoch."""
        state, nodes = record.state, self._nodes_of(record, segment)
        return bool(lossy_shards(state, nodes) or crashed_nodes(state, nodes))

    async def _finish(self, record: CopysetRecord) -> None:
        """Let a reachable sequencer finish, since only it may know what it acknowledged."""
        node = record.state.sequencer
        if self._nodes.reachable(node):
            with suppress(LoomError):
                await self._nodes.finish(node, record.loglet)

    async def _recovered(self, node: NodeId, record: CopysetRecord) -> None:
        """Wait for the recovery, or until another epoch is needed; raise Unavailable if the node is
        lost."""
        while self._nodes.reachable(node):
            with suppress(Timeout):
                await self._nodes.recover(node, self._epochs.for_a_sequencer(record))
                return
            now = self._records.get(record.loglet)
            if now is None or now.state.epoch != record.state.epoch:
                return
            if now.state.chosen not in (node, record.state.chosen):
                return  # an operator has chosen another node since
        raise Unavailable(f"node {node} did not recover it: it is silent")

    def _choose(self, record: CopysetRecord) -> NodeId:
        node = self._nodes.sequencer(record.loglet, record.state, self._avoided(record.loglet))
        if node is None:
            raise Unavailable("no storage node is there that could recover it")
        return node

    def _avoided(self, loglet: LogId) -> list[NodeId]:
        return [self._failed[loglet]] if loglet in self._failed else []


class _LogletNodes:
    """The nodes as core.copyset.upkeep asks about them, for one loglet."""

    def __init__(
        self,
        nodes: CopysetNodes,
        epochs: EpochStore,
        record: CopysetRecord,
        segment: Segment,
        rebuilt: Mapping[ShardId, Epoch],
        avoided: Collection[NodeId],
    ) -> None:
        """`avoided` failed to recover it last time."""
        self._rebuilt = rebuilt
        self._avoided = avoided
        self._nodes = nodes
        self._epochs = epochs
        self._record = record
        self._segment = segment
        self.alive = nodes.alive
        self.has = nodes.has
        self.leaves = nodes.hands_over
        self.is_unfit = nodes.is_unfit
        self.is_given_up = nodes.is_given_up
        self.takers = nodes.takers
        self.life = nodes.life

    def lost_through(self, shard: ShardId) -> Epoch:
        lost_through = self._nodes.lost_through(shard, self._record.loglet)
        return max(lost_through, self._rebuilt.get(shard, 0))

    def next_sequencer(self) -> NodeId | None:
        return self._nodes.sequencer(self._record.loglet, self._record.state, self._avoided)

    def next_nodeset(self) -> tuple[Member, ...]:
        return self._epochs.next_nodeset(self._segment, self._record.state)

    def next_short(self) -> tuple[ShardId, ...]:
        return self._epochs.next_short(self._segment, self._record.state)
