"""Measures the cost of several metadata repositories, and the stall when their leader fails.

The same appends on a cluster with one vmr and on one with three, in one run. Then, under appends at
a steady rate, the leader of the three is killed with -9 (its connections close), and another time
stopped with SIGSTOP (it goes silent) and woken.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from loomlog.cli.bench import many_streams
from loomlog.cli.bench.many_streams import RoundRate
from loomlog.cli.bench.measurements import Result, append_concurrently, append_one_at_a_time
from loomlog.cli.bench.private_cluster import PrivateCluster, Progress, Target, private_cluster
from loomlog.cli.bench.reports import number, number_table, result_fields, say
from loomlog.cli.bench.steady_writer import SteadyWriter
from loomlog.cli.console.output import console

if TYPE_CHECKING:
    from loomlog import Log

NODES: Final = 3
METADATA: Final = 3
RECORD_BYTES: Final = 1024
CALLERS: Final = 1024
REPEATS_MAX: Final = 3  # of each stall; all are reported
SILENT_S: Final = 4.0  # how long a stopped leader sleeps
AFTERWARDS_S: Final = 1.0
PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class LostLeader:
    """A leader was lost; times in seconds."""

    how: str
    stall_s: float  # longest time without any append acknowledged
    longest_append_s: float
    failed_appends: int


@dataclass(slots=True)
class TakeoverReport:
    """Appends with one and with several metadata repositories, and losses of their leader."""

    alone: dict[int, Result] = field(default_factory=dict)  # by the number of vmr
    together: dict[int, Result] = field(default_factory=dict)
    takeovers: list[LostLeader] = field(default_factory=list)
    rounds: RoundRate | None = None

    def fields(self) -> dict[str, Any]:
        return {
            "one_at_a_time": {n: result_fields(result) for n, result in self.alone.items()},
            "concurrent": {n: result_fields(result) for n, result in self.together.items()},
            "takeovers": [asdict(takeover) for takeover in self.takeovers],
            "rounds": None if self.rounds is None else asdict(self.rounds),
        }

    def print(self) -> None:
        columns = ("one at a time, p50 ms", f"{CALLERS} callers, records/s")
        costs = number_table("metadata repositories", *columns)
        for count, alone in self.alone.items():
            together = f"{self.together[count].records_per_s:,.0f}"
            costs.add_row(str(count), number(alone.p50_ms, ".2f"), together)
        console().print(costs)
        losses = number_table("of the leader", "stall s", "longest append s", "failed")
        for lost in self.takeovers:
            times = (f"{lost.stall_s:.3f}", f"{lost.longest_append_s:.3f}")
            losses.add_row(lost.how, *times, str(lost.failed_appends))
        console().print(losses)
        if (rounds := self.rounds) is not None:
            say(
                f"{rounds.streams:,} streams, {rounds.metadata} vmr: made in "
                f"{rounds.created_s:.1f} s; a round of one entry each p50 {rounds.p50_ms:.0f} ms, "
                f"p99 {rounds.p99_ms:.0f} ms, leader {rounds.leader_cpu_percent:.0f} % of a core "
                f"({rounds.idle_cpu_percent:.1f} % idle)"
            )


def scenario_count(seconds: float) -> int:
    return 5 + 2 * _repeats(seconds)


def _repeats(seconds: float) -> int:
    return max(1, min(REPEATS_MAX, round(seconds)))


async def measure(
    target: Target, seconds: float, streams: int, progress: Progress
) -> TakeoverReport:
    """Measure; everything started or created for it is removed afterwards."""
    report = TakeoverReport()
    for metadata in (1, METADATA):
        async with private_cluster(target, NODES, metadata) as private:
            log = await private.client.create_log("bench-takeovers", replicas=NODES)
            await _appends(log, metadata, seconds, report, progress)
            if metadata > 1:
                await _takeovers(private, log, _repeats(seconds), report, progress)
    progress(f"rounds of {streams:,} streams", seconds)
    report.rounds = await many_streams.measure(target, METADATA, streams, seconds)
    return report


async def _leader(private: PrivateCluster) -> int:
    """Return the vmr that leads, once all of them are there."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            status = await private.client.status()
            if status.leader and all(member.lag == 0 for member in status.members):
                return status.leader
            await asyncio.sleep(0.05)


async def _appends(
    log: Log, metadata: int, seconds: float, report: TakeoverReport, progress: Progress
) -> None:
    progress(f"append, one at a time, {metadata} vmr", seconds)
    report.alone[metadata] = await append_one_at_a_time(log, RECORD_BYTES, seconds)
    progress(f"append, {CALLERS} callers, {metadata} vmr", seconds)
    report.together[metadata] = await append_concurrently(log, RECORD_BYTES, seconds, CALLERS)


async def _takeovers(
    private: PrivateCluster, log: Log, repeats: int, report: TakeoverReport, progress: Progress
) -> None:
    for how, lose in (("kill -9", _kill), ("SIGSTOP", _silence)):
        for _ in range(repeats):
            progress(f"{how} of the leader", SILENT_S)
            report.takeovers.append(await _takeover(private, log, how, lose))


async def _takeover(
    private: PrivateCluster,
    log: Log,
    how: str,
    lose: Callable[[PrivateCluster, int], Awaitable[None]],
) -> LostLeader:
    leader = await _leader(private)
    async with SteadyWriter(log) as writer:
        await asyncio.sleep(1)
        begun = perf_counter()
        await lose(private, leader)
        await asyncio.sleep(AFTERWARDS_S)
        await writer.all_ended(before=perf_counter())
        end = perf_counter()
    return LostLeader(
        how=how,
        stall_s=writer.longest_gap_s(begun, end),
        longest_append_s=writer.longest_s(begun, end),
        failed_appends=writer.failed(begun, end),
    )


async def _kill(private: PrivateCluster, leader: int) -> None:
    await private.processes.end(f"vmr-{leader}", signal.SIGKILL)
    await asyncio.sleep(AFTERWARDS_S)
    await private.processes.start_again(f"vmr-{leader}")


async def _silence(private: PrivateCluster, leader: int) -> None:
    pid = private.processes.pids[f"vmr-{leader}"]
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(SILENT_S)
    finally:
        os.kill(pid, signal.SIGCONT)
