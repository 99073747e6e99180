"""Begin new epochs of copyset loglets without an append, as core.copyset.upkeep decides.

The epoch is taken for a node, which is ordered to recover all epochs before it and sequences from
then on, unless the loglet is closed. A node that registers again is asked to resume as sequencer:
it may have restarted.

Another attempt takes another epoch, unless the node is known to be still recovering: storage nodes
cannot distinguish two recoveries of one epoch. A node that is reachable and does not recover a
loglet is replaced after a while (core.copyset.replacements).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from loomlog.core.copyset.log_state import is_recovered
from loomlog.core.copyset.nodeset import Member
from loomlog.core.copyset.record import Epoch
from loomlog.core.copyset.replacements import Replacements, can_go_on
from loomlog.core.copyset.upkeep import (
    LogSituation,
    change_of_copies,
    crashed_nodes,
    lossy_shards,
    reason_for_epoch,
)
from loomlog.core.segments import Segment
from loomlog.errors import LoomError, Retryable, Timeout, Unavailable
from loomlog.metadata.background import Background, Later, RetryLoop, StepResult
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
        self._replacements = Replacements()
        self._timers = Timers()
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        self._timers.stop()

    # ---- events

    def look(self, record: CopysetRecord) -> None:
        self._look_at_sequencer(record)
        if self.reason(record):
            self._work.wake(record.loglet)

    def _look_at_sequencer(self, record: CopysetRecord) -> None:
        """Look again when its sequencer is due to be replaced, unless it recovers the loglet."""
        loglet, now_s = record.loglet, self._loop.time()
        if self._catalog.segment_of(record) is None:
            self._replacements.forget(loglet)
            return
        state = record.state
        is_possible = not is_recovered(state) and self._can_go_on(record)
        left_s = self._replacements.look(loglet, state, is_possible, now_s)
        if left_s:
            self._timers.set(_Due(loglet), left_s, lambda: self._look_at(loglet))

    def _look_at(self, loglet: LogId) -> None:
        if (record := self._records.get(loglet)) is not None:
            self.look(record)

    def _can_go_on(self, record: CopysetRecord) -> bool:
        state, nodes = record.state, self._nodes
        failing = nodes.failing(state)
        there = [shard for shard in record.holders if nodes.has(shard) and shard not in failing]
        return can_go_on(state, there, list(filter(nodes.is_given_up, record.holders)))

    def node_chosen(self, loglet: LogId, node: NodeId) -> None:
        """Called when an operator has chosen the sequencer of a loglet."""
        self._replacements.chosen(loglet, node)
        self._look_at(loglet)

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
            overdue=self._is_overdue(record),
        )
        return reason_for_epoch(standing, self._nodes_of(record, segment))

    def _nodes_of(self, record: CopysetRecord, segment: Segment) -> _LogletNodes:
        rebuilt = self._rebuilt(record.loglet)
        return _LogletNodes(self._nodes, self._epochs, record, segment, rebuilt)

    def _is_overdue(self, record: CopysetRecord) -> bool:
        """Return whether another node should try to recover the loglet."""
        if not self._replacements.is_due(record.loglet, record.state, self._loop.time()):
            return False
        sequencer = record.state.sequencer
        return self._nodes.sequencer(record.loglet, record.state, without=sequencer) != sequencer

    def avoided(self, loglet: LogId) -> list[NodeId]:
        """Return the nodes that failed to recover a loglet, the one that failed last comes last."""
        return self._replacements.avoided(loglet, self._loop.time())

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

    async def _step(self, loglet: LogId) -> StepResult | Later:
        async with self._room:
            record = self._records.get(loglet)
            reason = "" if record is None else self.reason(record)
            if record is None or not reason:
                return StepResult.IDLE
            if self._is_overdue(record):
                self._replacements.failed(loglet, record.state, self._loop.time())
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
        except LoomError as error:
            return self._failed(node, taken, error)
        return StepResult.DONE

    def _failed(self, node: NodeId, taken: CopysetRecord, error: LoomError) -> StepResult | Later:
        """Choose what follows when the recovery has ended, in an epoch that a node was given."""
        loglet, now = taken.loglet, self._records.get(taken.loglet)
        if now is None or (now.state.epoch, now.state.last_clean) > (
            taken.state.epoch,
            taken.state.last_clean,
        ):
            return StepResult.DONE  # another node recovers it
        logger.warning("segment %d: node %d: %s", loglet, node, error)
        self._work.trouble[loglet] = str(error)
        is_to_blame = self._nodes.reachable(node)
        if not (is_to_blame and self._replacements.failed(loglet, now.state, self._loop.time())):
            self._replacements.interrupted(loglet)
        return Later(self._replacements.delay_s(loglet))

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
        lost, or has had its time."""
        while self._nodes.reachable(node):
            with suppress(Timeout):
                await self._nodes.recover(node, self._epochs.for_a_sequencer(record))
                return
            now = self._records.get(record.loglet)
            if now is None or now.state.epoch != record.state.epoch:
                return
            if now.state.chosen not in (node, record.state.chosen):
                return  # an operator has chosen another node since
            self._look_at_sequencer(now)
            if self._is_overdue(now):
                return
        raise Unavailable(f"node {node} did not recover it: it is silent")

    def _choose(self, record: CopysetRecord) -> NodeId:
        node = self._nodes.sequencer(record.loglet, record.state)
        if node is None:
            raise Unavailable("no storage node is there that could recover it")
        return node


class _Due(NamedTuple):
    """The key of a timer: its node may have to be replaced."""

    loglet: LogId


class _LogletNodes:
    """The nodes as core.copyset.upkeep asks about them, for one loglet."""

    def __init__(
        self,
        nodes: CopysetNodes,
        epochs: EpochStore,
        record: CopysetRecord,
        segment: Segment,
        rebuilt: Mapping[ShardId, Epoch],
    ) -> None:
        self._rebuilt = rebuilt
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
        return self._nodes.sequencer(self._record.loglet, self._record.state)

    def next_nodeset(self) -> tuple[Member, ...]:
        return self._epochs.next_nodeset(self._segment, self._record.state)

    def next_short(self) -> tuple[ShardId, ...]:
        return self._epochs.next_short(self._segment, self._record.state)
