"""A protocol's records of its loglets: in memory, durable before they are visible.

Each has its own key and is written by compare-and-swap. A record exists before any node gets an
order for the loglet, and is deleted when no node has data of it; the segments of a log show whether
the loglet still belongs to it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Self, TypeVar

from loomlog.errors import Conflict, NotFound, SwapUnknown
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogletRecord, decode, encode
from loomlog.metadata.store.contract import MetaStore
from loomlog.types import LogId, NodeId, StreamId

L = TypeVar("L", bound=LogletRecord)


@dataclass(slots=True)
class _Kept(Generic[L]):
    record: L
    version: int = 0  # in the store
    certain: bool = True  # False: a write was not answered, so the record in the store may differ
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)


class LogletRecords(Generic[L]):
    """The records of a protocol's loglets. Created by `load`. A key has a prefix and a number,
    which is the loglet's id unless a protocol has several records for each."""

    prefix: ClassVar[str]
    kind: type[L]

    def __init__(self, store: MetaStore, catalog: Catalog) -> None:
        self._store = store
        self.catalog = catalog
        self._kept: dict[int, _Kept[L]] = {}
        self._by_log: defaultdict[LogId, dict[int, None]] = defaultdict(dict)  # ordered sets
        self._placed: dict[int, list[tuple[NodeId, ...]]] = {}  # as counted in the catalog

    @classmethod
    async def load(cls, store: MetaStore, catalog: Catalog) -> Self:
        records = cls(store, catalog)
        for key, item in (await store.list(cls.prefix)).items():
            record = decode(cls.kind, key, item.value)
            records._kept[records.number_of(record)] = _Kept(record, item.version)
            records._show(record)
        return records

    def number_of(self, record: L) -> int:
        """Return the number of a record, which is part of its key."""
        return record.loglet

    def sets_of(self, record: L) -> list[tuple[NodeId, ...]]:
        """Return the nodes of each set of replicas in use, the busiest of each first."""
        return []

    # ---- queries

    def __iter__(self) -> Iterator[L]:
        return iter([kept.record for kept in self._kept.values()])

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, number: int) -> L | None:
        kept = self._kept.get(number)
        return kept.record if kept else None

    def of_log(self, log_id: LogId) -> list[L]:
        return [self._kept[number].record for number in self._by_log.get(log_id, ())]

    def of_stream(self, stream_id: StreamId) -> L | None:
        return next((record for record in self if record.stream_id == stream_id), None)

    def version_of(self, log_id: LogId) -> int:
        numbers = self._by_log.get(log_id, ())
        return max((self._kept[number].version for number in numbers), default=0)

    # ---- changes

    async def add(self, record: L) -> None:
        """Write a new record."""
        kept = _Kept(record)
        await self._write(kept, record)
        self._kept[self.number_of(record)] = kept
        self._show(record)

    async def change(self, number: int, change: Callable[[L], L]) -> L:
        kept = self._kept.get(number)
        if kept is None:
            raise self._gone(number)
        async with kept.changing:
            if number not in self._kept:
                raise self._gone(number)
            before, after = kept.record, change(kept.record)
            if after != before:
                await self._write(kept, after)
                self._changed(before, after)
            return after

    async def forget(self, number: int) -> None:
        """Delete the record of a loglet without data on any node."""
        kept = self._kept.get(number)
        if kept is None:
            return
        async with kept.changing:
            if number not in self._kept:
                return
            log = self.catalog.log_of(kept.record)
            if log is not None and kept.version > self.catalog.version_of(log):
                await self.catalog.raise_version(log.name)  # the log's version must not go back
            await self._write(kept, None)
            self._hide(kept.record)
            del self._kept[number]

    async def _write(self, kept: _Kept[L], record: L | None) -> None:
        key = f"{self.prefix}{self.number_of(kept.record)}"
        if not kept.certain:  # nothing depended on what may have been written, so replace it
            item = await self._store.get(key)
            kept.version, kept.certain = item.version if item else 0, True
        value = None if record is None else encode(record)
        if record is None and not kept.version:
            return
        try:
            kept.version = await self._store.compare_and_swap(key, kept.version, value)
        except (SwapUnknown, Conflict):
            kept.certain = False
            raise
        if record is not None:
            kept.record = record

    # ---- indexes

    def _show(self, record: L) -> None:
        self._by_log[record.log_id][self.number_of(record)] = None
        self._place(record, self.sets_of(record))

    def _place(self, record: L, sets: list[tuple[NodeId, ...]]) -> None:
        number = self.number_of(record)
        for nodes in self._placed.pop(number, ()):
            self.catalog.placed.count(nodes, -1)
        for nodes in sets:
            self.catalog.placed.count(nodes)
        self._placed[number] = sets

    def _hide(self, record: L) -> None:
        self._place(record, [])
        del self._placed[self.number_of(record)]
        self._by_log[record.log_id].pop(self.number_of(record), None)
        if not self._by_log[record.log_id]:
            del self._by_log[record.log_id]

    def _changed(self, before: L, after: L) -> None:
        """Called after a changed record was written."""
        self._place(after, self.sets_of(after))

    def _gone(self, number: int) -> NotFound:
        return NotFound(f"segment {number} was deleted")
