"""Measures how steady appends are over minutes, close to the peak, with background work and
readers.

First the peak is measured with many callers. Then appends run at a share of it for the given time,
each started when it is due, whether or not earlier ones were answered, up to a limit: more appends
slow the client down, and it would fall behind further and further. Meanwhile retention removes
old entries, nodes scrub their data, one reader follows the tail, and another repeatedly reads the
log from its head. Latencies count from the time at which an append was due.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from loomlog import limits
from loomlog.cli.bench import reports
from loomlog.cli.bench.charts import sparkline
from loomlog.cli.bench.machine import CpuByProcess, memory_mb
from loomlog.cli.bench.measurements import append_concurrently
from loomlog.cli.bench.private_cluster import PrivateCluster, Progress, Target, private_cluster
from loomlog.cli.bench.reports import number_table, say
from loomlog.cli.console.output import console
from loomlog.errors import LoomError, Trimmed

if TYPE_CHECKING:
    from loomlog import Log

NODES: Final = 3
CALLERS: Final = 1024
UNDER_WAY_MAX: Final = 64 * CALLERS  # appends under load
PEAK_S_MIN: Final = 1.0  # a first batch of all callers takes a while on a busy machine
PEAK_S_MAX: Final = 10.0
KEPT_S: Final = 30.0  # of appends, by retention
PACE_S: Final = 0.002
CATCH_UP_FACTOR: Final = 2.0  # of the rate of appends
STALL_S: Final = 0.1  # without an acknowledgement: worth an explanation
STALLS_MAX: Final = 100  # that are listed
PERIODS: Final = 60  # of the time, for charts and memory
SCENARIOS: Final = 2

_LEAST_S: Final = 1e-5
_BINS_PER_DECADE: Final = 200
_DECADES: Final = 7


class Latencies:
    """Percentiles of any number of latencies, within about one percent, in constant memory."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS_PER_DECADE * _DECADES, np.int64)
        self.longest_s = 0.0

    def add(self, seconds: array[float]) -> None:
        if not seconds:
            return
        values = np.frombuffer(seconds, np.float64)
        self.longest_s = max(self.longest_s, float(values.max()))
        bins = np.log10(np.maximum(values, _LEAST_S) / _LEAST_S) * _BINS_PER_DECADE
        at = np.minimum(bins.astype(np.int64), len(self._counts) - 1)
        self._counts += np.bincount(at, minlength=len(self._counts))

    def percentile_ms(self, share: float) -> float | None:
        total = int(self._counts.sum())
        if not total:
            return None
        at = int(np.searchsorted(np.cumsum(self._counts), share * total))
        return float(1e3 * _LEAST_S * 10 ** ((at + 0.5) / _BINS_PER_DECADE))


@dataclass(frozen=True, slots=True)
class Stall:
    """A period without acknowledgements; seconds since the load began."""

    at_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Period:
    """A part of the time under load."""

    appends_per_s: float
    p99_ms: float | None
    longest_ms: float
    rss_mb: dict[str, float]  # at its end


@dataclass(slots=True)
class SteadinessReport:
    """Appends at a share of the peak, over time."""

    protocol: str
    record_bytes: int
    share: float
    seconds: float
    peak_per_s: float = 0.0
    appends_per_s: float = 0.0
    failed: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    longest_ms: float = 0.0
    stalls: list[Stall] = field(default_factory=list)
    caught_up_per_s: float = 0.0
    follower_lag_ms: float | None = None  # p99
    trimmed: int = 0
    cpu_percent: dict[str, float] = field(default_factory=dict)
    periods: list[Period] = field(default_factory=list)

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    def print(self) -> None:
        say(
            f"{self.protocol}, {NODES} nodes and replicas, {self.record_bytes:,} B: "
            f"{self.appends_per_s:,.0f} appends/s for {self.seconds:g} s, "
            f"{self.share:.0%} of a peak of {self.peak_per_s:,.0f}; {self.failed} failed"
        )
        times = {"p50": self.p50_ms, "p99": self.p99_ms, "p99.9": self.p999_ms}
        percentiles = ", ".join(
            f"{name} {reports.number(ms, '.1f')} ms" for name, ms in times.items()
        )
        say(f"{percentiles}, longest {self.longest_ms:.0f} ms")
        say(
            f"a reader caught up at {self.caught_up_per_s:,.0f} records/s; one that followed the "
            f"tail had records {reports.number(self.follower_lag_ms, '.1f')} ms (p99) after they "
            f"were due; {self.trimmed:,} entries were trimmed"
        )
        say(f"  p99 ms  {sparkline([one.p99_ms for one in self.periods])}")
        used = ", ".join(f"{name} {share:.0f}" for name, share in self.cpu_percent.items())
        say(f"CPU, % of a core: {used}")
        for stall in self.stalls:
            say(f"no acknowledgement for {stall.seconds * 1e3:.0f} ms at {stall.at_s:.1f} s")
        table = number_table("memory, MB", "first", "middle", "last", "most")
        for name in self.periods[0].rss_mb:
            sizes = [one.rss_mb[name] for one in self.periods]
            shown = (sizes[0], sizes[len(sizes) // 2], sizes[-1], max(sizes))
            table.add_row(name, *(f"{size:.0f}" for size in shown))
        console().print(table)


async def measure(
    target: Target,
    protocol: str,
    record_bytes: int,
    share: float,
    seconds: float,
    progress: Progress,
) -> SteadinessReport:
    """Measure; everything started or created for it is removed afterwards."""
    report = SteadinessReport(protocol, record_bytes, share, seconds)
    async with private_cluster(target, NODES) as private:
        peak_s = min(max(seconds, PEAK_S_MIN), PEAK_S_MAX)
        progress("the peak", peak_s)
        first = await private.client.create_log("bench-peak", protocol, 1, NODES)
        peak = await append_concurrently(first, record_bytes, peak_s, CALLERS)
        await private.client.delete_log(first.name)
        report.peak_per_s = peak.records_per_s
        rate = share * peak.records_per_s
        if not rate:
            raise LoomError(f"no append was acknowledged within {peak_s:g} s: measure for longer")
        kept = max(limits.RETENTION_BYTES_MIN, int(rate * KEPT_S * record_bytes))
        log = await private.client.create_log("bench", protocol, 1, NODES, retention_bytes=kept)
        progress(f"{rate:,.0f} appends/s", seconds)
        await _Load(log, rate, report).run(private)
    return report


class _Load:
    """Appends at a steady rate, with concurrent readers."""

    def __init__(self, log: Log, rate: float, report: SteadinessReport) -> None:
        self._log = log
        self._rate = rate
        self._report = report
        self._value = os.urandom(report.record_bytes)
        self._under_way: set[asyncio.Future[Any]] = set()
        self._all = Latencies()
        self._appended = 0
        self._caught_up = 0
        self._begun = 0.0
        self._acknowledged_at = 0.0
        self._recent = array("d")  # latencies of this period

    async def run(self, private: PrivateCluster) -> None:
        report, pids = self._report, {"client": os.getpid(), **private.processes.pids}
        await self._log.append(self._value)
        use = CpuByProcess(private.processes.pids)
        self._begun = self._acknowledged_at = perf_counter()
        follower_lag = Latencies()
        beside = [
            asyncio.ensure_future(self._follow(follower_lag)),
            asyncio.ensure_future(self._catch_up()),
        ]
        pacing = asyncio.ensure_future(self._pace())
        try:
            for period in range(1, PERIODS + 1):
                left_s = self._begun + period * report.seconds / PERIODS - perf_counter()
                await asyncio.wait({pacing, *beside}, timeout=max(0.0, left_s))
                report.periods.append(self._end_period(pids))
        finally:
            tasks = [pacing, *beside]
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        took_s = perf_counter() - self._begun
        report.cpu_percent = use.percent()
        report.appends_per_s = self._appended / took_s
        report.caught_up_per_s = self._caught_up / took_s
        report.p50_ms, report.p99_ms, report.p999_ms = (
            self._all.percentile_ms(part) for part in (0.5, 0.99, 0.999)
        )
        report.longest_ms = self._all.longest_s * 1e3
        report.follower_lag_ms = follower_lag.percentile_ms(0.99)
        if self._under_way:
            await asyncio.wait(self._under_way)
        report.trimmed = (await self._log.head()) - 1

    def _end_period(self, pids: dict[str, int]) -> Period:
        latencies, self._recent = self._recent, array("d")
        self._all.add(latencies)
        period = Latencies()
        period.add(latencies)
        return Period(
            appends_per_s=len(latencies) * PERIODS / self._report.seconds,
            p99_ms=period.percentile_ms(0.99),
            longest_ms=period.longest_s * 1e3,
            rss_mb=memory_mb(pids),
        )

    # ---- appends

    async def _pace(self) -> None:
        count = 0
        while True:
            due = int(min(perf_counter() - self._begun, self._report.seconds) * self._rate)
            due = min(due, count + UNDER_WAY_MAX - len(self._under_way))
            for number in range(count, due):
                self._append(self._begun + number / self._rate)
            count = max(count, due)
            await asyncio.sleep(PACE_S)

    def _append(self, due: float) -> None:
        append = asyncio.ensure_future(self._log.append(self._value))
        self._under_way.add(append)

        def ended(append: asyncio.Future[Any]) -> None:
            self._under_way.discard(append)
            if append.cancelled() or append.exception() is not None:
                self._report.failed += 1
            else:
                self._acknowledged(due)

        append.add_done_callback(ended)

    def _acknowledged(self, due: float) -> None:
        now = perf_counter()
        self._appended += 1
        self._recent.append(now - due)
        gap = now - self._acknowledged_at
        if gap > STALL_S and len(self._report.stalls) < STALLS_MAX:
            self._report.stalls.append(Stall(self._acknowledged_at - self._begun, gap))
        self._acknowledged_at = now

    # ---- readers

    async def _follow(self, lag: Latencies) -> None:
        """Follow the tail; the n-th entry after the first was due at a known time."""
        first = await self._log.tail() + 1
        count = 0
        async with aclosing(self._log.subscribe_arrow(start=first)) as subscription:
            async for batch in subscription:
                now = perf_counter()
                count += batch.num_rows
                lag.add(array("d", [max(0.0, now - self._begun - count / self._rate)]))

    async def _catch_up(self) -> None:
        """Read the log from its head to its tail repeatedly, at a multiple of the rate."""
        while True:
            head, tail = await self._log.head(), await self._log.tail()
            begun, count = perf_counter(), 0
            subscription = self._log.subscribe_arrow(start=head, stop=tail)
            with suppress(Trimmed):  # retention overtook it
                async with aclosing(subscription):
                    async for batch in subscription:
                        count += batch.num_rows
                        self._caught_up += batch.num_rows
                        due = begun + count / (self._rate * CATCH_UP_FACTOR)
                        await asyncio.sleep(due - perf_counter())
            await asyncio.sleep(PACE_S)
