"""The event log of rebuilding in the MetaStore: a snapshot, and the events after it.

    rebuild/snapshot           the state after some number of events
    rebuild/event/<number>     one event each, numbered from 1 on

Only the leader appends, since all its writes are fenced. The record of an event also states up to
which epoch of each loglet a shard is rebuilt, and which loglets donors leave out, so that all of it
becomes durable at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from loomlog.core.copyset.rebuild import events
from loomlog.core.copyset.rebuild.events import Event, Mode, NeedsRebuild, RebuildState
from loomlog.core.copyset.record import Epoch
from loomlog.errors import Conflict, SwapUnknown
from loomlog.metadata.catalog.records import MetadataRecord, decode, encode
from loomlog.metadata.store.contract import MetaStore
from loomlog.types import LogId, ShardId

PREFIX: Final = "rebuild/"
SNAPSHOT: Final = f"{PREFIX}snapshot"
EVENTS: Final = f"{PREFIX}event/"
EVENTS_MAX: Final = 128  # then there is another snapshot

_KINDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in Event.__args__}


class Extent(NamedTuple):
    """The part of a shard's copies that is rebuilt."""

    through: Mapping[LogId, Epoch]  # of each loglet, all up to this epoch
    loss: int | None = None  # which loss it covers


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A stored event."""

    kind: str
    fields: dict[str, Any]
    through: tuple[tuple[LogId, Epoch], ...] | None = None
    loss: int | None = None
    held: tuple[LogId, ...] = ()  # if it begins a version

    @property
    def event(self) -> Event:
        event: Event = _KINDS[self.kind](**self.fields)
        return replace(event, mode=Mode(event.mode)) if isinstance(event, NeedsRebuild) else event


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """The state after some number of events."""

    state: tuple[Any, ...]
    extents: tuple[tuple[ShardId, tuple[tuple[LogId, Epoch], ...], int | None], ...] = ()
    held: tuple[LogId, ...] = ()


class RebuildLog:
    """The events, replayed. Created by `load`."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store
        self._appending = asyncio.Lock()
        self._versions: dict[str, int] = {}  # of the keys that are there
        self._is_certain = True  # False: the last event may or may not have been written
        self.state = RebuildState()
        self.extents: dict[ShardId, Extent] = {}  # of the last rebuilding of each shard
        self.held: frozenset[LogId] = frozenset()  # donors of this version leave them out

    @classmethod
    async def load(cls, store: MetaStore) -> RebuildLog:
        log = cls(store)
        for key, item in sorted((await store.list(PREFIX)).items(), key=_snapshot_first):
            log._versions[key] = item.version
            if key == SNAPSHOT:
                log._adopt(decode(SnapshotRecord, key, item.value))
            elif key > _key(log.state.events):
                log._apply(decode(EventRecord, key, item.value))
        return log

    async def append(
        self, event: Event, extent: Extent | None = None, held: Collection[LogId] = ()
    ) -> None:
        """Make an event durable and apply it. If the event fits the state, `extent` is rebuilt from
        now on; if it begins a version, its donors leave `held` out."""
        through = None if extent is None else tuple(sorted(extent.through.items()))
        loss = None if extent is None else extent.loss
        left_out = tuple(sorted(held))
        record = EventRecord(type(event).__name__, asdict(event), through, loss, left_out)
        async with self._appending:
            if not self._is_certain:
                await self._look_again()
            await self._write(_key(self.state.events + 1), record)
            self._apply(record)
            if len(self._versions) > EVENTS_MAX:
                await self._take_snapshot()

    def drop(self, shard: ShardId) -> None:
        """Forget the extent of a shard that is intact and knows it; the next snapshot omits it."""
        self.extents.pop(shard, None)

    def _apply(self, record: EventRecord) -> None:
        before, event = self.state, record.event
        self.state = events.apply(before, event)
        if self.state.version == before.version:
            return
        self.held = frozenset(record.held)
        if record.through is not None:
            self.extents[event.shard] = Extent(dict(record.through), record.loss)

    def _adopt(self, record: SnapshotRecord) -> None:
        self.state = events.from_snapshot(record.state)
        self.extents = {shard: Extent(dict(pairs), loss) for shard, pairs, loss in record.extents}
        self.held = frozenset(record.held)

    async def _look_again(self) -> None:
        """Read the event whose write was not answered, if it was stored."""
        key = _key(self.state.events + 1)
        if (item := await self._store.get(key)) is not None:
            self._versions[key] = item.version
            self._apply(decode(EventRecord, key, item.value))
        self._is_certain = True

    async def _write(self, key: str, record: MetadataRecord | None) -> None:
        value = None if record is None else encode(record)
        try:
            version = await self._store.compare_and_swap(key, self._versions.get(key, 0), value)
        except (SwapUnknown, Conflict):
            self._is_certain = False
            raise
        if record is None:
            del self._versions[key]
        else:
            self._versions[key] = version

    async def _take_snapshot(self) -> None:
        extents = tuple(
            (shard, tuple(sorted(extent.through.items())), extent.loss)
            for shard, extent in sorted(self.extents.items())
        )
        covered = [key for key in self._versions if key != SNAPSHOT]
        try:
            held, state = tuple(sorted(self.held)), events.snapshot(self.state)
            await self._write(SNAPSHOT, SnapshotRecord(state, extents, held))
            for key in covered:
                await self._write(key, None)
        except (SwapUnknown, Conflict):
            # Remaining events are skipped when they are read.
            await self._read_versions()

    async def _read_versions(self) -> None:
        items = await self._store.list(PREFIX)
        self._versions = {key: item.version for key, item in items.items()}
        self._is_certain = True


def _key(number: int) -> str:
    return f"{EVENTS}{number:012d}"


def newest_event(keys: Iterable[str]) -> int:
    """Return the highest number in some keys of events; keys of snapshots have none."""
    return max((int(key.removeprefix(EVENTS)) for key in keys if key != SNAPSHOT), default=0)


def _snapshot_first(item: tuple[str, Any]) -> tuple[bool, str]:
    return item[0] != SNAPSHOT, item[0]
