"""The loglets of a protocol that keeps its own records: in memory, durable before visible.

Each has its own key and is written by compare-and-swap. A record exists before any node learns of
the loglet, and is deleted when no node has anything of it; the segments of a log say whether the
loglet still belongs to it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

from loomlog.errors import Conflict, NotFound, SwapUnknown
from loomlog.metadata.catalog.records import LogletRecord, decode, encode
from loomlog.metadata.store.contract import MetaStore
from loomlog.types import LogId, StreamId

L = TypeVar("L", bound=LogletRecord)


@dataclass(slots=True)
class _Kept(Generic[L]):
    record: L
    version: int = 0  # in the store
    certain: bool = True  # False: a write was not answered, so the store may have another record
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)


class LogletRecords(Generic[L]):
    """The records of a protocol's loglets, with keys of `prefix` and the loglet's id."""

    def __init__(self, store: MetaStore, prefix: str, kind: type[L]) -> None:
        self._store = store
        self._prefix = prefix
        self._kind = kind
        self._kept: dict[LogId, _Kept[L]] = {}
        self._by_stream: dict[StreamId, LogId] = {}
        self._by_log: defaultdict[LogId, dict[LogId, None]] = defaultdict(dict)  # ordered sets

    async def load(self) -> Self:
        for key, item in (await self._store.list(self._prefix)).items():
            record = decode(self._kind, key, item.value)
            self._kept[record.loglet] = _Kept(record, item.version)
            self._show(record)
        return self

    # ---- queries

    def __iter__(self) -> Iterator[L]:
        return iter([kept.record for kept in self._kept.values()])

    def get(self, loglet: LogId) -> L | None:
        kept = self._kept.get(loglet)
        return kept.record if kept else None

    def of_stream(self, stream_id: StreamId) -> L | None:
        loglet = self._by_stream.get(stream_id)
        return None if loglet is None else self.get(loglet)

    def of_log(self, log_id: LogId) -> list[L]:
        return [self._kept[loglet].record for loglet in self._by_log.get(log_id, ())]

    def version_of(self, log_id: LogId) -> int:
        loglets = self._by_log.get(log_id, ())
        return max((self._kept[loglet].version for loglet in loglets), default=0)

    # ---- changes

    async def add(self, record: L) -> None:
        """Write a new record."""
        kept = _Kept(record)
        await self._write(kept, record)
        self._kept[record.loglet] = kept
        self._show(record)

    async def change(self, loglet: LogId, change: Callable[[L], L]) -> L:
        kept = self._kept.get(loglet)
        if kept is None:
            raise _gone(loglet)
        async with kept.changing:
            if loglet not in self._kept:
                raise _gone(loglet)
            before, after = kept.record, change(kept.record)
            if after != before:
                await self._write(kept, after)
                self._changed(before, after)
            return after

    async def forget(self, loglet: LogId) -> None:
        """Delete the record of a loglet that is gone from all nodes."""
        kept = self._kept.get(loglet)
        if kept is None:
            return
        async with kept.changing:
            await self._write(kept, None)
            self._hide(kept.record)
            self._kept.pop(loglet, None)

    async def _write(self, kept: _Kept[L], record: L | None) -> None:
        key = f"{self._prefix}{kept.record.loglet}"
        if not kept.certain:  # nothing depended on what may have been written: replace it
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

    # ---- counts

    def _show(self, record: L) -> None:
        self._by_stream[record.stream_id] = record.loglet
        self._by_log[record.log_id][record.loglet] = None

    def _hide(self, record: L) -> None:
        self._by_stream.pop(record.stream_id, None)
        self._by_log[record.log_id].pop(record.loglet, None)
        if not self._by_log[record.log_id]:
            del self._by_log[record.log_id]

    def _changed(self, before: L, after: L) -> None:
        """Called after a changed record was written."""


def _gone(loglet: LogId) -> NotFound:
    return NotFound(f"segment {loglet} was deleted")
