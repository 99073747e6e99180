"""Remove copyset loglets that belong to no log, and trim the others with their logs.

An absent node gets the orders when it is back, because the record of a loglet is kept until no node
has copies of it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from loomlog.core.copyset.messages import Forget, Trim
from loomlog.core.copyset.nodeset import node_of, shard_of
from loomlog.core.copyset.record import Lsn
from loomlog.metadata.background import Background, RetryLoop, StepResult
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.records import CopysetRecord
from loomlog.metadata.nodes.placement import LOOK_S
from loomlog.types import LogId, NodeId, ShardId

logger = logging.getLogger(__name__)


class CopysetRemover:
    """Deletes loglets that no longer belong to a log, and then their records."""

    def __init__(self, epochs: EpochStore, background: Background) -> None:
        self._catalog, self._records, self._nodes = epochs.catalog, epochs.records, epochs.nodes
        self._epochs = epochs
        self._work = RetryLoop("removal of segment", self._step, background)

    def look(self, record: CopysetRecord) -> None:
        if self.is_abandoned(record):
            self._work.wake(record.loglet)

    def is_abandoned(self, record: CopysetRecord) -> bool:
        return self._catalog.segment_of(record) is None

    async def _step(self, loglet: LogId) -> StepResult:
        record = self._records.get(loglet)
        if record is None or not self.is_abandoned(record):
            return StepResult.IDLE
        if not record.holders:
            await self._records.forget(loglet)
            self._epochs.tell(loglet)
            logger.info("segment %d is gone", loglet)
            return StepResult.IDLE
        unknown = [shard for shard in record.holders if node_of(shard) not in self._catalog.nodes]
        there = [shard for shard in record.holders if self._nodes.can_ask(shard)]
        gone = {*unknown, *await self._forget(record, there)}
        if not gone:
            return StepResult.FAILED if there else StepResult.IDLE
        await self._records.change(
            loglet,
            lambda record: replace(
                record, holders=tuple(shard for shard in record.holders if shard not in gone)
            ),
        )
        return StepResult.DONE

    async def _forget(self, record: CopysetRecord, there: list[ShardId]) -> list[ShardId]:
        """Order the sequencer first, because it might still send records to other nodes."""
        sequencer = self._catalog.nodes.get(record.state.sequencer)
        if sequencer is not None and self._nodes.reachable(sequencer.node_id):
            shards = [shard_of(sequencer.node_id, index) for index in sequencer.shards]
            await self._nodes.tell(shards, Forget(record.loglet), record)
        return await self._nodes.tell(there, Forget(record.loglet), record)


class CopysetTrimmer:
    """Trims the loglets of trimmed logs on all their nodes."""

    def __init__(self, epochs: EpochStore, background: Background) -> None:
        self._catalog, self._records, self._nodes = epochs.catalog, epochs.records, epochs.nodes
        self._epochs = epochs
        self._work = RetryLoop("trim of segment", self._step, background)
        self._trimmed_to: dict[LogId, dict[ShardId, Lsn]] = {}  # by this leader

    def look(self, record: CopysetRecord) -> None:
        if not self._is_done(record):
            self._work.wake(record.loglet)

    def node_joined(self, node: NodeId) -> None:
        for trimmed_to in self._trimmed_to.values():
            for shard in [shard for shard in trimmed_to if node_of(shard) == node]:
                del trimmed_to[shard]
        for record in self._records:
            if record.is_on(node):
                self.look(record)

    async def done(self, log_id: LogId) -> None:
        """Wait until all live nodes have trimmed the segments of a log as far as the log."""
        while not all(map(self._is_done, self._records.of_log(log_id))):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    def _is_done(self, record: CopysetRecord) -> bool:
        return self._target(record) <= record.state.trimmed and not self._lagging(record)

    def _target(self, record: CopysetRecord) -> Lsn:
        return self._catalog.trim_target(record) if record.begun else 0

    def _lagging(self, record: CopysetRecord) -> list[ShardId]:
        trimmed_to, trimmed = self._trimmed_to.get(record.loglet, {}), record.state.trimmed
        return [
            shard
            for shard in record.holders
            if trimmed_to.get(shard, 0) < trimmed and self._nodes.can_ask(shard)
        ]

    async def _step(self, loglet: LogId) -> StepResult:
        record = self._records.get(loglet)
        if record is None:
            self._trimmed_to.pop(loglet, None)
            return StepResult.IDLE
        target = self._target(record)
        if target > record.state.trimmed:
            await self._epochs.trim(loglet, target)
            logger.info("segment %d is trimmed up to position %d", loglet, target)
            return StepResult.DONE
        lagging = self._lagging(record)
        if not lagging:
            return StepResult.IDLE
        done = await self._nodes.tell(lagging, Trim(loglet, record.state.trimmed), record)
        self._trimmed_to.setdefault(loglet, {}).update(dict.fromkeys(done, record.state.trimmed))
        return StepResult.DONE if len(done) == len(lagging) else StepResult.FAILED
