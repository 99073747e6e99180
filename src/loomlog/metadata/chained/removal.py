"""Replicas of chains that nobody needs any more leave their nodes, with their data.

What is to be removed is in the record of its loglet, so that a node that is away now is told when
it registers. The record of a loglet that belongs to no log goes with its last replica.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from loomlog.core.chained.messages import Done, Remove
from loomlog.core.chained.projection import Replica
from loomlog.core.chained.replica import NOT_HERE
from loomlog.metadata.background import Background
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.chained.catalog import ChainedCatalog
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.epochs import Epochs
from loomlog.metadata.chained.nodes import ChainNodes
from loomlog.metadata.insisting import Insisting, Progress
from loomlog.metadata.records import ChainedRecord
from loomlog.types import LogId, NodeId

logger = logging.getLogger(__name__)


class Removal:
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
        self._work = Insisting("removal of replicas of segment", self._step, background)

    def look(self, record: ChainedRecord) -> None:
        if record.dropping or self._is_abandoned(record):
            self._work.wake(record.loglet)

    def _is_abandoned(self, record: ChainedRecord) -> bool:
        log = self._catalog.log_of(record)
        return log is None or log.segment_of(record.loglet) is None

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
        """From the nodes that can be reached; from those that are forgotten they are gone."""
        forgotten = [r for r in record.dropping if r.node_id not in self._catalog.nodes]
        there = [r for r in record.dropping if self._nodes.reachable(r.node_id)]
        removed = await self._ask_to_remove(there)
        if forgotten or removed:
            await self._chained.removed(record.loglet, *forgotten, *removed)
            self._epochs.changed(record.loglet)  # a node may be a spare again
            return Progress.DONE
        return Progress.FAILED if there else Progress.IDLE

    async def _ask_to_remove(self, replicas: Sequence[Replica]) -> list[Replica]:
        """Those that are gone."""
        answers = await asyncio.gather(*(self._driver.ask(r, Remove()) for r in replicas))
        pairs = zip(replicas, answers, strict=True)
        gone = [r for r, answer in pairs if isinstance(answer, Done) or answer == NOT_HERE]
        self._nodes.removed(gone)
        return gone

    # ---- what nobody knows of

    async def node_joined(self, node: NodeId) -> None:
        """A replica that left its loglet, and was made by an order that came late, goes again."""
        unknown = self._unknown(node)
        for replica in unknown:
            record = self._chained.get(replica.log_id)
            if record is not None and replica.birth <= record.births:
                await self._chained.change(
                    replica.log_id,
                    lambda r, gone=replica: replace(r, dropping=(*r.dropping, gone)),  # type: ignore[misc]
                )
                self._work.wake(replica.log_id)
        if left := self._unknown(node):
            logger.warning(
                "node %d has %d replicas of chains that nobody knows: `loom node cleanup %d` "
                "deletes them",
                *(node, len(left), node),
            )

    async def clean_up(self, node: NodeId) -> int:
        """Delete them: so many."""
        return len(await self._ask_to_remove(self._unknown(node)))

    def _unknown(self, node: NodeId) -> list[Replica]:
        """What the node registered with that is in no record."""
        found = self._nodes.registered_with(node)
        records = {replica: self._chained.get(replica.log_id) for replica in found}
        return [r for r, record in records.items() if record is None or r not in record.replicas]
