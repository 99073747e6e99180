"""Copyset loglets that get a new epoch without an append: it is taken for a node, which is told to
recover all before it, and sequences from then on, unless the loglet is closed.

That is so when a segment ends, when a node of the nodeset leaves or is lost for long, when there
are nodes again for a nodeset that has become smaller by that, and when the node that sequenced is
gone: readers would wait for what it acknowledged last until somebody appends. A node that registers
again is asked, for it may have forgotten that it sequences.

Another attempt is another epoch, unless the node is known to be still at it: two recoveries of one
epoch would not be told apart by storage nodes.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from loomlog.core.copyset.log_state import can_be_recovered, has_shrunk, is_recovered
from loomlog.core.segments import Segment
from loomlog.errors import LoomError, Retryable, Timeout, Unavailable
from loomlog.metadata.background import Background
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.copyset.catalog import CopysetCatalog
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.nodes import CopysetNodes
from loomlog.metadata.copyset.orders import CopysetOrders
from loomlog.metadata.insisting import Insisting, Progress
from loomlog.metadata.records import CopysetRecord
from loomlog.types import LogId, NodeId

logger = logging.getLogger(__name__)

AT_ONCE: Final = 64  # each asks a few nodes for a few records
SEQUENCER_LOST_S: Final = 1.0  # so long those who append may make another node take over


class Recoveries:
    def __init__(
        self,
        catalog: Catalog,
        copysets: CopysetCatalog,
        epochs: EpochStore,
        nodes: CopysetNodes,
        orders: CopysetOrders,
        background: Background,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._catalog = catalog
        self._copysets = copysets
        self._epochs = epochs
        self._nodes = nodes
        self._orders = orders
        self._work = Insisting("recovery of segment", self._step, background)
        self._sequencers = Insisting("sequencer of segment", self._sequence_step, background)
        self._room = asyncio.Semaphore(AT_ONCE)
        self._failed: dict[LogId, NodeId] = {}  # did not recover it, the last time
        self._timers: dict[NodeId, asyncio.TimerHandle] = {}

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    # ---- waking

    def look(self, record: CopysetRecord) -> None:
        if self.reason(record):
            self._work.wake(record.loglet)

    def look_at_all(self) -> None:
        for record in self._copysets:
            self.look(record)

    def node_changed(self, node: NodeId, *, alive: bool) -> None:
        if alive:
            self.look_at_all()
        else:
            self._look_later(node, SEQUENCER_LOST_S)

    def node_joined(self, node: NodeId) -> None:
        """It may have been started anew: then what it sequenced needs another sequencer."""
        self.look_at_all()
        for record in self._copysets:
            if record.state.sequencer == node and not record.state.closed:
                self._sequencers.wake(record.loglet)

    def _look_later(self, node: NodeId, delay_s: float) -> None:
        """And again when others are to take the node's place."""
        if node in self._timers:
            self._timers[node].cancel()

        def due() -> None:
            del self._timers[node]
            self.look_at_all()
            if not self._nodes.alive(node) and (left_s := self._nodes.lost_in_s(node)):
                self._look_later(node, left_s)

        self._timers[node] = self._loop.call_later(delay_s, due)

    def trouble(self, loglet: LogId) -> str:
        """Why the last attempt failed."""
        return self._work.trouble.get(loglet, "")

    # ---- what is wanted

    def reason(self, record: CopysetRecord) -> str:
        """Why it needs another epoch; empty: it does not."""
        segment = self._segment(record)
        if segment is None or not segment.start:
            return ""
        state = record.state
        if self._ends(record):
            return "" if state.closed and is_recovered(state) else "its segment ends"
        if not record.begun or not state.sequencer:
            return ""
        reason = self._why_not_as_it_is(record, segment)
        alive = [node for node in record.holders if self._nodes.alive(node)]
        return reason if reason and can_be_recovered(state, alive) else ""

    def _segment(self, record: CopysetRecord) -> Segment | None:
        log = self._catalog.log_of(record)
        return None if log is None else log.segment_of(record.loglet)

    def _ends(self, record: CopysetRecord) -> bool:
        """Its segment takes no more appends: what comes after it is there."""
        log = self._catalog.log_of(record)
        return log is not None and not log.chain.takes_appends(record.loglet)

    def _why_not_as_it_is(self, record: CopysetRecord, segment: Segment) -> str:
        state, nodes = record.state, self._nodes
        if not nodes.alive(state.sequencer):
            return f"node {state.sequencer}, which sequenced it, is gone"
        if nodes.leaves(state.sequencer) and not nodes.leaves(nodes.sequencer(record.loglet)):
            return f"node {state.sequencer}, which sequences it, is drained"
        nodeset = state.history[-1].nodeset
        unfit = [m.node_id for m in nodeset if nodes.leaves(m.node_id) or nodes.lost(m.node_id)]
        if unfit and self._epochs.next_nodeset(segment, state) != nodeset:
            return f"node {unfit[0]} leaves its nodeset"
        if joining := self._joining(record, segment):
            return f"node {joining[0]} joins its nodeset"
        return ""

    def _joining(self, record: CopysetRecord, segment: Segment) -> list[NodeId]:
        """Who would make up for those that left its nodeset; none while one of them is away."""
        state, nodeset = record.state, record.state.history[-1].nodeset
        if not has_shrunk(state, segment.settings.nodeset):
            return []
        grown = self._epochs.next_nodeset(segment, state)
        joining = [member.node_id for member in grown if member not in nodeset]
        is_larger = len(grown) > len(nodeset)
        return joining if is_larger and all(map(self._nodes.alive, joining)) else []

    # ---- doing it

    async def _sequence_step(self, loglet: LogId) -> Progress:
        """Whoever is asked where a log ends sequences it, or names who does."""
        record = self._copysets.get(loglet)
        if record is None or record.state.closed or self._segment(record) is None:
            return Progress.IDLE
        chosen = self._nodes.sequencer(loglet)
        asked = dict.fromkeys(node for node in (record.state.sequencer, chosen) if node)
        there = [node for node in asked if self._nodes.reachable(node)]
        async with self._room:
            for node in there:
                with suppress(Retryable):
                    await self._orders.find_tail(node, loglet)
                    return Progress.IDLE
        return Progress.FAILED if there else Progress.IDLE

    async def _step(self, loglet: LogId) -> Progress:
        async with self._room:
            record = self._copysets.get(loglet)
            reason = "" if record is None else self.reason(record)
            if record is None or not reason:
                self._failed.pop(loglet, None)
                return Progress.IDLE
            node = self._choose(loglet)
            closed = self._ends(record)
            taken = await self._epochs.take_epoch(loglet, node, record.state.epoch, closed=closed)
        if taken is None:
            return Progress.DONE
        logger.info("segment %d: node %d recovers: %s", loglet, node, reason)
        try:
            await self._recovered(node, taken)
        except LoomError:
            self._failed[loglet] = node
            raise
        return Progress.DONE

    async def _recovered(self, node: NodeId, record: CopysetRecord) -> None:
        """However long it takes, unless another epoch begins; Unavailable if the node is lost."""
        while self._nodes.reachable(node):
            with suppress(Timeout):
                await self._orders.recover(node, record)
                return
            now = self._copysets.get(record.loglet)
            if now is None or now.state.epoch != record.state.epoch:
                return
        raise Unavailable(f"node {node} did not recover it: it is silent")

    def _choose(self, loglet: LogId) -> NodeId:
        failed = self._failed.get(loglet)
        node = self._nodes.sequencer(loglet, () if failed is None else (failed,))
        if node is None:
            raise Unavailable("no storage node is there that could recover it")
        return node
