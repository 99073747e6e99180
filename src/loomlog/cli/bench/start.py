"""Measures how long a storage node takes to start on existing data.

A private cluster of one node is filled; then the node is ended and started again, on a cold page
cache: nothing of its data is in memory.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Final

from loomlog.cli.bench.measurements import fill
from loomlog.cli.bench.run import Progress, Target
from loomlog.cli.console.command import connected
from loomlog.cli.processes.local_processes import LocalProcesses, Plan, running
from loomlog.errors import InvalidArgument

if TYPE_CHECKING:
    from loomlog import Log

RECORD_BYTES: Final = 16 * 1024
BATCH_RECORDS: Final = 64  # 1 MiB
BATCHES_IN_FLIGHT: Final = 8
SPACE_RESERVE: Final = 1.1  # headers, preallocated files
SPACE_LEFT_BYTES: Final = 1_000_000_000  # never fill a disk completely for a measurement
LOOK_EVERY_S: Final = 0.01
NODE: Final = "vsn-1"
SCENARIOS: Final = 4


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the node, in seconds from the start of its process."""

    before: str  # how it had ended, what it found
    stored_mb: float
    ready_s: float  # it has opened its data and is registered
    serving_s: float  # its stream takes appends


async def starts(gigabytes: float, target: Target, progress: Progress) -> list[Start]:
    """Measure; everything started or created for it is removed afterwards."""
    with TemporaryDirectory(prefix="loom-bench-", dir=target.data) as scratch:
        directory = Path(scratch)
        _check_space(directory, gigabytes)
        plan = Plan(directory=directory, nodes=1, sync=target.sync)
        async with running(plan) as processes:
            return await _measure(processes, directory, gigabytes, progress)


def _check_space(directory: Path, gigabytes: float) -> None:
    needed = gigabytes * 1e9 * SPACE_RESERVE + SPACE_LEFT_BYTES
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise InvalidArgument(
            f"{needed / 1e9:.1f} GB of free space are needed for this and {directory.parent} has "
            f"{free / 1e9:.1f} GB: measure fewer, or on another disk with --data"
        )


async def _measure(
    processes: LocalProcesses, directory: Path, gigabytes: float, progress: Progress
) -> list[Start]:
    async with connected(processes.address) as cluster:
        log = await cluster.create_log("bench-start", replicas=1)
        measured = []

        async def start(before: str, number: signal.Signals, stored_mb: float) -> None:
            progress(f"start after {before}", 2)
            await processes.end(NODE, number)
            await asyncio.to_thread(_forget_pages, directory / NODE)
            measured.append(await _start(processes, log, before, stored_mb))

        await start("a clean stop, empty", signal.SIGTERM, 0.0)
        progress(f"filling with {gigabytes:g} GB", 3 * gigabytes)
        stored_mb = await _fill(log, gigabytes * 1e9) / 1e6
        await start("a clean stop", signal.SIGTERM, stored_mb)
        await start("kill -9", signal.SIGKILL, stored_mb)
    return measured


async def _start(processes: LocalProcesses, log: Log, before: str, stored_mb: float) -> Start:
    started = perf_counter()
    await processes.start_again(NODE)
    ready_s = perf_counter() - started
    await _runs(log)
    serving_s = perf_counter() - started
    await log.append(b"it takes appends")
    return Start(before, stored_mb, ready_s, serving_s)


async def _runs(log: Log) -> None:
    while True:
        if all(stream.state == "running" for stream in (await log.describe()).streams):
            return
        await asyncio.sleep(LOOK_EVERY_S)


async def _fill(log: Log, wanted_bytes: float) -> int:
    """Append `wanted_bytes` in big batches and return the bytes appended."""
    batches = max(1, round(wanted_bytes / (RECORD_BYTES * BATCH_RECORDS)))
    return await fill(log, RECORD_BYTES, BATCH_RECORDS, batches, BATCHES_IN_FLIGHT)


def _forget_pages(directory: Path) -> None:
    """Let the kernel drop what it holds of these files in memory."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)  # dirty pages cannot be dropped
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
