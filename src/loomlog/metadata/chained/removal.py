"""Remove replicas of chains that are no longer needed, and trim the others as far as their logs.

The record of a loglet lists its replicas to remove, so that an absent node gets the order when it
registers. They stay while they may be the last ones with a block, intact or damaged
(core/chained/upkeep.py). The record of a loglet that belongs to no log is deleted with its last
replica. A loglet is trimmed once all its replicas can be reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from loomlog.core.chained.chain import Replica
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.messages import Done, Interrupted, Remove, Trimmed
from loomlog.core.chained.replica import NOT_HERE
from loomlog.core.chained.trim import trim
from loomlog.metadata.background import Background, RetryLoop, StepResult
from loomlog.metadata.chained.epochs import Epochs
from loomlog.metadata.chained.nodes import LOOK_S
from loomlog.types import Glsn, LogId, NodeId

logger = logging.getLogger(__name__)


class ChainRemover:
    """Removes replicas from nodes, and the records of deleted loglets."""

    def __init__(
        self,
        epochs: Epochs,
        background: Background,
        is_needless: Callable[[ChainedRecord, Replica], bool],
    ) -> None:
        self._epochs = epochs
        self._is_needless = is_needless
        self._catalog, self._records = epochs.catalog, epochs.records
        self._driver, self._nodes = epochs.driver, epochs.nodes
        self._work = RetryLoop("removal of replicas of segment", self._step, background)

    def look(self, record: ChainedRecord) -> None:
        if record.needless or self._is_abandoned(record):
            self._work.wake(record.loglet)

    def _is_abandoned(self, record: ChainedRecord) -> bool:
        return self._catalog.segment_of(record) is None

    async def _step(self, loglet: LogId) -> StepResult:
        record = self._records.get(loglet)
        if record is None:
            return StepResult.IDLE
        if self._is_abandoned(record):
            return await self._abandon(record)
        return await self._remove(record) if record.needless else StepResult.IDLE

    async def _abandon(self, record: ChainedRecord) -> StepResult:
        self._epochs.forget(record.loglet)
        record = await self._records.change(record.loglet, lambda record: record.abandon())
        if record.needless:
            return await self._remove(record)
        await self._records.forget(record.loglet)
        logger.info("segment %d is gone", record.loglet)
        return StepResult.IDLE

    async def _remove(self, record: ChainedRecord) -> StepResult:
        """Remove replicas from reachable nodes; forgotten nodes have none."""
        forgotten = [r for r in record.needless if r.node_id not in self._catalog.nodes]
        there = [
            replica
            for replica in record.needless
            if self._nodes.reachable(replica.node_id) and self._is_needless(record, replica)
        ]
        removed = await self._ask_to_remove(there)
        if forgotten or removed:
            await self._records.change(
                record.loglet, lambda record: record.forget(*forgotten, *removed)
            )
            self._epochs.changed(record.loglet)  # a node may be a spare again
            return StepResult.DONE
        return StepResult.FAILED if there else StepResult.IDLE

    async def _ask_to_remove(self, replicas: Sequence[Replica]) -> list[Replica]:
        """Order nodes to remove replicas; return those that are gone."""
        answers = await asyncio.gather(*(self._driver.ask(r, Remove()) for r in replicas))
        pairs = zip(replicas, answers, strict=True)
        gone = [r for r, answer in pairs if isinstance(answer, Done) or answer == NOT_HERE]
        self._nodes.removed(gone)
        return gone

    # ---- unknown replicas

    def node_joined(self, node: NodeId) -> None:
        """Report replicas that no record names. Newer metadata may name them, so an operator
        decides."""
        if unknown := self._unknown(node):
            logger.warning(
                "node %d has %d replicas of chains that nobody knows: `loom node cleanup %d` "
                "deletes them",
                node,
                len(unknown),
                node,
            )

    def forgotten(self, node: NodeId) -> list[LogId]:
        """Return the loglets of which a node registered replicas, and that no record names."""
        unknown = {r.log_id for r in self._unknown(node) if self._records.get(r.log_id) is None}
        return sorted(unknown)

    async def clean_up(self, node: NodeId) -> int:
        """Delete replicas that no record names, and return how many."""
        return len(await self._ask_to_remove(self._unknown(node)))

    def _unknown(self, node: NodeId) -> list[Replica]:
        """Return the replicas that a node registered with and no record names."""
        found = self._nodes.registered_with(node)
        records = {replica: self._records.get(replica.log_id) for replica in found}
        return [r for r, record in records.items() if record is None or r not in record.replicas]


class ChainTrimmer:
    """Trims the loglets of trimmed logs, as soon as all replicas can be reached."""

    def __init__(self, epochs: Epochs, background: Background) -> None:
        self._epochs = epochs
        self._catalog, self._records, self._driver = epochs.catalog, epochs.records, epochs.driver
        self._work = RetryLoop("trim of segment", self._step, background)

    def look(self, record: ChainedRecord) -> None:
        if not self._is_done(record):
            self._work.wake(record.loglet)

    async def done(self, log_id: LogId) -> None:
        """Wait until all segments of a log are trimmed as far as the log."""
        while not all(map(self._is_done, self._records.of_log(log_id))):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    def _is_done(self, record: ChainedRecord) -> bool:
        return self._target(record) <= record.trimmed

    def _target(self, record: ChainedRecord) -> Glsn:
        return self._catalog.trim_target(record) if record.begun else 0

    async def _step(self, loglet: LogId) -> StepResult:
        record = self._records.get(loglet)
        if record is None or self._is_done(record) or loglet in self._epochs.unfinished:
            return StepResult.IDLE
        target = self._target(record)
        outcome = await self._driver.drive(loglet, trim(record.projection, target))
        if isinstance(outcome, Trimmed):
            await self._records.change(loglet, lambda record: replace(record, trimmed=target))
            logger.info("segment %d is trimmed up to position %d", loglet, target)
            if record.dropping:
                self._epochs.changed(loglet)  # replicas kept because of a loss may be removed
            return StepResult.DONE
        if isinstance(outcome, Interrupted):
            logger.info("segment %d is not trimmed yet: %s", loglet, outcome.reason)
        return StepResult.FAILED
