"""The event log of rebuilding, replayed as a state machine. Pure.

All who replay the same events have the same state. An event that does not fit the state changes
nothing: it was written twice, or decided on before another one.

    INTACT ──restore──▶ RESTORING ──unrecoverable──▶ LOST ──refill──▶ REFILLING
      │   ◀───abort────    │   ▲                       │                 │   └──is rebuilt──▶ INTACT
      │                    │   └──restore, refill──────┼─────────────────┘
      │                    └───────is rebuilt──────────┴──▶ EMPTY ──acknowledged──▶ INTACT
      └──relocate──▶ RELOCATING ──is rebuilt──▶ DRAINED
          (restore: RESTORING)     both ──undrain──▶ INTACT

A shard that has copies and loses them is LOST from any of these states. One that is EMPTY or
DRAINED may get some of later epochs before it counts as INTACT: it may be LOST, too, and one that
is EMPTY may be RESTORING. One that is away while it is refilled may return, too, perhaps with the
only copy of something.

The version is the number of the last event that changed which shards are rebuilt, other than by
their being done. Donors of an older version stop and start again. When a version begins, it is
decided which logs its donors leave out, because they cannot be recovered for now: the others do not
wait for these. A rescan begins another version that takes them in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from loomlog.core.copyset.nodeset import Authority
from loomlog.types import ShardId


class Mode(StrEnum):
    """The reason why the copies of a shard are needed elsewhere."""

    RESTORE = "restore"  # it is away, or lost them
    RELOCATE = "relocate"  # it is drained: it stays readable, and is a donor itself


class Status(StrEnum):
    """The state of a shard."""

    INTACT = "intact"
    RESTORING = "restoring"  # away: it may return with what it had
    LOST = "lost"  # what it had is gone
    REFILLING = "refilling"  # the same, but it is back: it gets its copies again
    RELOCATING = "relocating"
    EMPTY = "empty"  # what it had is on other shards
    DRAINED = "drained"  # the same, and it is to leave


@dataclass(frozen=True, slots=True)
class NeedsRebuild:
    """The copies of a shard are needed elsewhere."""

    shard: ShardId
    mode: Mode


@dataclass(frozen=True, slots=True)
class DonorProgress:
    """The part of a donor in rebuilding a shard. `scans` counts those it has finished: the first
    covers the records that are its own task, the second those that other donors left."""

    shard: ShardId
    donor: ShardId
    version: int
    records: int
    size_bytes: int
    scans: int = 0


@dataclass(frozen=True, slots=True)
class IsRebuilt:
    """All donors are done, and no record can have had all its copies on shards that may return."""

    shard: ShardId
    version: int


@dataclass(frozen=True, slots=True)
class Abort:
    """A shard that was away is back with what it had."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class Unrecoverable:
    """A shard will never again have what it had: its disk is gone, or an operator says so."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class Refill:
    """A shard that lost what it had, all or some, is there: its copies are made again in place."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class Rescan:
    """Logs of a shard that donors left out are recovered now."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class Undrain:
    """A shard is no longer drained."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A shard is back after it was rebuilt. It may take records again."""

    shard: ShardId


Event: TypeAlias = (
    NeedsRebuild
    | DonorProgress
    | IsRebuilt
    | Abort
    | Unrecoverable
    | Refill
    | Rescan
    | Undrain
    | Acknowledged
)

_REBUILT: Final = frozenset({Status.RESTORING, Status.LOST, Status.REFILLING, Status.RELOCATING})
# One that is refilled has copies of epochs after its event.
_DONORS: Final = frozenset({Status.INTACT, Status.REFILLING, Status.RELOCATING})
_TARGETS: Final = frozenset({Status.INTACT, Status.REFILLING})

TRANSITIONS: Final[Mapping[Status, Mapping[type[Event] | Mode, Status]]] = {
    Status.INTACT: {
        Mode.RESTORE: Status.RESTORING,
        Mode.RELOCATE: Status.RELOCATING,
        Unrecoverable: Status.LOST,
    },
    Status.RESTORING: {
        IsRebuilt: Status.EMPTY,
        Abort: Status.INTACT,
        Refill: Status.REFILLING,
        Rescan: Status.RESTORING,
        Unrecoverable: Status.LOST,
    },
    Status.LOST: {
        IsRebuilt: Status.EMPTY,
        Refill: Status.REFILLING,
        Rescan: Status.LOST,
        Unrecoverable: Status.LOST,  # later epochs were recovered without it
    },
    Status.REFILLING: {
        IsRebuilt: Status.INTACT,
        Mode.RESTORE: Status.RESTORING,
        Rescan: Status.REFILLING,
        Unrecoverable: Status.LOST,
    },
    Status.RELOCATING: {
        IsRebuilt: Status.DRAINED,
        Rescan: Status.RELOCATING,
        Undrain: Status.INTACT,
        Mode.RESTORE: Status.RESTORING,
        Unrecoverable: Status.LOST,
    },
    Status.EMPTY: {
        Acknowledged: Status.INTACT,
        Mode.RESTORE: Status.RESTORING,
        Unrecoverable: Status.LOST,
    },
    Status.DRAINED: {Undrain: Status.INTACT, Unrecoverable: Status.LOST},
}

AUTHORITIES: Final[Mapping[Status, Authority]] = {
    Status.INTACT: Authority.FULL,
    Status.RESTORING: Authority.UNAVAILABLE,
    Status.LOST: Authority.UNDERREPLICATED,
    Status.REFILLING: Authority.UNAVAILABLE,  # it says itself what it lost
    Status.RELOCATING: Authority.FULL,
    Status.EMPTY: Authority.EMPTY,
    Status.DRAINED: Authority.EMPTY,
}


class Progress(NamedTuple):
    """The last report of a donor about a shard, in this version."""

    donor: ShardId
    records: int
    size_bytes: int
    scans: int


class Shard(NamedTuple):
    """A shard that is not intact."""

    status: Status
    progress: tuple[Progress, ...] = ()  # by donor


_INTACT: Final = Shard(Status.INTACT)


@dataclass(frozen=True)
class RebuildState:
    """The state after some number of events."""

    events: int = 0  # applied
    version: int = 0
    shards: Mapping[ShardId, Shard] = field(default_factory=dict)  # all others are intact

    def status(self, shard: ShardId) -> Status:
        return self.shards.get(shard, _INTACT).status


def apply(state: RebuildState, event: Event) -> RebuildState:
    """Return the state after an event."""
    state = replace(state, events=state.events + 1)
    if isinstance(event, DonorProgress):
        return _progressed(state, event)
    if isinstance(event, IsRebuilt) and event.version != state.version:
        return state  # decided before the shards changed
    key = event.mode if isinstance(event, NeedsRebuild) else type(event)
    status = TRANSITIONS[state.status(event.shard)].get(key)
    if status is None:
        return state
    changed = _with_status(state, event.shard, status)
    if isinstance(event, IsRebuilt | Acknowledged):
        return changed
    restarted = {shard: Shard(each.status) for shard, each in changed.shards.items()}
    return replace(changed, version=state.events, shards=restarted)


def _with_status(state: RebuildState, shard: ShardId, status: Status) -> RebuildState:
    shards = {other: each for other, each in state.shards.items() if other != shard}
    if status is not Status.INTACT:
        shards[shard] = Shard(status)
    return replace(state, shards=shards)


def _progressed(state: RebuildState, event: DonorProgress) -> RebuildState:
    shard = state.shards.get(event.shard, _INTACT)
    if event.version != state.version or shard.status not in _REBUILT:
        return state
    report = Progress(event.donor, event.records, event.size_bytes, event.scans)
    before = next((each for each in shard.progress if each.donor == event.donor), report)
    report = report._replace(scans=max(report.scans, before.scans))
    others = (each for each in shard.progress if each.donor != event.donor)
    shard = shard._replace(progress=tuple(sorted([*others, report])))
    return replace(state, shards={**state.shards, event.shard: shard})


# ---- queries


def authority(state: RebuildState, shard: ShardId) -> Authority:
    """Return what it means that the shard lacks a record of an epoch that it was given copies of
    before its event."""
    return AUTHORITIES[state.status(shard)]


def rebuilt(state: RebuildState) -> list[ShardId]:
    """Return the shards whose copies are being restored or relocated."""
    return sorted(shard for shard, each in state.shards.items() if each.status in _REBUILT)


def absent(state: RebuildState) -> list[ShardId]:
    """Return the shards that are being rebuilt and lack what they had."""
    return [shard for shard in rebuilt(state) if state.status(shard) is not Status.RELOCATING]


def may_return(state: RebuildState) -> list[ShardId]:
    """Return the shards that are away and may return with what they had."""
    return [shard for shard in rebuilt(state) if state.status(shard) is Status.RESTORING]


def donors(state: RebuildState, shards: Iterable[ShardId]) -> list[ShardId]:
    """Return those of the shards that have to look for records to restore."""
    return [shard for shard in shards if state.status(shard) in _DONORS]


def targets(state: RebuildState, shards: Iterable[ShardId]) -> list[ShardId]:
    """Return those of the shards that restored copies may go to."""
    return [shard for shard in shards if state.status(shard) in _TARGETS]


def has_scanned(
    state: RebuildState, shard: ShardId, donors: Collection[ShardId], scans: int
) -> bool:
    """Return whether all these donors have finished this many scans for the shard."""
    progress = state.shards.get(shard, _INTACT).progress
    return {each.donor for each in progress if each.scans >= scans}.issuperset(donors)


# ---- snapshots


def snapshot(state: RebuildState) -> tuple[Any, ...]:
    """Return the state as numbers, texts and tuples."""
    shards = tuple(
        (shard, str(each.status), tuple(map(tuple, each.progress)))
        for shard, each in sorted(state.shards.items())
    )
    return state.events, state.version, shards


def from_snapshot(parts: tuple[Any, ...]) -> RebuildState:
    events, version, shards = parts
    return RebuildState(
        events,
        version,
        {
            shard: Shard(Status(status), tuple(Progress(*each) for each in progress))
            for shard, status, progress in shards
        },
    )
