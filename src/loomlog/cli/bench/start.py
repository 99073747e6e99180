"""Measures how long a storage node takes to start on existing data.

A private cluster of one node is filled; then the node is stopped and started again with a cold page
cache, so that none of its data is in memory.
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

from loomlog.cli.bench.measurements import at_once, fill
from loomlog.cli.bench.private_cluster import PrivateCluster, Progress, Target, private_cluster
from loomlog.cli.bench.reports import number_table
from loomlog.cli.console.output import console
from loomlog.cli.processes.local_processes import LocalProcesses
from loomlog.errors import InvalidArgument

if TYPE_CHECKING:
    from loomlog import Log

RECORD_BYTES: Final = 16 * 1024
SMALL_BYTES: Final = 1024  # of a record that is a block of its own
SMALL_AT_ONCE: Final = 64
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

    protocol: str
    blocks: int | None  # of one record each; None: large ones
    starts: tuple[Start, ...]

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    def print(self) -> None:
        columns = ("stored MB", "registered s", "takes appends s")
        blocks = f", {self.blocks:,} blocks" if self.blocks else ""
        table = number_table(f"start of a vsn ({self.protocol}{blocks}) after", *columns)
        for start in self.starts:
            times = (f"{start.ready_s:.2f}", f"{start.serving_s:.2f}")
            table.add_row(start.before, f"{start.stored_mb:,.0f}", *times)
        console().print(table)


async def measure(
    target: Target, protocol: str, gigabytes: float, small: bool, progress: Progress
) -> StartReport:
    """Measure; everything started or created for it is removed afterwards. `small`: many blocks of
    one record each."""
    _check_space(target.data or Path(tempfile.gettempdir()), gigabytes)
    async with private_cluster(target, nodes=1) as private:
        return await _measure(private, protocol, gigabytes, small, progress)


def _check_space(directory: Path, gigabytes: float) -> None:
    needed = gigabytes * 1e9 * SPACE_RESERVE + SPACE_LEFT_BYTES
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise InvalidArgument(
            f"{needed / 1e9:.1f} GB of free space are needed for this and {directory} has "
            f"{free / 1e9:.1f} GB: measure fewer, or on another disk with --data"
        )


async def _measure(
    private: PrivateCluster, protocol: str, gigabytes: float, small: bool, progress: Progress
) -> StartReport:
    log = await private.client.create_log("bench-start", protocol, replicas=1)

    async def start(before: str, number: signal.Signals, stored_mb: float) -> Start:
        progress(f"start after {before}", 2)
        await private.processes.end(NODE, number)
        await asyncio.to_thread(_forget_pages, private.directory / NODE)
        return await _start(private.processes, log, before, stored_mb)

    empty = await start("a clean stop, empty", signal.SIGTERM, 0.0)
    progress(f"filling with {gigabytes:g} GB", 3 * gigabytes)
    record_bytes = SMALL_BYTES if small else RECORD_BYTES
    records = max(1, round(gigabytes * 1e9 / record_bytes))
    await (_fill_small(private.processes, records) if small else fill(log, records, record_bytes))
    stored_mb = records * record_bytes / 1e6
    stopped = await start("a clean stop", signal.SIGTERM, stored_mb)
    killed = await start("kill -9", signal.SIGKILL, stored_mb)
    return StartReport(protocol, records if small else None, (empty, stopped, killed))


async def _fill_small(processes: LocalProcesses, records: int) -> None:
    """Append this many records, none of which shares its block."""
    import loomlog

    client = await loomlog.connect(processes.address, tls=processes.tls, append_batch_bytes=1)
    async with client:
        log, value = client.log("bench-start"), os.urandom(SMALL_BYTES)
        await at_once(SMALL_AT_ONCE, range(records), lambda _: log.append(value))


async def _start(processes: LocalProcesses, log: Log, before: str, stored_mb: float) -> Start:
    started = perf_counter()
    await processes.start_again(NODE)
    ready_s = perf_counter() - started
    await _runs(log)
    await log.append(b"it takes appends")
    serving_s = perf_counter() - started
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
