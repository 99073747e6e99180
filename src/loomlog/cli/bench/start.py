"""Measures how long a storage node takes to start on existing data.

A private cluster of one node is filled; then the node is ended and started again, on a cold page
cache: nothing of its data is in memory.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from loomlog.cli.bench.measurements import fill
from loomlog.cli.bench.private_cluster import PrivateCluster, Progress, Target, private_cluster
from loomlog.cli.bench.reports import number_table
from loomlog.cli.console.output import console
from loomlog.cli.processes.local_processes import LocalProcesses
from loomlog.errors import InvalidArgument

if TYPE_CHECKING:
    from loomlog import Log

RECORD_BYTES: Final = 16 * 1024
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


@dataclass(frozen=True, slots=True)
class StartReport:
    """Starts of one node, with more and more data."""

    starts: tuple[Start, ...]

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    def print(self) -> None:
        columns = ("stored MB", "registered s", "takes appends s")
        table = number_table("start of a vsn after", *columns)
        for start in self.starts:
            times = (f"{start.ready_s:.2f}", f"{start.serving_s:.2f}")
            table.add_row(start.before, f"{start.stored_mb:,.0f}", *times)
        console().print(table)


async def measure(target: Target, gigabytes: float, progress: Progress) -> StartReport:
    """Measure; everything started or created for it is removed afterwards."""
    _check_space(target.data or Path(tempfile.gettempdir()), gigabytes)
    async with private_cluster(target, nodes=1) as private:
        return await _measure(private, gigabytes, progress)


def _check_space(directory: Path, gigabytes: float) -> None:
    needed = gigabytes * 1e9 * SPACE_RESERVE + SPACE_LEFT_BYTES
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise InvalidArgument(
            f"{needed / 1e9:.1f} GB of free space are needed for this and {directory} has "
            f"{free / 1e9:.1f} GB: measure fewer, or on another disk with --data"
        )


async def _measure(private: PrivateCluster, gigabytes: float, progress: Progress) -> StartReport:
    log = await private.client.create_log("bench-start", replicas=1)

    async def start(before: str, number: signal.Signals, stored_mb: float) -> Start:
        progress(f"start after {before}", 2)
        await private.processes.end(NODE, number)
        await asyncio.to_thread(_forget_pages, private.directory / NODE)
        return await _start(private.processes, log, before, stored_mb)

    empty = await start("a clean stop, empty", signal.SIGTERM, 0.0)
    progress(f"filling with {gigabytes:g} GB", 3 * gigabytes)
    records = max(1, round(gigabytes * 1e9 / RECORD_BYTES))
    await fill(log, records, RECORD_BYTES)
    stored_mb = records * RECORD_BYTES / 1e6
    stopped = await start("a clean stop", signal.SIGTERM, stored_mb)
    return StartReport((empty, stopped, await start("kill -9", signal.SIGKILL, stored_mb)))


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
