"""The sequencers that run on a node, one for each log, and what they learn of the other nodes."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from loomlog.core.conditions import Condition
from loomlog.core.copyset.record import Lsn
from loomlog.core.copyset.shards import node_of, shard_of
from loomlog.errors import InvalidArgument, LoomError
from loomlog.node.copyset.epoch_store import Known
from loomlog.node.copyset.peers import PeerNodes
from loomlog.node.copyset.sequencer import RunningSequencer, SequencerContext
from loomlog.node.copyset.sequencer_slot import SequencerSlot
from loomlog.types import LogId, NodeId

logger = logging.getLogger(__name__)

REFRESH_S: Final = 1.0  # between questions which nodes are alive


class LocalSequencers:
    """Has a slot for each log that was asked for here."""

    def __init__(self, context: SequencerContext, peers: PeerNodes) -> None:
        self._context = context
        self._peers = peers
        self.exclusions = context.exclusions
        self._slots: dict[LogId, SequencerSlot] = {}
        self._dead: set[NodeId] = set()  # as the metadata repository sees it
        self._refreshing = False

    async def finish(self) -> None:
        """Let all end, and report where."""
        await asyncio.gather(*(slot.finish() for slot in self._slots.values()))

    def stop(self) -> None:
        for slot in self._slots.values():
            slot.stop()

    def slot(self, log: LogId) -> SequencerSlot:
        if log not in self._slots:
            if not log:
                raise InvalidArgument("loglets have ids above 0")
            self._slots[log] = SequencerSlot(log, self._context)
            if not self._refreshing:
                self._refreshing = True
                self._context.spawn(self._refresh())
        return self._slots[log]

    def get(self, log: LogId) -> SequencerSlot | None:
        return self._slots.get(log)

    def forget(self, log: LogId) -> None:
        """Called when a log is deleted."""
        if (slot := self._slots.pop(log, None)) is not None:
            slot.stop()

    def tails(self) -> dict[LogId, Lsn]:
        """Return how far each log is given away here."""
        slots = self._slots.items()
        return {log: s.sequencer.tail().tail for log, s in slots if s.sequencer is not None}

    def conditions(self) -> list[Condition]:
        now_s = asyncio.get_running_loop().time()
        return self.exclusions.conditions(self._context.me, now_s)

    def _running(self) -> list[RunningSequencer]:
        return [slot.sequencer for slot in self._slots.values() if slot.sequencer is not None]

    # ---- the other nodes

    def connected(self, node: NodeId) -> None:
        self.exclusions.returned(node)
        for sequencer in self._running():
            sequencer.returned(node)
            sequencer.retry()

    def learned(self, known: Known) -> None:
        others = [node for node in known.nodes.values() if node.node_id != self._context.me]
        self._peers.learn(others)
        before, self._dead = self._dead, {node.node_id for node in others if not node.alive}
        self.exclusions.down = frozenset(
            node for node in self._dead if not self._peers.is_connected(node)
        )
        was_full = self.exclusions.full.keys()
        self.exclusions.full = {
            shard_of(node.node_id, index): node.full
            for node in known.nodes.values()
            for index in node.full_shards
        }
        slot = self._slots.get(known.log)
        if slot is not None and slot.sequencer is not None:
            slot.sequencer.learned(known.state)
        with_room = set(map(node_of, was_full - self.exclusions.full.keys()))
        if back := (before - self._dead) | with_room:
            for node in sorted(back):
                self.exclusions.returned(node)
            for sequencer in self._running():
                sequencer.retry()

    async def _refresh(self) -> None:
        """Learn which nodes are alive, once for all logs: the logs are asked for in turn."""
        turn = 0
        while self._slots:
            turn += 1
            await asyncio.sleep(REFRESH_S)
            try:
                self._drop_needless()
                active = [log for log, slot in self._slots.items() if slot.sequencer is not None]
                if active:
                    await self._context.epochs.get(active[turn % len(active)], REFRESH_S / 2)
            except LoomError as error:
                logger.debug("which nodes are alive is not known: %s", error)
            except Exception:  # or this node would never learn it again
                logger.exception("which nodes are alive could not be learned")
        self._refreshing = False

    def _drop_needless(self) -> None:
        """Drop slots without use: any client may ask any node about any log."""
        for log in [log for log, slot in self._slots.items() if not slot.is_needed]:
            del self._slots[log]
            self._context.epochs.expire(log)
