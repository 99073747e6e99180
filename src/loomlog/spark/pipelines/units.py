"""The life of a pipeline as one value: which unit is under way, what is committed. Pure.

A work unit is a contiguous range of each source. Its life:

    created ──▶ running ──▶ committing ──▶ (committed: folded into positions and counters)
       ▲           │
       └─ failed ──┘  after enough failures: halved, and in the end a record that is alone

Output is staged while the unit runs. `decided` records the staged rows and makes it committing.
From then on any runner publishes these rows and does not compute them again, unless they were lost
before they were visible (`undecided`).

Invariants: numbers of units only grow; positions move only when a unit is committed; the value
does not grow with the length of the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from loomlog.core.leases import EPOCHS_SKIPPED, was_restored_between
from loomlog.errors import Conflict, Fenced, InvalidArgument
from loomlog.types import Glsn

VERSIONS_SKIPPED: Final = 1000  # of outputs that restored metadata may have forgotten


class UnitRange(NamedTuple):
    """Positions `first` to `last`, both included; `last` is `first - 1` if there are none."""

    first: Glsn
    last: Glsn

    @property
    def records(self) -> int:
        return self.last - self.first + 1


class UnitState(StrEnum):
    """The states of a unit in progress."""

    CREATED = "created"
    RUNNING = "running"
    COMMITTING = "committing"


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit in progress."""

    number: int
    ranges: Mapping[str, UnitRange]  # by the name of the log
    state: UnitState = UnitState.CREATED
    failures: int = 0  # that may be its records' fault
    staged: Mapping[str, Any] | None = None  # what committing publishes
    batch: int | None = None  # the micro-batch, of a stateful pipeline

    @property
    def records(self) -> int:
        return sum(found.records for found in self.ranges.values())


@dataclass(frozen=True, slots=True)
class Counters:
    """Over the whole life of a pipeline."""

    units: int = 0
    records: int = 0
    dead_letters: int = 0
    failures: int = 0
    splits: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """The whole state of a pipeline."""

    definition: Mapping[str, Any]  # must not change while progress is kept: sources, output, …
    positions: Mapping[str, Glsn]  # by log: committed up to and with
    ends: Mapping[str, Glsn] = field(default_factory=dict)  # by log: work ends there, if ever
    next_unit: int = 1
    unit: Unit | None = None
    pieces: tuple[UnitRange, ...] = ()  # of a unit that was halved, still to do, in order
    life: str = ""  # distinguishes it from pipelines of the same name
    epoch: int = 0  # of the runner that changed it last
    version: int = 1  # of the output
    versions: int = 1  # the newest one that was assigned
    generation: int = 1  # of the checkpoint; a reset begins a new one
    query: str = ""  # the streaming query of the checkpoint
    batch: int = -1  # the last micro-batch that is committed
    counters: Counters = Counters()
    paused: bool = False
    anew: bool = False  # it was reset, and no runner has begun since
    committed_at: float = 0.0  # seconds since 1970
    error: str = ""

    @property
    def at_end(self) -> bool:
        """True if the pipeline has reached its ends."""
        reached = (self.positions[log] >= end for log, end in self.ends.items())
        return self.unit is None and bool(self.ends) and all(reached)


# ---- transitions: each gives the next value, or raises because it does not fit this one


def taken_over(progress: Progress, epoch: int) -> Progress:
    """Called when a runner whose lease has this epoch takes over the pipeline."""
    if epoch < progress.epoch:
        raise Fenced(f"another runner (epoch {progress.epoch}) took over from this one ({epoch})")
    return replace(progress, epoch=epoch, versions=_versions(progress, epoch))


def is_restored(progress: Progress, epoch: int) -> bool:
    """Return whether the metadata was restored from a copy since a runner changed this, so that
    units may have been committed which it does not know. `epoch` is that of the next runner."""
    return progress.epoch > 0 and was_restored_between(progress.epoch, epoch)


def is_unknown(progress: Progress, epoch: int) -> bool:
    """Return whether no runner has begun this, although the metadata was restored from a copy once:
    the copy may be older than a pipeline of this name."""
    return not progress.epoch and progress.generation == 1 and epoch >= EPOCHS_SKIPPED


def _versions(progress: Progress, epoch: int) -> int:
    """Return the newest version of the output that may have been assigned."""
    may_lack = is_restored(progress, epoch) or is_unknown(progress, epoch)
    return progress.versions + VERSIONS_SKIPPED * may_lack


def defined(progress: Progress, definition: Mapping[str, Any]) -> Progress:
    """The pipeline is defined like this; raises InvalidArgument if it was another one before."""
    for name, value in progress.definition.items():
        if definition.get(name) != value and not progress.anew:
            raise InvalidArgument(
                f"{name} was {value!r} and is now {definition.get(name)!r}: give the pipeline "
                "another name, or start over with `loom pipeline reset`"
            )
    positions = {log: progress.positions.get(log, 0) for log in definition["sources"].values()}
    return replace(progress, definition=dict(definition), anew=False, positions=positions)


def created(
    progress: Progress, ranges: Mapping[str, UnitRange], batch: int | None = None
) -> Progress:
    """Create a unit right after what is committed."""
    if progress.unit is not None:
        raise Conflict(f"unit {progress.unit.number} is still {progress.unit.state}")
    for log, found in ranges.items():
        _require_adjacent(progress, log, found)
    if batch is not None and batch <= progress.batch:
        raise Conflict(f"micro-batch {batch} is committed already")
    unit = Unit(progress.next_unit, dict(ranges), batch=batch)
    return replace(progress, unit=unit, next_unit=unit.number + 1)


def running(progress: Progress, number: int) -> Progress:
    """A runner works on the unit, for the first time or again."""
    unit = _unit(progress, number, UnitState.CREATED, UnitState.RUNNING)
    return replace(progress, unit=replace(unit, state=UnitState.RUNNING))


def decided(progress: Progress, number: int, staged: Mapping[str, Any]) -> Progress:
    """The staged rows are the output of the unit, for good."""
    unit = _unit(progress, number, UnitState.RUNNING)
    unit = replace(unit, state=UnitState.COMMITTING, staged=dict(staged))
    return replace(progress, unit=unit)


def undecided(progress: Progress, number: int) -> Progress:
    """The staged rows are lost and were never visible: compute them again."""
    unit = _unit(progress, number, UnitState.COMMITTING)
    return replace(progress, unit=replace(unit, state=UnitState.CREATED, staged=None))


def committed(progress: Progress, number: int, now: float, dead_letters: int = 0) -> Progress:
    """The output of the unit is visible."""
    unit = _unit(progress, number, UnitState.COMMITTING)
    done = {log: found.last for log, found in unit.ranges.items()}
    counters = replace(
        progress.counters,
        units=progress.counters.units + 1,
        records=progress.counters.records + unit.records,
        dead_letters=progress.counters.dead_letters + dead_letters,
    )
    return replace(
        progress,
        unit=None,
        positions={**progress.positions, **done},
        batch=progress.batch if unit.batch is None else unit.batch,
        pieces=progress.pieces[1:],
        counters=counters,
        committed_at=now,
        error="",
    )


def stopped(progress: Progress, error: str) -> Progress:
    """The pipeline stopped for this reason."""
    return replace(progress, error=error)


def failed(progress: Progress, number: int, error: str, *, counts: bool) -> Progress:
    """The unit is retried; `counts`: its records may have caused the failure."""
    unit = _unit(progress, number, UnitState.RUNNING)
    failures = unit.failures + counts
    counters = replace(progress.counters, failures=progress.counters.failures + 1)
    unit = replace(unit, state=UnitState.CREATED, failures=failures)
    return replace(progress, unit=unit, counters=counters, error=error)


def halved(progress: Progress, number: int) -> Progress:
    """Work on its first half alone; the second is the next unit."""
    unit = _unit(progress, number, UnitState.CREATED)
    if len(unit.ranges) != 1 or unit.records < 2:
        raise Conflict(f"unit {number} has no halves")
    ((log, whole),) = unit.ranges.items()
    middle = whole.first + whole.records // 2 - 1
    first, second = UnitRange(whole.first, middle), UnitRange(middle + 1, whole.last)
    later = progress.pieces[1:]  # this unit is the first of them, if it was halved before
    counters = replace(progress.counters, splits=progress.counters.splits + 1)
    return replace(
        progress,
        unit=replace(unit, ranges={log: first}, failures=0),
        pieces=(first, second, *later),
        counters=counters,
    )


def abandoned(progress: Progress) -> Progress:
    """The unit was not decided; it is created again, perhaps with other ranges."""
    if progress.unit is not None and progress.unit.state is UnitState.COMMITTING:
        raise Conflict(f"unit {progress.unit.number} is decided")
    return replace(progress, unit=None)


def paused(progress: Progress, wanted: bool) -> Progress:
    """Pause or resume: no unit starts while the pipeline is paused."""
    return replace(progress, paused=wanted)


def query_bound(progress: Progress, query: str) -> Progress:
    """The checkpoint of this streaming query is the pipeline's state from now on."""
    if progress.query not in ("", query):
        raise Conflict("the checkpoint is another query's")
    return replace(progress, query=query)


def extended(progress: Progress, ends: Mapping[str, Glsn], version: int) -> Progress:
    """There is more to do, into this version of the output."""
    return replace(progress, ends=dict(ends), version=version)


def new_version(progress: Progress, epoch: int) -> Progress:
    """One more version of the output is given out (`versions`). `epoch` is of the last runner."""
    return replace(progress, versions=_versions(progress, epoch) + 1)


def reset(
    progress: Progress,
    positions: Mapping[str, Glsn],
    *,
    same_output: bool,
    life: str,
    epoch: int = 0,
) -> Progress:
    """Continue after other positions, into a new version of the output unless `same_output`. A new
    life begins: an output that has more units than are known here takes the next ones. `epoch` is
    of the last runner."""
    unit = progress.unit
    is_committing = unit is not None and unit.state is UnitState.COMMITTING
    if same_output and is_committing and not is_restored(progress, epoch):
        assert unit is not None
        raise Conflict(f"unit {unit.number} is just being published: try again when it is done")
    unknown = sorted(set(positions) - set(progress.positions))
    if unknown:
        raise InvalidArgument(f"the pipeline does not read {', '.join(unknown)}")
    versions = _versions(progress, epoch) + (not same_output)
    return replace(
        progress,
        anew=True,
        positions={**progress.positions, **positions},
        unit=None,
        pieces=(),
        version=progress.version if same_output else versions,
        versions=versions,
        generation=progress.generation + 1,
        life=life,
        epoch=0,
        query="",
        batch=-1,
        error="",
    )


def next_range(progress: Progress, log: str, tail: Glsn, records_max: int) -> UnitRange | None:
    """Return the range of the next unit; None if there is nothing to do."""
    if progress.pieces:
        return progress.pieces[0]
    first = progress.positions[log] + 1
    last = min(tail, first + records_max - 1, progress.ends.get(log, tail))
    return UnitRange(first, last) if first <= last else None


def _unit(progress: Progress, number: int, *states: UnitState) -> Unit:
    unit = progress.unit
    if unit is None or unit.number != number:
        raise Conflict(f"unit {number} is no longer the one under way: the pipeline was reset")
    if unit.state not in states:
        raise Conflict(f"unit {number} is {unit.state}, not {' or '.join(states)}")
    return unit


def _require_adjacent(progress: Progress, log: str, found: UnitRange) -> None:
    if log not in progress.positions:
        raise InvalidArgument(f"the pipeline does not read log {log!r}")
    done = progress.positions[log]
    if found.first != done + 1 or found.records < 0:
        raise Conflict(f"log {log!r} is committed up to {done}, the unit begins at {found.first}")
    if progress.pieces and found != progress.pieces[0]:
        raise Conflict(f"the unit must be the piece {progress.pieces[0]} of the one that failed")
