"""Check the copies of nodes that crashed, since their disks may have forgotten some.

Every other shard that may have the same records restores those that these nodes lack. Then it is
known whether some entries are on no shard. An absent shard is awaited only if it may have records
that no other shard has (core/copyset/coverage.py). Until the check is finished, a condition reports
it, and names the nodes that it is waiting for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Final

from loomlog.core.conditions import Condition, Kind
from loomlog.core.copyset import log_state
from loomlog.core.copyset.coverage import Check, check_of
from loomlog.core.copyset.nodeset import node_of
from loomlog.core.copyset.record import Epoch
from loomlog.errors import LoomError, Timeout
from loomlog.metadata.background import Background, Later, RetryLoop, StepResult
from loomlog.metadata.copyset.absentees import Absentees
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.records import CopysetRecord
from loomlog.types import LogId, NodeId, ShardId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

AT_ONCE: Final = 4  # loglets; appends matter more
AGAIN_S: Final = 1.0  # until the remaining records are checked again
REBUILT_S: Final = 5.0  # the same, while copies are rebuilt


class Verification:
    """Has nodes check what others may have forgotten, and records which are complete."""

    def __init__(self, epochs: EpochStore, background: Background) -> None:
        self._catalog, self._records, self._nodes = epochs.catalog, epochs.records, epochs.nodes
        self._epochs = epochs
        self._absentees = Absentees(epochs, background)
        self._work = RetryLoop("check of segment", self._step, background)
        self._room = asyncio.Semaphore(AT_ONCE)
        self._unchecked: dict[LogId, frozenset[NodeId]] = {}
        self._awaited: dict[LogId, frozenset[NodeId]] = {}  # nodes that are away, and needed

    def look(self, record: CopysetRecord) -> None:
        self._absentees.look(record)
        if self._note(record):
            self._work.wake(record.loglet)

    def look_at_all(self) -> None:
        for record in self._records:
            self.look(record)

    def conditions(self, node: NodeId) -> list[Condition]:
        """Return conditions about nodes whose copies are not checked yet."""
        loglets = [loglet for loglet, nodes in self._unchecked.items() if node in nodes]
        if not loglets:
            return []
        text = (
            f"crashed, so its disks may have forgotten writes: its copies of {len(loglets)} "
            "segments are being checked"
        )
        awaited = {each for loglet in loglets for each in self._awaited.get(loglet, ())}
        return [Condition(Kind.REBUILD, text, _what_helps(awaited - {node}), node=node)]

    def _note(self, record: CopysetRecord) -> dict[NodeId, int]:
        """Return the nodes to be checked, with their lives, and remember them."""
        suspects = {}
        if self._catalog.segment_of(record) is not None:
            suspects = log_state.unchecked(record.state, self._nodes.lives())
        self._unchecked[record.loglet] = frozenset(suspects)
        if not suspects:
            del self._unchecked[record.loglet]
            self._awaited.pop(record.loglet, None)
        return suspects

    async def _step(self, loglet: LogId) -> StepResult | Later:
        async with self._room:
            record = self._records.get(loglet)
            if record is None or not (suspects := self._note(record)):
                self._unchecked.pop(loglet, None)
                self._awaited.pop(loglet, None)
                return StepResult.IDLE
            through, lives = record.state.last_clean, self._nodes.lives()
            given_up = [s for s in record.state.all_shards if self._nodes.is_given_up(s)]
            check = check_of(record.state, suspects, self._there(record), given_up)
            self._awaited[loglet] = frozenset(map(node_of, filter(self._is_away, check.awaited)))
            if any(self._nodes.lost_through(shard, loglet) for shard in check.awaited):
                del self._unchecked[loglet]  # other conditions report losses and rebuilding
                return Later(REBUILT_S)
            if check.awaited:  # woken when a node is back; rebuilding may make it unnecessary
                return Later(REBUILT_S) if self._rebuilt(loglet) else StepResult.IDLE
            if not await self._is_checked(record, check, suspects):
                return Later(AGAIN_S)
            compared = {*suspects, *map(node_of, check.shards)}
            if all(self._nodes.life(node) == lives.get(node, 0) for node in compared):
                checked = partial(log_state.checked, lives=suspects, through=through)
                await self._epochs.change(loglet, checked)
                names = ", ".join(map(str, suspects))
                logger.info("segment %d: the copies of node %s are checked", loglet, names)
        return StepResult.DONE

    def _there(self, record: CopysetRecord) -> list[ShardId]:
        """Return the shards that can be asked and do not know of any loss."""
        return [
            shard
            for shard in record.state.all_shards
            if self._nodes.can_ask(shard) and not self._nodes.lost_through(shard, record.loglet)
        ]

    def _is_away(self, shard: ShardId) -> bool:
        return not self._nodes.can_ask(shard)

    def _rebuilt(self, loglet: LogId) -> set[ShardId]:
        return {each.shard for each in self._epochs.rebuilt(loglet)}

    async def _is_checked(
        self, record: CopysetRecord, check: Check, suspects: Collection[NodeId]
    ) -> bool:
        """Return whether all suspects have their copies, and note losses."""
        suspected = [shard for shard in check.shards if node_of(shard) in suspects]
        try:
            for shard in check.shards:
                if (await self._ask(shard, record.loglet, suspected)).left:
                    return False
            lost = [*check.epochs]  # if no shard is left that could have some of it
            if check.epochs and check.shards:
                found = await self._ask(check.shards[0], record.loglet, (), check.epochs)
                if found.left:
                    return False
                lost = [*found.lost]
        except LoomError as error:
            logger.debug("segment %d is not checked: %s", record.loglet, error)
            return False
        await self._note_lost(record, lost)
        return True

    async def _ask(
        self,
        shard: ShardId,
        loglet: LogId,
        suspects: Collection[ShardId],
        epochs: Collection[Epoch] = (),
    ) -> pb.CopysetChecked:
        """Ask a shard until it answers or is gone."""
        while True:
            try:
                return await self._nodes.check(shard, loglet, suspects, epochs)
            except Timeout:
                if not self._nodes.can_ask(shard):
                    raise

    async def _note_lost(self, record: CopysetRecord, lost: list[Epoch]) -> None:
        def noted(now: CopysetRecord) -> CopysetRecord:
            known = log_state.still_lossy(now.state, now.lossy)
            return replace(now, lossy=tuple(sorted({*known, *lost})))

        if not set(record.lossy).issuperset(lost):
            logger.warning("segment %d: entries of epochs %s are lost", record.loglet, lost)
            await self._records.change(record.loglet, noted)


def _what_helps(awaited: Collection[NodeId]) -> str:
    if not awaited:
        return ""
    names = ", ".join(f"node {node}" for node in sorted(awaited))
    return (
        f"{names} may have what it forgot: start it, or, if it will not come back, run "
        "`loom node mark-unrecoverable NODE`"
    )
