"""The status of pipelines: their active sites, their progress and their lag.

This needs no Spark: the status is computed from the metadata repository and the logs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from loomlog.errors import LoomError, NotFound
from loomlog.metrics import Metric, Sample, text
from loomlog.spark.pipelines.store import PREFIX, decode, register_name
from loomlog.spark.pipelines.units import Counters, Progress
from loomlog.types import Glsn

if TYPE_CHECKING:
    from loomlog.client.blocking import BlockingCluster, BlockingLog
    from loomlog.client.kv.leases import LeaseInfo


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The progress in one source."""

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
        """The lag of the source that is furthest behind."""
        known = [source.lag_s for source in self.sources if source.lag_s is not None]
        return max(known) if len(known) == len(self.sources) else None


def statuses(cluster: BlockingCluster, name: str | None = None) -> list[PipelineStatus]:
    """Return the status of all pipelines, or of one; raise NotFound if it does not exist."""
    found = cluster.registers(PREFIX if name is None else register_name(name))
    if name is not None:
        found = {key: value for key, value in found.items() if key == register_name(name)}
        if not found:
            raise NotFound(f"there is no pipeline {name!r}: `loom pipeline list` shows them")
    leases = {lease.name: lease for lease in cluster.leases(PREFIX)}
    return [
        _status(cluster, key.removeprefix(PREFIX), decode(value.value), leases.get(key))
        for key, value in found.items()
    ]


def as_fields(status: PipelineStatus) -> dict[str, Any]:
    """Return the status for JSON."""
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
    """Return the status of a source; entries after `end` are not processed."""
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


# ---- for Prometheus

_Figure = Callable[[PipelineStatus], float | None]

_FIGURES: Final[tuple[tuple[str, str, str, _Figure], ...]] = (
    ("lag_records", "gauge", "Records not processed yet.", lambda s: s.lag_records),
    ("lag_seconds", "gauge", "Time between newest and last processed record.", lambda s: s.lag_s),
    ("running", "gauge", "1 if a site is active.", lambda s: int(s.state == "running")),
    ("committed_time_seconds", "gauge", "Last commit, since 1970.", lambda s: s.committed_at),
    ("units", "counter", "Units committed.", lambda s: s.counters.units),
    ("records", "counter", "Records committed.", lambda s: s.counters.records),
    ("dead_letters", "counter", "Records put away.", lambda s: s.counters.dead_letters),
    ("failures", "counter", "Units that failed.", lambda s: s.counters.failures),
)


def metrics_of(statuses: Iterable[PipelineStatus]) -> list[Metric]:
    found = list(statuses)
    return [
        Metric(
            f"pipeline_{name}",
            kind,
            meaning,
            [
                Sample(value, {"pipeline": status.name})
                for status in found
                if (value := figure(status)) is not None
            ],
        )
        for name, kind, meaning, figure in _FIGURES
    ]


def write_metrics(path: Path, statuses: Iterable[PipelineStatus]) -> None:
    """Atomically replace the file that Prometheus' collector of text files reads."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text(metrics_of(statuses)))
    draft.replace(path)
