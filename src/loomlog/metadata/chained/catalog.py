"""The chained loglets: their records, and how many replicas each node has."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from loomlog.core.chained.chain import Projection, Replica
from loomlog.metadata.catalog.loglet_records import LogletRecords
from loomlog.metadata.chained.record import ChainedRecord
from loomlog.metadata.store.contract import MetaStore
from loomlog.types import LogId, NodeId

PREFIX: Final = "chained/"  # of the keys of records


class ChainedCatalog(LogletRecords[ChainedRecord]):
    """The chained loglets. Created by `load`. `load_of` counts replicas, also joining ones."""

    def __init__(self, store: MetaStore, load_of: Counter[NodeId]) -> None:
        super().__init__(store, PREFIX)
        self._load_of = load_of

    @classmethod
    async def load(cls, store: MetaStore, load_of: Counter[NodeId]) -> ChainedCatalog:
        catalog = cls(store, load_of)
        await catalog._read(ChainedRecord)
        return catalog

    def on_node(self, node: NodeId) -> list[ChainedRecord]:
        """Return the loglets with a replica on a node that is used or being filled."""
        return [record for record in self if node in _nodes_used(record)]

    def replicas_on(self, node: NodeId) -> list[Replica]:
        return [r for record in self for r in record.replicas if r.node_id == node]

    async def swap(self, projection: Projection) -> bool:
        """Bring it into force, if the previous epoch is in force. Replicas that leave are marked
        for removal. A chain with new replicas has to be trimmed again."""

        def swapped(record: ChainedRecord) -> ChainedRecord:
            if record.projection.epoch + 1 != projection.epoch:
                return record
            staying = set(projection.replicas)
            left = [r for r in record.projection.replicas if r not in staying]
            return replace(
                record,
                projection=projection,
                joining=tuple(r for r in record.joining if r not in staying),
                dropping=(*record.dropping, *left),
                trimmed=record.trimmed if projection.lost == record.projection.lost else 0,
            )

        after = await self.change(projection.log_id, swapped)
        return after.projection == projection

    async def drop(self, loglet: LogId, *replicas: Replica) -> None:
        """Give up replicas that were being filled; what they hold is to be removed."""

        def dropped(record: ChainedRecord) -> ChainedRecord:
            gone = [r for r in record.joining if r in replicas]
            joining = tuple(r for r in record.joining if r not in replicas)
            return replace(record, joining=joining, dropping=(*record.dropping, *gone))

        await self.change(loglet, dropped)

    async def removed(self, loglet: LogId, *replicas: Replica) -> None:
        """Note that replicas are gone from their nodes."""

        def without(record: ChainedRecord) -> ChainedRecord:
            return replace(record, dropping=tuple(r for r in record.dropping if r not in replicas))

        await self.change(loglet, without)

    # ---- the load of nodes

    def _show(self, record: ChainedRecord) -> None:
        super()._show(record)
        self._count(record, 1)

    def _hide(self, record: ChainedRecord) -> None:
        self._count(record, -1)
        super()._hide(record)

    def _changed(self, before: ChainedRecord, after: ChainedRecord) -> None:
        self._count(before, -1)
        self._count(after, 1)

    def _count(self, record: ChainedRecord, by: int) -> None:
        for node in _nodes_used(record):
            self._load_of[node] += by


def _nodes_used(record: ChainedRecord) -> list[NodeId]:
    """Return the node of each replica that is used or being filled."""
    return [r.node_id for r in (*record.projection.replicas, *record.joining)]
