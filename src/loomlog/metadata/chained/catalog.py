"""The chained loglets: their records in memory, always as durable as they look.

Each has a key of its own and is written by compare-and-swap. A record is there before any node
hears of the loglet, and goes after the last replica is gone; whether it still belongs to a log is
what that log's chain of segments says.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from loomlog.core.chained.projection import Projection, Replica
from loomlog.errors import Conflict, NotFound, SwapUnknown
from loomlog.metadata.records import ChainedRecord, chained_key, decode, encode
from loomlog.metadata.store import MetaStore
from loomlog.types import LogId, NodeId, StreamId

_PREFIX: Final = "chained/"


@dataclass(slots=True)
class _Kept:
    record: ChainedRecord
    version: int = 0  # in the store
    certain: bool = True  # False: a write was not answered, so the store may have another record
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)


class ChainedCatalog:
    """Made by `load`. `load_of` counts the replicas of nodes, also those that join."""

    def __init__(self, store: MetaStore, load_of: Counter[NodeId]) -> None:
        self._store = store
        self._load_of = load_of
        self._kept: dict[LogId, _Kept] = {}
        self._by_stream: dict[StreamId, LogId] = {}
        self._by_log: defaultdict[LogId, dict[LogId, None]] = defaultdict(dict)  # ordered sets

    @classmethod
    async def load(cls, store: MetaStore, load_of: Counter[NodeId]) -> ChainedCatalog:
        catalog = cls(store, load_of)
        for key, item in (await store.list(_PREFIX)).items():
            record = decode(ChainedRecord, key, item.value)
            catalog._kept[record.loglet] = _Kept(record, item.version)
            catalog._show(record)
        return catalog

    # ---- questions

    def __iter__(self) -> Iterator[ChainedRecord]:
        return iter([kept.record for kept in self._kept.values()])

    def get(self, loglet: LogId) -> ChainedRecord | None:
        kept = self._kept.get(loglet)
        return kept.record if kept else None

    def of_stream(self, stream_id: StreamId) -> ChainedRecord | None:
        loglet = self._by_stream.get(stream_id)
        return None if loglet is None else self.get(loglet)

    def of_log(self, log_id: LogId) -> list[ChainedRecord]:
        return [self._kept[loglet].record for loglet in self._by_log.get(log_id, ())]

    def on_node(self, node: NodeId) -> list[ChainedRecord]:
        """Those with a replica there that is used, or is being filled."""
        return [record for record in self if node in _nodes_used(record)]

    def version_of(self, log_id: LogId) -> int:
        loglets = self._by_log.get(log_id, ())
        return max((self._kept[loglet].version for loglet in loglets), default=0)

    # ---- changes

    async def add(self, record: ChainedRecord) -> None:
        """A new one."""
        kept = _Kept(record)
        await self._write(kept, record)
        self._kept[record.loglet] = kept
        self._show(record)

    async def change(
        self, loglet: LogId, change: Callable[[ChainedRecord], ChainedRecord]
    ) -> ChainedRecord:
        kept = self._kept.get(loglet)
        if kept is None:
            raise _gone(loglet)
        async with kept.changing:
            if loglet not in self._kept:
                raise _gone(loglet)
            before, after = kept.record, change(kept.record)
            if after != before:
                await self._write(kept, after)
                self._count(before, -1)
                self._count(after, 1)
            return after

    async def swap(self, projection: Projection) -> bool:
        """Have it in force, if one of the epoch before is. Who leaves is to be removed."""

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
            )

        after = await self.change(projection.log_id, swapped)
        return after.projection == projection

    async def drop(self, loglet: LogId, *replicas: Replica) -> None:
        """They do not join any more: what they hold is to be removed."""

        def dropped(record: ChainedRecord) -> ChainedRecord:
            gone = [r for r in record.joining if r in replicas]
            joining = tuple(r for r in record.joining if r not in replicas)
            return replace(record, joining=joining, dropping=(*record.dropping, *gone))

        await self.change(loglet, dropped)

    async def removed(self, loglet: LogId, *replicas: Replica) -> None:
        """They are gone from their nodes."""

        def without(record: ChainedRecord) -> ChainedRecord:
            return replace(record, dropping=tuple(r for r in record.dropping if r not in replicas))

        await self.change(loglet, without)

    async def forget(self, loglet: LogId) -> None:
        """Nothing is left of it."""
        kept = self._kept.get(loglet)
        if kept is None:
            return
        async with kept.changing:
            await self._write(kept, None)
            self._hide(kept.record)
            self._kept.pop(loglet, None)

    async def _write(self, kept: _Kept, record: ChainedRecord | None) -> None:
        key = chained_key(kept.record.loglet)
        if not kept.certain:  # nobody acted upon what may have been written: it may be replaced
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

    def _show(self, record: ChainedRecord) -> None:
        self._by_stream[record.stream_id] = record.loglet
        self._by_log[record.log_id][record.loglet] = None
        self._count(record, 1)

    def _hide(self, record: ChainedRecord) -> None:
        self._count(record, -1)
        self._by_stream.pop(record.stream_id, None)
        self._by_log[record.log_id].pop(record.loglet, None)
        if not self._by_log[record.log_id]:
            del self._by_log[record.log_id]

    def _count(self, record: ChainedRecord, by: int) -> None:
        for node in _nodes_used(record):
            self._load_of[node] += by


def _nodes_used(record: ChainedRecord) -> list[NodeId]:
    """One for each replica."""
    return [r.node_id for r in (*record.projection.replicas, *record.joining)]


def _gone(loglet: LogId) -> NotFound:
    return NotFound(f"segment {loglet} was deleted")
