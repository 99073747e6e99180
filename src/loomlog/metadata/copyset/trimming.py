"""Copyset loglets are trimmed as far as their logs are, on all nodes: a node that is away is told
when it is back."""

from __future__ import annotations

import asyncio
import logging

from loomlog.core.copyset.lsn import Lsn
from loomlog.core.copyset.messages import Trim
from loomlog.metadata.background import Background
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.copyset.catalog import CopysetCatalog
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.nodes import CopysetNodes
from loomlog.metadata.copyset.orders import CopysetOrders
from loomlog.metadata.insisting import Insisting, Progress
from loomlog.metadata.placing import LOOK_S
from loomlog.metadata.records import CopysetRecord
from loomlog.types import LogId, NodeId

logger = logging.getLogger(__name__)


class Trimming:
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
        self._work = Insisting("trim of segment", self._step, background)
        self._told: dict[LogId, dict[NodeId, Lsn]] = {}  # by this leader

    def look(self, record: CopysetRecord) -> None:
        if not self._is_done(record):
            self._work.wake(record.loglet)

    def node_joined(self, node: NodeId) -> None:
        for told in self._told.values():
            told.pop(node, None)
        for record in self._copysets:
            if node in record.holders:
                self.look(record)

    async def done(self, log_id: LogId) -> None:
        """Wait until all segments of a log are trimmed as far as it is, where nodes are there."""
        while not all(map(self._is_done, self._copysets.of_log(log_id))):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    def _is_done(self, record: CopysetRecord) -> bool:
        return self._target(record) <= record.state.trimmed and not self._untold(record)

    def _target(self, record: CopysetRecord) -> Lsn:
        """How far it is to be trimmed; 0: nothing of it."""
        log = self._catalog.log_of(record)
        segment = None if log is None else log.segment_of(record.loglet)
        if log is None or segment is None or not record.begun or log.trimmed < segment.start:
            return 0
        return log.trimmed if segment.end is None else min(log.trimmed, segment.end)

    def _untold(self, record: CopysetRecord) -> list[NodeId]:
        told, trimmed = self._told.get(record.loglet, {}), record.state.trimmed
        return [
            node
            for node in record.holders
            if told.get(node, 0) < trimmed and self._nodes.reachable(node)
        ]

    async def _step(self, loglet: LogId) -> Progress:
        record = self._copysets.get(loglet)
        if record is None:
            self._told.pop(loglet, None)
            return Progress.IDLE
        target = self._target(record)
        if target > record.state.trimmed:
            await self._epochs.trim(loglet, target)
            logger.info("segment %d is trimmed up to position %d", loglet, target)
            return Progress.DONE
        untold = self._untold(record)
        if not untold:
            return Progress.IDLE
        done = await self._orders.tell(untold, Trim(loglet, record.state.trimmed))
        self._told.setdefault(loglet, {}).update(dict.fromkeys(done, record.state.trimmed))
        return Progress.DONE if len(done) == len(untold) else Progress.FAILED
