"""Trim copyset loglets as far as their logs, on all nodes; a node that is away gets the order when
it is back."""

from __future__ import annotations

import asyncio
import logging

from loomlog.core.copyset.messages import Trim
from loomlog.core.copyset.record import Lsn
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.copyset.catalog import CopysetCatalog
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.nodes import CopysetNodes
from loomlog.metadata.copyset.orders import CopysetOrders
from loomlog.metadata.copyset.record import CopysetRecord
from loomlog.metadata.nodes.replica_placement import LOOK_S
from loomlog.metadata.work.background import Background
from loomlog.metadata.work.retry_loop import Progress, RetryLoop
from loomlog.types import LogId, NodeId

logger = logging.getLogger(__name__)


class Trimming:
    """Trims the loglets of logs that were trimmed, on all their nodes."""

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
        self._work = RetryLoop("trim of segment", self._step, background)
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
        """Wait until all segments of a log are trimmed as far as it is, on nodes that are alive."""
        while not all(map(self._is_done, self._copysets.of_log(log_id))):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    def _is_done(self, record: CopysetRecord) -> bool:
        return self._target(record) <= record.state.trimmed and not self._untold(record)

    def _target(self, record: CopysetRecord) -> Lsn:
        return self._catalog.trim_target(record) if record.begun else 0

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
        done = await self._orders.tell(untold, Trim(loglet, record.state.trimmed), record)
        self._told.setdefault(loglet, {}).update(dict.fromkeys(done, record.state.trimmed))
        return Progress.DONE if len(done) == len(untold) else Progress.FAILED
