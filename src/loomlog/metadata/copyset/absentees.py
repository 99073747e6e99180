"""Hear the shards that were absent from a recovery, when they are back.

They may know of acknowledged entries that all others have forgotten (core/copyset/evidence.py). A
shard finds out by itself when it meets a later epoch, unless it was told how the epoch ended, by a
recovery that died. So each of them is asked once.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from loomlog.core.copyset.late_losses import absent_shards, heard
from loomlog.core.copyset.nodeset import shard_name
from loomlog.errors import LoomError
from loomlog.metadata.background import Background, Later, RetryLoop, StepResult
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.records import CopysetRecord
from loomlog.types import LogId, ShardId

logger = logging.getLogger(__name__)

AGAIN_S: Final = 5.0  # until a shard that could not say it is asked again


class Absentees:
    """Asks shards what they know of recoveries without them, and notes that they have said it."""

    def __init__(self, epochs: EpochStore, background: Background) -> None:
        self._catalog, self._records, self._nodes = epochs.catalog, epochs.records, epochs.nodes
        self._epochs = epochs
        self._work = RetryLoop("what absent nodes know of segment", self._step, background)

    def look(self, record: CopysetRecord) -> None:
        if self._there(record):
            self._work.wake(record.loglet)

    def _there(self, record: CopysetRecord) -> list[ShardId]:
        """Return the absent shards that can be asked, and have what they had."""
        return [
            shard
            for shard in absent_shards(record.state)
            if self._nodes.can_ask(shard) and not self._nodes.lost_through(shard, record.loglet)
        ]

    async def _step(self, loglet: LogId) -> StepResult | Later:
        record = self._records.get(loglet)
        if record is None or self._catalog.segment_of(record) is None:
            return StepResult.IDLE
        through, there = record.state.last_clean, self._there(record)
        result: StepResult | Later = StepResult.DONE if there else StepResult.IDLE
        for shard in there:
            if await self._has_reported(shard, loglet):
                await self._epochs.change(loglet, partial(heard, shard=shard, through=through))
            else:
                result = Later(AGAIN_S)
        return result

    async def _has_reported(self, shard: ShardId, loglet: LogId) -> bool:
        try:
            return await self._nodes.hear(shard, loglet)
        except LoomError as error:
            logger.debug("segment %d, shard %s: %s", loglet, shard_name(shard), error)
            return False
