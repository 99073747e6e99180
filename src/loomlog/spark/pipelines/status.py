"""How pipelines are: who runs them, how far they are, how fresh their output is.

Needs no Spark: all of it is in the metadata repository and in the logs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from loomlog.errors import LoomError, NotFound
from loomlog.spark.pipelines import codec
from loomlog.spark.pipelines.store import PREFIX, register_name
from loomlog.spark.pipelines.units import Counters, Progress
from loomlog.types import Glsn

if TYPE_CHECKING:
    from loomlog.client.blocking import BlockingCluster, BlockingLog
    from loomlog.client.leases import LeaseInfo


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How far one of its sources is processed."""

    log: str
    position: Glsn  # committed up to and with
    tail: Glsn
    lag_records: int
    lag_s: float | None  # between the newest record and the last committed one; None: not known


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """One pipeline."""

    name: str
    state: str  # running | paused | stopped | finished
    site: str  # that is active, empty if none is
    epoch: int
    output: str
    version: int
    sources: tuple[SourceStatus, ...]
    unit: dict[str, Any] | None  # that is under way
    counters: Counters
    committed_at: float  # seconds since 1970; 0: never
    error: str

    @property
    def lag_records(self) -> int:
        return sum(source.lag_records for source in self.sources)

    @property
    def lag_s(self) -> float | None:
        """Of the source that is furthest behind."""
        known = [source.lag_s for source in self.sources if source.lag_s is not None]
        return max(known) if len(known) == len(self.sources) else None


def statuses(cluster: BlockingCluster, name: str | None = None) -> list[PipelineStatus]:
    """Of all pipelines, or of one; raises NotFound if there is no such one."""
    found = cluster.registers(PREFIX if name is None else register_name(name))
    if name is not None:
        found = {key: value for key, value in found.items() if key == register_name(name)}
        if not found:
            raise NotFound(f"there is no pipeline {name!r}: `loom pipeline list` shows them")
    leases = {lease.name: lease for lease in cluster.leases(PREFIX)}
    return [
        _status(cluster, key.removeprefix(PREFIX), codec.decode(value.value), leases.get(key))
        for key, value in found.items()
    ]


def as_fields(status: PipelineStatus) -> dict[str, Any]:
    """For JSON."""
    return asdict(status) | {"lag_records": status.lag_records, "lag_s": status.lag_s}


def _status(
    cluster: BlockingCluster, name: str, progress: Progress, lease: LeaseInfo | None
) -> PipelineStatus:
    active = lease is not None and bool(lease.holder) and lease.left_s > 0
    unit = progress.unit
    return PipelineStatus(
        name=name,
        state=_state(progress, active),
        site=lease.holder if lease is not None and active else "",
        epoch=progress.epoch,
        output=str(progress.definition.get("output", "")),
        version=progress.version,
        sources=tuple(
            _source(cluster.log(log), position, progress.ends.get(log))
            for log, position in progress.positions.items()
        ),
        unit=None if unit is None else asdict(unit) | {"staged": None},
        counters=progress.counters,
        committed_at=progress.committed_at,
        error=progress.error,
    )


def _state(progress: Progress, active: bool) -> str:
    if progress.at_end:
        return "finished"
    if progress.paused:
        return "paused"
    return "running" if active else "stopped"


def _source(log: BlockingLog, position: Glsn, end: Glsn | None) -> SourceStatus:
    """`end`: there is nothing to do behind it."""
    try:
        tail = log.tail()
    except NotFound:
        return SourceStatus(log.name, position, 0, 0, None)
    last = tail if end is None else min(tail, end)
    lag = max(0, last - position)
    return SourceStatus(log.name, position, tail, lag, _lag_s(log, position, last))


def _lag_s(log: BlockingLog, position: Glsn, tail: Glsn) -> float | None:
    if position >= tail:
        return 0.0
    newest, done = _time(log, tail), _time(log, max(position, 1))
    return None if newest is None or done is None else max(0.0, (newest - done).total_seconds())


def _time(log: BlockingLog, position: Glsn) -> datetime | None:
    try:
        return log.read(position).timestamp
    except LoomError:
        return None  # trimmed meanwhile
