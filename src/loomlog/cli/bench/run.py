"""Measures a cluster: the machine, idle servers, then for every record size writes and reads."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from loomlog.cli.bench import charts
from loomlog.cli.bench.machine import (
    CpuByProcess,
    Idle,
    describe,
    fdatasync_ms,
    idle,
    memory_mb,
)
from loomlog.cli.bench.measurements import (
    Result,
    append_concurrently,
    append_many,
    append_one_at_a_time,
    append_to_subscriber,
    fill,
    mixed,
    read_one_at_a_time,
    subscribe,
    subscribe_arrow,
)
from loomlog.cli.bench.private_cluster import Progress, Target, private_cluster
from loomlog.cli.bench.reports import memory, number, number_table, result_fields, say
from loomlog.cli.console.command import connected
from loomlog.cli.console.output import console
from loomlog.limits import MIB
from loomlog.types import Glsn

if TYPE_CHECKING:
    from loomlog import Cluster, Log


PREPARED_BYTES: Final = 64 * MIB  # to be read, if appends are not measured


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """The measurements to make. `log` None: a fresh one for every size, deleted afterwards."""

    log: str | None
    sizes: tuple[int, ...]
    batches: tuple[int, ...]
    seconds: float
    concurrency: int
    protocol: str
    streams: int
    replicas: int
    kinds: tuple[str, ...] = ("append", "read", "subscribe")  # of scenarios
    against: str | None = None  # a protocol: of a second fresh log that does the same in turn


@dataclass(slots=True)
class LogReport:
    """The figures of one log for each size, and of a second one to compare it with."""

    settings: BenchSettings
    nodes: int
    sync: list[str]  # modes found; more than one only in a mixed cluster
    is_secure: bool = False  # with TLS, and the log to compare it with is without
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

    def fields(self) -> dict[str, Any]:
        return {
            "machine": asdict(describe(self.fdatasyncs_ms)),
            "cluster": {
                "nodes": self.nodes,
                "sync": "+".join(self.sync),
                "protocol": self.protocol,
                "streams": self.streams,
                "replicas": self.replicas,
            },
            "settings": asdict(self.settings),
            "idle": None if self.idle is None else asdict(self.idle),
            "rss_after_mb": self.rss_after_mb,
            "results": [result_fields(result) for result in self.results],
            "against": [result_fields(result) for result in self.against],
            "ratios": [round(ratio, 3) for ratio in self.ratios],
        }

    def print(self) -> None:
        facts = describe(self.fdatasyncs_ms)
        versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
        say(
            f"{self.protocol}, sync={'+'.join(self.sync)}, {self.replicas} replicas, "
            f"{self.streams} streams, {self.nodes} nodes; {facts.cores} cores, "
            f"fdatasync {facts.fdatasync_ms:.2f} ms; {versions}"
        )
        other = "without TLS" if self.is_secure else self.settings.against
        compared = (f"{other}: records/s", "ratio", "p50 ms") if self.against else ()
        columns = ("bytes", "batch", "records/s", "MB/s", "p50 ms", "p99 ms", "p99.9 ms", "max ms")
        table = number_table("scenario", *columns, *compared)
        for index, result in enumerate(self.results):
            table.add_row(*_cells(result), *self._compared(index))
        console().print(table)
        for result in self.results:
            charts.print_result(result)
        if self.idle is not None:
            cpu = f"{self.idle.cpu_percent:.1f} % of one core in total"
            say(f"idle: {cpu}; {memory(self.idle.rss_mb)}")
            say(f"after the run: {memory(self.rss_after_mb)}")

    def _compared(self, index: int) -> tuple[str, ...]:
        if not self.against:
            return ()
        other = self.against[index]
        ratio = f"{self.ratios[index]:.2f}"
        return f"{other.records_per_s:,.0f}", ratio, number(other.p50_ms, ".2f")


def _cells(result: Result) -> tuple[str, ...]:
    return (
        result.scenario,
        f"{result.record_bytes:,}",
        str(result.batch),
        f"{result.records_per_s:,.0f}",
        f"{result.mb_per_s:,.1f}",
        number(result.p50_ms, ".2f"),
        number(result.p99_ms, ".2f"),
        number(result.p999_ms, ".2f"),
        number(result.max_ms, ".1f"),
    )


def scenario_count(settings: BenchSettings, target: Target) -> int:
    logs = 1 if settings.against is None else 2
    per_size = len(list(_scenarios(1, settings))) * logs
    return per_size * len(settings.sizes) + (1 if target.up else 0)


async def bench(settings: BenchSettings, target: Target, progress: Progress) -> LogReport:
    """Measure everything; what was started or created for it is removed afterwards."""
    if target.up is None:
        async with connected(target.address) as cluster:
            return await _measure(settings, target, cluster, {}, progress)
    async with private_cluster(target, target.up) as private:
        pids = private.processes.pids
        if not target.secure:
            return await _measure(settings, target, private.client, pids, progress)
        async with private_cluster(replace(target, secure=False), target.up) as plain:
            return await _measure(settings, target, private.client, pids, progress, plain.client)


async def _measure(
    settings: BenchSettings,
    target: Target,
    cluster: Cluster,
    pids: dict[str, int],
    progress: Progress,
    plain: Cluster | None = None,
) -> LogReport:
    """`plain` is a cluster without TLS, whose log is measured in turn."""
    status = await cluster.status()
    modes = sorted({str(node.sync_mode) for node in status.nodes if node.alive})
    report = LogReport(settings, len(status.nodes), modes, is_secure=plain is not None)
    if pids:
        async with _log(cluster, settings, settings.protocol):
            progress("idle", settings.seconds)
            report.idle = await idle(pids, settings.seconds)
    for size in settings.sizes:
        async with (
            _log(cluster, settings, settings.protocol) as log,
            _log_against(plain or cluster, settings) as other,
        ):
            active = (await log.describe()).segments[-1]
            report.protocol = active.protocol
            report.streams, report.replicas = active.streams, active.replicas
            report.fdatasyncs_ms.append(fdatasync_ms(target.data))
            measured = [(log, report.results)]
            if other is not None:
                measured.insert(0, (other, report.against))
            await _measure_size(measured, size, settings, pids, progress)
    report.rss_after_mb = memory_mb(pids)
    return report


Scenario: TypeAlias = Callable[["Log", Glsn], Awaitable[Result | list[Result]]]
"""Given a log and where its measured entries begin."""


async def _measure_size(
    logs: list[tuple[Log, list[Result]]],
    size: int,
    settings: BenchSettings,
    pids: dict[str, int],
    progress: Progress,
) -> None:
    """Measure each scenario on one log, then the other, so that other load affects both."""
    firsts = [await log.tail() + 1 for log, _ in logs]
    await _prepare([log for log, _ in logs], size, settings)
    for name, scenario in _scenarios(size, settings):
        for (log, results), first in zip(logs, firsts, strict=True):
            progress(f"{name}, {size} B", settings.seconds)
            use = CpuByProcess(pids)
            measured = await scenario(log, first)
            lines = [measured] if isinstance(measured, Result) else measured
            cpu = use.percent()
            results += [replace(line, cpu_percent=cpu) for line in lines]


async def _prepare(logs: list[Log], size: int, settings: BenchSettings) -> None:
    """Append the entries to be read, if appends are not measured."""
    if "append" in settings.kinds:
        return
    for log in logs:
        if "read" in settings.kinds:  # entries in batches of their own
            await append_one_at_a_time(log, size, min(settings.seconds, 1.0))
        if "subscribe" in settings.kinds:
            await fill(log, max(1, PREPARED_BYTES // size), size)


def _scenarios(size: int, settings: BenchSettings) -> Iterator[tuple[str, Scenario]]:
    s, callers, kinds = settings.seconds, settings.concurrency, settings.kinds
    if "append" in kinds:
        yield "append, one at a time", lambda log, _: append_one_at_a_time(log, size, s)
    if "read" in kinds:
        yield "read, one at a time", lambda log, first: read_one_at_a_time(log, size, s, first)
    for batch in settings.batches if "append" in kinds else ():
        if batch == 1:
            yield "append", lambda log, _: append_concurrently(log, size, s, callers)
        else:
            yield f"append_many {batch}", _many(size, s, batch)
    if "subscribe" in kinds:
        yield "subscribe", lambda log, first: subscribe(log, size, s, first)
        yield "subscribe_arrow", lambda log, first: subscribe_arrow(log, size, s, first)
        yield "append to subscriber", lambda log, _: append_to_subscriber(log, size, s)
    if "mixed" in kinds:
        yield "mixed", lambda log, _: mixed(log, size, s, callers)


def _many(size: int, seconds: float, batch: int) -> Scenario:
    return lambda log, _: append_many(log, size, seconds, batch)


@asynccontextmanager
async def _log(cluster: Cluster, settings: BenchSettings, protocol: str) -> AsyncIterator[Log]:
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
async def _log_against(cluster: Cluster, settings: BenchSettings) -> AsyncIterator[Log | None]:
    if settings.against is None:
        yield None
        return
    async with _log(cluster, settings, settings.against) as log:
        yield log
