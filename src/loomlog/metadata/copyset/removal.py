"""Remove copyset loglets that belong to no log from their nodes, then delete their records.

A node that is away gets the order when it registers: the record stays until then.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from loomlog.core.copyset.messages import Forget
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.copyset.catalog import CopysetCatalog
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.nodes import CopysetNodes
from loomlog.metadata.copyset.orders import CopysetOrders
from loomlog.metadata.copyset.record import CopysetRecord
from loomlog.metadata.work.background import Background
from loomlog.metadata.work.retry_loop import Progress, RetryLoop
from loomlog.types import LogId, NodeId

logger = logging.getLogger(__name__)


class Removal:
    """Deletes loglets that belong to no log any more, and then their records."""

    def __init__(
        self,
        catalog: Catalog,
        copysets: CopysetCatalog,
        epochs: EpochStore,
        nodes: CopysetNodes,
        orders: CopysetOrders,
        background: Background,
    ) -> None:
        self._catalog = catalog
        self._copysets = copysets
        self._epochs = epochs
        self._nodes = nodes
        self._orders = orders
        self._work = RetryLoop("removal of segment", self._step, background)

    def look(self, record: CopysetRecord) -> None:
        if self.is_abandoned(record):
            self._work.wake(record.loglet)

    def is_abandoned(self, record: CopysetRecord) -> bool:
        return self._catalog.segment_of(record) is None

    async def _step(self, loglet: LogId) -> Progress:
        record = self._copysets.get(loglet)
        if record is None or not self.is_abandoned(record):
            return Progress.IDLE
        if not record.holders:
            await self._copysets.forget(loglet)
            self._epochs.tell(loglet)
            logger.info("segment %d is gone", loglet)
            return Progress.IDLE
        unknown = [node for node in record.holders if node not in self._catalog.nodes]
        there = [node for node in record.holders if self._nodes.reachable(node)]
        gone = {*unknown, *await self._forget(record, there)}
        if not gone:
            return Progress.FAILED if there else Progress.IDLE
        await self._copysets.change(
            loglet,
            lambda record: replace(
                record, holders=tuple(node for node in record.holders if node not in gone)
            ),
        )
        return Progress.DONE

    async def _forget(self, record: CopysetRecord, there: list[NodeId]) -> list[NodeId]:
        """Order the sequencer first: it might still send records to other nodes."""
        sequencer = record.state.sequencer
        if self._nodes.reachable(sequencer):
            await self._orders.tell([sequencer], Forget(record.loglet), record)
        return await self._orders.tell(there, Forget(record.loglet), record)
