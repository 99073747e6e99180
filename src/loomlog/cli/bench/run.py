"""The order of a bench: machine, idle servers, then for every record size writing and reading."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

from loomlog import limits
from loomlog.cli.bench.machine import Idle, fdatasync_ms, idle, memory_mb
from loomlog.cli.bench.measurements import (
    Result,
    append_concurrently,
    append_many,
    append_one_at_a_time,
    append_to_subscriber,
    read_one_at_a_time,
    subscribe,
    subscribe_arrow,
)
from loomlog.cli.console.command import connected
from loomlog.cli.processes.local_processes import LocalProcesses, Plan, running
from loomlog.types import Glsn, SyncMode

if TYPE_CHECKING:
    from loomlog import Cluster, Log


@dataclass(frozen=True, slots=True)
class Settings:
    """The measurements to make. `log` None: a fresh one for every size, deleted afterwards."""

    log: str | None
    sizes: tuple[int, ...]
    batches: tuple[int, ...]
    seconds: float
    concurrency: int
    protocol: str
    streams: int
    replicas: int
    against: str | None = None  # a protocol: of a second fresh log that does the same in turn


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster to measure: one that runs at `address`, or a private one of `up` nodes."""

    address: str
    up: int | None
    sync: SyncMode
    data: Path | None  # parent of the private cluster's directory; None: the system's choice


@asynccontextmanager
async def private_cluster(
    target: Target, nodes: int, metadata: int = 1, timeout_s: float = limits.REQUEST_TIMEOUT_S
) -> AsyncIterator[tuple[LocalProcesses, Cluster]]:
    """Start a cluster and connect to it; all of it is gone at the end of the block."""
    with TemporaryDirectory(prefix="loom-bench-", dir=target.data) as scratch:
        plan = Plan(directory=Path(scratch), nodes=nodes, metadata=metadata, sync=target.sync)
        async with running(plan) as processes, connected(processes.address, timeout_s) as cluster:
            yield processes, cluster


@dataclass(slots=True)
class Report:
    settings: Settings
    nodes: int
    sync: list[str]  # modes found; more than one only in a mixed cluster
    protocol: str = ""
    streams: int = 0
    replicas: int = 0
    idle: Idle | None = None
    rss_after_mb: dict[str, float] = field(default_factory=dict)  # of a private cluster's servers
    fdatasyncs_ms: list[float] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    against: list[Result] = field(default_factory=list)  # line by line, if that was asked for

    @property
    def ratios(self) -> list[float]:
        """The rates relative to those of the other log."""
        pairs = zip(self.results, self.against, strict=False)
        return [one.records_per_s / (other.records_per_s or 1.0) for one, other in pairs]


Progress: TypeAlias = Callable[[str, float], None]
"""Told what begins, and about how many seconds it takes."""


def scenario_count(settings: Settings, target: Target) -> int:
    logs = 1 if settings.against is None else 2
    per_size = (len(settings.batches) + 5) * logs
    return per_size * len(settings.sizes) + (1 if target.up else 0)


async def bench(settings: Settings, target: Target, progress: Progress) -> Report:
    """Measure everything; what was started or created for it is removed afterwards."""
    with TemporaryDirectory(prefix="loom-bench-", dir=target.data) as scratch:
        directory = Path(scratch)
        if target.up is None:
            return await _measure(settings, target.address, {}, directory, progress)
        plan = Plan(directory=directory, nodes=target.up, sync=target.sync)
        async with running(plan) as processes:
            address, pids = processes.address, processes.pids
            return await _measure(settings, address, pids, directory, progress)


async def _measure(
    settings: Settings,
    address: str,
    pids: dict[str, int],
    directory: Path,
    progress: Progress,
) -> Report:
    async with connected(address) as cluster:
        status = await cluster.status()
        modes = sorted({str(node.sync_mode) for node in status.nodes if node.alive})
        report = Report(settings, len(status.nodes), modes)
        if pids:
            async with _log(cluster, settings, settings.protocol):
                progress("idle", settings.seconds)
                report.idle = await idle(pids, settings.seconds)
        for size in settings.sizes:
            async with (
                _log(cluster, settings, settings.protocol) as log,
                _log_against(cluster, settings) as other,
            ):
                info = await log.describe()
                active = info.segments[-1]
                report.protocol = active.protocol
                report.streams, report.replicas = active.streams, active.replicas
                report.fdatasyncs_ms.append(fdatasync_ms(directory))
                measured = [(log, report.results)]
                if other is not None:
                    measured.insert(0, (other, report.against))
                await _measure_size(measured, size, settings, progress)
        report.rss_after_mb = memory_mb(pids)
    return report


Scenario: TypeAlias = Callable[["Log", Glsn], Awaitable[Result]]
"""Given a log and where its measured entries begin."""


async def _measure_size(
    logs: list[tuple[Log, list[Result]]], size: int, settings: Settings, progress: Progress
) -> None:
    """Measure each scenario on one log, then the other, so that other load affects both."""
    firsts = [await log.tail() + 1 for log, _ in logs]
    for name, scenario in _scenarios(size, settings):
        for (log, results), first in zip(logs, firsts, strict=True):
            progress(f"{name}, {size} B", settings.seconds)
            results.append(await scenario(log, first))


def _scenarios(size: int, settings: Settings) -> Iterator[tuple[str, Scenario]]:
    s, callers = settings.seconds, settings.concurrency
    yield "append, one at a time", lambda log, _: append_one_at_a_time(log, size, s)
    yield "read, one at a time", lambda log, first: read_one_at_a_time(log, size, s, first)
    for batch in settings.batches:
        if batch == 1:
            yield "append", lambda log, _: append_concurrently(log, size, s, callers)
        else:
            yield f"append_many {batch}", _many(size, s, batch)
    yield "subscribe", lambda log, first: subscribe(log, size, s, first)
    yield "subscribe_arrow", lambda log, first: subscribe_arrow(log, size, s, first)
    yield "append to subscriber", lambda log, _: append_to_subscriber(log, size, s)


def _many(size: int, seconds: float, batch: int) -> Scenario:
    return lambda log, _: append_many(log, size, seconds, batch)


@asynccontextmanager
async def _log(cluster: Cluster, settings: Settings, protocol: str) -> AsyncIterator[Log]:
    if settings.log is not None:
        yield cluster.log(settings.log)
        return
    name = f"bench-{secrets.token_hex(4)}"
    log = await cluster.create_log(name, protocol, settings.streams, settings.replicas)
    try:
        yield log
    finally:
        await asyncio.shield(cluster.delete_log(name))


@asynccontextmanager
async def _log_against(cluster: Cluster, settings: Settings) -> AsyncIterator[Log | None]:
    if settings.against is None:
        yield None
        return
    async with _log(cluster, settings, settings.against) as log:
        yield log
