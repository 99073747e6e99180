"""The copyset loglets: their records."""

from __future__ import annotations

from typing import Final

from loomlog.core.copyset.record import Epoch
from loomlog.metadata.catalog.loglet_records import LogletRecords
from loomlog.metadata.copyset.record import CopysetRecord
from loomlog.metadata.store.contract import MetaStore
from loomlog.types import LogId, NodeId

PREFIX: Final = "copyset/"  # of the keys of records


class CopysetCatalog(LogletRecords[CopysetRecord]):
    """The copyset loglets. Created by `load`."""

    def __init__(self, store: MetaStore) -> None:
        super().__init__(store, PREFIX)

    @classmethod
    async def load(cls, store: MetaStore) -> CopysetCatalog:
        catalog = cls(store)
        await catalog._read(CopysetRecord)
        return catalog

    def copies_on(self, node: NodeId) -> dict[LogId, Epoch]:
        """Return the loglets that a node may have copies of, with the newest epoch of each."""
        return {record.loglet: record.state.epoch for record in self if node in record.holders}
