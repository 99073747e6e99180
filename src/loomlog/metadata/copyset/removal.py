"""What nodes have of copyset loglets that belong to no log any more goes; then their records go.

A node that is away is told when it registers: its loglet's record stays until then.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from loomlog.core.copyset.messages import Forget
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


class Removal:
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
        self._work = Insisting("removal of segment", self._step, background)

    def look(self, record: CopysetRecord) -> None:
        if self.is_abandoned(record):
            self._work.wake(record.loglet)

    def is_abandoned(self, record: CopysetRecord) -> bool:
        log = self._catalog.log_of(record)
        return log is None or log.segment_of(record.loglet) is None

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
        """The one that sequences first: it might give others something new."""
        sequencer = record.state.sequencer
        if self._nodes.reachable(sequencer):
            await self._orders.tell([sequencer], Forget(record.loglet))
        return await self._orders.tell(there, Forget(record.loglet))
