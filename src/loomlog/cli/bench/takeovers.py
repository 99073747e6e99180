"""Measures the cost of several metadata repositories, and the stall when their leader is gone.

The same appends on a cluster with one vmr and on one with three, in one run. Then, under appends at
a steady rate, the leader of the three is killed with -9 (its connections close), and another time
stopped with SIGSTOP (it goes silent) and woken.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Final

from loomlog.cli.bench import many_streams
from loomlog.cli.bench.many_streams import RoundRate
from loomlog.cli.bench.measurements import Result, append_concurrently, append_one_at_a_time
from loomlog.cli.bench.run import Progress, Target, private_cluster
from loomlog.cli.bench.steady_writer import SteadyWriter
from loomlog.cli.processes.local_processes import LocalProcesses

if TYPE_CHECKING:
    from loomlog import Cluster, Log

NODES: Final = 3
METADATA: Final = 3
RECORD_BYTES: Final = 1024
CALLERS: Final = 1024
REPEATS_MAX: Final = 3  # of each stall; all are reported
SILENT_S: Final = 4.0  # how long a stopped leader sleeps
AFTERWARDS_S: Final = 1.0
PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Takeover:
    """A leader was lost; times in seconds."""

    how: str
    stall_s: float  # longest time without any append acknowledged
    longest_append_s: float
    failed_appends: int


@dataclass(slots=True)
class Report:
    alone: dict[int, Result] = field(default_factory=dict)  # by the number of vmr
    together: dict[int, Result] = field(default_factory=dict)
    takeovers: list[Takeover] = field(default_factory=list)
    rounds: RoundRate | None = None


def scenario_count(seconds: float) -> int:
    return 5 + 2 * _repeats(seconds)


def _repeats(seconds: float) -> int:
    return max(1, min(REPEATS_MAX, round(seconds)))


async def measure(target: Target, seconds: float, streams: int, progress: Progress) -> Report:
    """Measure; everything started or created for it is removed afterwards."""
    report = Report()
    for metadata in (1, METADATA):
        async with private_cluster(target, NODES, metadata) as (processes, cluster):
            log = await cluster.create_log("bench-takeovers", replicas=NODES)
            await _appends(log, metadata, seconds, report, progress)
            if metadata > 1:
                place = _Place(processes, cluster, log)
                await _takeovers(place, _repeats(seconds), report, progress)
    progress(f"rounds of {streams:,} streams", seconds)
    report.rounds = await many_streams.measure(target, METADATA, streams, seconds)
    return report


@dataclass(frozen=True, slots=True)
class _Place:
    processes: LocalProcesses
    cluster: Cluster
    log: Log

    async def leader(self) -> int:
        """Return the vmr that leads, once all of them are there."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status = await self.cluster.status()
                if status.leader and all(member.lag == 0 for member in status.members):
                    return status.leader
                await asyncio.sleep(0.05)


async def _appends(
    log: Log, metadata: int, seconds: float, report: Report, progress: Progress
) -> None:
    progress(f"append, one at a time, {metadata} vmr", seconds)
    report.alone[metadata] = await append_one_at_a_time(log, RECORD_BYTES, seconds)
    progress(f"append, {CALLERS} callers, {metadata} vmr", seconds)
    report.together[metadata] = await append_concurrently(log, RECORD_BYTES, seconds, CALLERS)


async def _takeovers(place: _Place, repeats: int, report: Report, progress: Progress) -> None:
    for how, lose in (("kill -9", _kill), ("SIGSTOP", _silence)):
        for _ in range(repeats):
            progress(f"{how} of the leader", SILENT_S)
            report.takeovers.append(await _takeover(place, how, lose))


async def _takeover(
    place: _Place, how: str, lose: Callable[[_Place, int], Awaitable[None]]
) -> Takeover:
    leader = await place.leader()
    async with SteadyWriter(place.log) as writer:
        await asyncio.sleep(1)
        begun = perf_counter()
        await lose(place, leader)
        await asyncio.sleep(AFTERWARDS_S)
        await writer.all_ended(before=perf_counter())
        end = perf_counter()
    return Takeover(
        how=how,
        stall_s=writer.longest_gap_s(begun, end),
        longest_append_s=writer.longest_s(begun, end),
        failed_appends=writer.failed(begun, end),
    )


async def _kill(place: _Place, leader: int) -> None:
    await place.processes.end(f"vmr-{leader}", signal.SIGKILL)
    await asyncio.sleep(AFTERWARDS_S)
    await place.processes.start_again(f"vmr-{leader}")


async def _silence(place: _Place, leader: int) -> None:
    pid = place.processes.pids[f"vmr-{leader}"]
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(SILENT_S)
    finally:
        os.kill(pid, signal.SIGCONT)
