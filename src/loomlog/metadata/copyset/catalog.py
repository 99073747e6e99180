"""The copyset loglets: their records."""

from __future__ import annotations

from loomlog.metadata.loglet_records import LogletRecords
from loomlog.metadata.records import CopysetRecord
from loomlog.metadata.store import MetaStore


class CopysetCatalog(LogletRecords[CopysetRecord]):
    """Made by `load`."""

    def __init__(self, store: MetaStore) -> None:
        super().__init__(store, "copyset/")

    @classmethod
    async def load(cls, store: MetaStore) -> CopysetCatalog:
        catalog = cls(store)
        await catalog._read(CopysetRecord)
        return catalog
