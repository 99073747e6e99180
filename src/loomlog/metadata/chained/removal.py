"""Remove replicas of chains that are no longer needed from their nodes, with their data.

The record of a loglet lists its replicas to remove, so that a node that is away gets the order when
it registers. The record of a loglet that belongs to no log is deleted with its last replica.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import Done, Remove
from loomlog.core.chained.replica import NOT_HERE
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.chained.catalog import ChainedCatalog
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.epochs import Epochs
from loomlog.metadata.chained.nodes import ChainNodes
from loomlog.metadata.chained.record import ChainedRecord
from loomlog.metadata.work.background import Background
from loomlog.metadata.work.retry_loop import Progress, RetryLoop
from loomlog.types import LogId, NodeId

logger = logging.getLogger(__name__)


class Removal:
    """Removes replicas from nodes, and the records of loglets that are gone."""

    def __init__(
        self,
        catalog: Catalog,
        chained: ChainedCatalog,
        driver: Driver,
        nodes: ChainNodes,
        epochs: Epochs,
        background: Background,
    ) -> None:
        self._catalog = catalog
        self._chained = chained
        self._driver = driver
        self._nodes = nodes
        self._epochs = epochs
        self._work = RetryLoop("removal of replicas of segment", self._step, background)

    def look(self, record: ChainedRecord) -> None:
        if record.dropping or self._is_abandoned(record):
            self._work.wake(record.loglet)

    def _is_abandoned(self, record: ChainedRecord) -> bool:
        return self._catalog.segment_of(record) is None

    async def _step(self, loglet: LogId) -> Progress:
        record = self._chained.get(loglet)
        if record is None:
            return Progress.IDLE
        if self._is_abandoned(record):
            return await self._abandon(record)
        return await self._remove(record) if record.dropping else Progress.IDLE

    async def _abandon(self, record: ChainedRecord) -> Progress:
        self._epochs.forget(record.loglet)
        if any(record.projection.replicas) or record.joining:
            empty = record.projection._replace(chains=())
            record = await self._chained.change(
                record.loglet,
                lambda r: replace(r, projection=empty, joining=(), dropping=r.replicas),
            )
        if record.dropping:
            return await self._remove(record)
        await self._chained.forget(record.loglet)
        logger.info("segment %d is gone", record.loglet)
        return Progress.IDLE

    async def _remove(self, record: ChainedRecord) -> Progress:
        """Remove replicas from nodes that can be reached; nodes that were forgotten have none."""
        forgotten = [r for r in record.dropping if r.node_id not in self._catalog.nodes]
        there = [r for r in record.dropping if self._nodes.reachable(r.node_id)]
        removed = await self._ask_to_remove(there)
        if forgotten or removed:
            await self._chained.removed(record.loglet, *forgotten, *removed)
            self._epochs.changed(record.loglet)  # a node may be a spare again
            return Progress.DONE
        return Progress.FAILED if there else Progress.IDLE

    async def _ask_to_remove(self, replicas: Sequence[Replica]) -> list[Replica]:
        """Order nodes to remove replicas; return those that are gone."""
        answers = await asyncio.gather(*(self._driver.ask(r, Remove()) for r in replicas))
        pairs = zip(replicas, answers, strict=True)
        gone = [r for r, answer in pairs if isinstance(answer, Done) or answer == NOT_HERE]
        self._nodes.removed(gone)
        return gone

    # ---- unknown replicas

    def node_joined(self, node: NodeId) -> None:
        """Report replicas that no record names. Newer metadata may: an operator decides."""
        if unknown := self._unknown(node):
            logger.warning(
                "node %d has %d replicas of chains that nobody knows: `loom node cleanup %d` "
                "deletes them",
                node,
                len(unknown),
                node,
            )

    async def clean_up(self, node: NodeId) -> int:
        """Delete replicas that no record names, and return how many."""
        return len(await self._ask_to_remove(self._unknown(node)))

    def _unknown(self, node: NodeId) -> list[Replica]:
        """Return the replicas that a node registered with and no record names."""
        found = self._nodes.registered_with(node)
        records = {replica: self._chained.get(replica.log_id) for replica in found}
        return [r for r, record in records.items() if record is None or r not in record.replicas]
