"""Notes about logs, in one record of the MetaStore per log."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Generic, TypeVar

from loomlog.metadata.catalog.records import MetadataRecord, decode, encode
from loomlog.metadata.store.contract import MetaStore
from loomlog.types import LogId

R = TypeVar("R", bound=MetadataRecord)


class LogNotes(Generic[R]):
    """The notes of one kind in a term, read from the store when they are first needed."""

    def __init__(self, store: MetaStore, prefix: str, kind: type[R]) -> None:
        self._store = store
        self._prefix = prefix
        self._kind = kind
        self._notes: dict[LogId, R] | None = None
        self._reading = asyncio.Lock()

    async def all(self) -> dict[LogId, R]:
        async with self._reading:
            if self._notes is None:
                items = (await self._store.list(self._prefix)).items()
                self._notes = {
                    int(key.removeprefix(self._prefix)): decode(self._kind, key, item.value)
                    for key, item in items
                }
            return self._notes

    async def write(self, log_id: LogId, note: R | None) -> None:
        key, notes = f"{self._prefix}{log_id}", await self.all()
        item = await self._store.get(key)
        value = None if note is None else encode(note)
        if item is not None or value is not None:
            await self._store.compare_and_swap(key, item.version if item else 0, value)
        if note is None:
            notes.pop(log_id, None)
        else:
            notes[log_id] = note

    async def keep_only(self, logs: Collection[LogId]) -> None:
        """Forget deleted logs."""
        for log_id in [log_id for log_id in await self.all() if log_id not in logs]:
            await self.write(log_id, None)
