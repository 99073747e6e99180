"""Compare replicas that an epoch did without with their chains, when they are back.

They may have blocks that all others forgot (core/chained/comparison.py). The record of a loglet
lists them, so that this is done however much later, and by whichever term. What is lost is recorded
in a new epoch; only then are they not in the list any more, and may be removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from loomlog.core.chained.chain import Unheard
from loomlog.core.chained.comparison import compare
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.reconfigure import Goal
from loomlog.core.chained.upkeep import is_trimmed, to_compare
from loomlog.errors import Unavailable
from loomlog.metadata.background import Background, RetryLoop, StepResult
from loomlog.metadata.chained.epochs import Epochs
from loomlog.types import LogId

logger = logging.getLogger(__name__)


class ChainComparer:
    """Compares unheard replicas of chained loglets."""

    def __init__(
        self, epochs: Epochs, background: Background, repair: Callable[[LogId], None]
    ) -> None:
        """`repair` is called when replicas may be sealed for an epoch that did not begin."""
        self._epochs = epochs
        self._repair = repair
        self._catalog, self._records = epochs.catalog, epochs.records
        self._driver, self._nodes = epochs.driver, epochs.nodes
        self._work = RetryLoop("comparison of segment", self._step, background)
        self.trouble: dict[LogId, str] = {}  # why replicas were not compared

    def look(self, record: ChainedRecord) -> None:
        if record.unheard:
            self._work.wake(record.loglet)

    async def _step(self, loglet: LogId) -> StepResult:
        record = self._records.get(loglet)
        if record is None or self._catalog.segment_of(record) is None:
            return StepResult.IDLE
        if needless := [each.replica for each in record.unheard if self._is_needless(record, each)]:
            await self._records.change(loglet, lambda record: record.hear(*needless))
            self._epochs.changed(loglet)
            return StepResult.DONE
        unheard = to_compare(record, self._nodes)
        if not unheard:
            self.trouble.pop(loglet, None)
            return StepResult.IDLE
        lost = [each.replica for each in unheard if self._nodes.lost(each.replica)]
        found = await self._driver.drive(loglet, compare(record.projection, unheard, lost))
        if found.forgotten:
            nodes = " and ".join(f"node {replica.node_id}" for replica in found.witnesses)
            reason = f"{nodes} has blocks that all others have forgotten"
            await self._begin_epoch(loglet, Goal(short=False, forgotten=found.forgotten), reason)
            logger.warning("segment %d: %s: they are lost", loglet, reason)
        if found.compared:
            await self._records.change(
                loglet, lambda record: record.hear(*found.compared, witnesses=found.witnesses)
            )
            self._epochs.changed(loglet)  # they may be removed now
        self.trouble[loglet] = found.trouble
        if found.trouble:
            logger.info("segment %d is not compared yet: %s", loglet, found.trouble)
            return StepResult.FAILED
        return StepResult.DONE

    async def _begin_epoch(self, loglet: LogId, goal: Goal, reason: str) -> None:
        try:
            await self._epochs.attempt(loglet, goal, reason)
        except Unavailable:
            self._repair(loglet)  # not `changed`: that would wake this loop, too, without a pause
            raise

    def _is_needless(self, record: ChainedRecord, unheard: Unheard) -> bool:
        """Return whether a replica need not be compared: all that it can have is trimmed, or an
        operator removes its node, which is away."""
        is_removed = self._nodes.removed_for_good(unheard.replica.node_id)
        return is_removed or is_trimmed(record, unheard)
