"""Complete records that were stored on fewer nodes than wanted, once there are enough again.

Each shard of a short copyset has all records on it. So one of these shards is asked to complete its
records; when this is done for all short copysets of an epoch, they are forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final

from loomlog.core.copyset import log_state
from loomlog.core.copyset.nodeset import shard_name
from loomlog.core.copyset.record import Epoch
from loomlog.errors import LoomError
from loomlog.metadata.background import Background, Later, RetryLoop, StepResult
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.records import CopysetRecord
from loomlog.types import LogId, ShardId

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.5  # between checks while records have too few copies


class Completion:
    """Has nodes complete the records of recovered epochs, and records which are complete."""

    def __init__(
        self,
        epochs: EpochStore,
        background: Background,
        restored: Callable[[Iterable[ShardId]], Collection[ShardId]],
    ) -> None:
        """`restored` returns those shards that lost copies and have all that are left again."""
        self._catalog, self._records, self._nodes = epochs.catalog, epochs.records, epochs.nodes
        self._epochs = epochs
        self._restored = restored
        self._work = RetryLoop("completion of segment", self._step, background)

    def look(self, record: CopysetRecord) -> None:
        if log_state.short_epochs(record.state):
            self._work.wake(record.loglet)

    async def _step(self, loglet: LogId) -> StepResult | Later:
        record = self._records.get(loglet)
        if record is None or self._catalog.segment_of(record) is None:
            return StepResult.IDLE
        epochs = log_state.short_epochs(record.state)
        if not epochs:
            return StepResult.IDLE
        asked: dict[ShardId, bool] = {}  # True: all its records are complete
        for epoch in epochs:
            if epoch <= record.state.last_clean and await self._is_complete(record, epoch, asked):
                await self._epochs.change(loglet, partial(log_state.completed, epoch=epoch))
                logger.info("segment %d: epoch %d has all its copies", loglet, epoch)
        return Later(LOOK_S)

    async def _is_complete(
        self, record: CopysetRecord, epoch: Epoch, asked: dict[ShardId, bool]
    ) -> bool:
        metadata = record.state.metadata_of(epoch)
        if not metadata.can_replicate(self._nodes.takers(metadata.shards)):
            return False
        for short in metadata.short:
            donors = [shard for shard in short if self._has_all(shard, record.loglet, epoch)]
            for shard in donors:
                if shard not in asked:
                    asked[shard] = await self._is_filled(shard, record.loglet)
                if asked[shard]:
                    break
            else:
                return False
        return True

    def _has_all(self, shard: ShardId, loglet: LogId, epoch: Epoch) -> bool:
        """Return whether a shard has all records that are left of its short copysets. When what it
        lost was rebuilt, it got them again, unless they got all their copies elsewhere."""
        if not self._nodes.can_ask(shard):
            return False
        return self._nodes.lost_through(shard, loglet) < epoch or bool(self._restored([shard]))

    async def _is_filled(self, shard: ShardId, loglet: LogId) -> bool:
        try:
            return not await self._nodes.fill(shard, loglet)
        except LoomError as error:
            logger.debug("segment %d is completed by %s: %s", loglet, shard_name(shard), error)
            return False
