"""Describes this machine (cores, versions, disk) and measures what servers use."""

from __future__ import annotations

import asyncio
import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Final

from loomlog.errors import LoomError

if TYPE_CHECKING:
    import psutil

PACKAGES: Final = ("loomlog", "pyarrow", "protobuf", "uvloop")
SYNC_WRITES: Final = 300
SYNC_WRITE_BYTES: Final = 4096
SYNC_FILE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine: the figures depend on it."""

    cores: int
    system: str
    versions: dict[str, str]
    fdatasync_ms: float  # median of small overwrites, taken between the measurements


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle servers, just after their start."""

    seconds: float
    cpu_percent: float  # of one core, all servers together
    rss_mb: dict[str, float]


def describe(fdatasyncs_ms: list[float]) -> Machine:
    """Describe this machine, with the measured speed of its disk."""
    return Machine(
        cores=os.cpu_count() or 1,
        system=f"{platform.system()} {platform.machine()}",
        versions={"python": platform.python_version(), **_versions()},
        fdatasync_ms=median(fdatasyncs_ms),
    )


def fdatasync_ms(directory: Path | None) -> float:
    """Return the median for writes like a storage node's: into a preallocated file."""
    with TemporaryDirectory(dir=directory) as scratch:
        fd = os.open(Path(scratch) / "file", os.O_RDWR | os.O_CREAT)
        try:
            os.write(fd, bytes(SYNC_FILE_BYTES))
            os.fsync(fd)
            return median(_timed_write(fd, n) for n in range(SYNC_WRITES)) * 1e3
        finally:
            os.close(fd)


def _timed_write(fd: int, number: int) -> float:
    started = perf_counter()
    os.pwrite(fd, bytes(SYNC_WRITE_BYTES), number * SYNC_WRITE_BYTES % SYNC_FILE_BYTES)
    os.fdatasync(fd)
    return perf_counter() - started


async def idle(pids: dict[str, int], seconds: float) -> Idle | None:
    """Measure CPU and memory of idle servers; None without psutil."""
    try:
        use = CpuUse(*pids.values())
    except LoomError:
        return None
    started = perf_counter()
    await asyncio.sleep(seconds)
    return Idle(perf_counter() - started, use.percent(), memory_mb(pids))


class CpuUse:
    """Measures the CPU time of processes from now on; raises LoomError without psutil."""

    def __init__(self, *pids: int) -> None:
        self._processes = [_process(pid) for pid in pids]
        self._used_before_s = self._used_s()
        self._started = perf_counter()

    def percent(self) -> float:
        """Return the use of all processes together, in percent of one core."""
        used_s = self._used_s() - self._used_before_s
        return 100 * used_s / (perf_counter() - self._started)

    def _used_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)


class CpuByProcess:
    """Measures the CPU time of this process and of others from now on, without psutil."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = {"client": os.getpid(), **pids}
        self._before = self._used_s()
        self._started = perf_counter()

    def percent(self) -> dict[str, float]:
        """Return the use of each process, in percent of one core."""
        elapsed_s, used = perf_counter() - self._started, self._used_s()
        return {
            name: round(100 * (used[name] - self._before[name]) / elapsed_s, 1)
            for name in self._before
            if name in used
        }

    def _used_s(self) -> dict[str, float]:
        """Return user and system time by process, from Linux; processes that ended are left out."""
        found = {}
        for name, pid in self._pids.items():
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                found[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return found


def _process(pid: int) -> psutil.Process:
    try:
        import psutil
    except ImportError:
        raise LoomError("psutil is missing: pip install psutil") from None
    return psutil.Process(pid)


def memory_mb(pids: dict[str, int]) -> dict[str, float]:
    """Return the resident memory of the servers; empty without psutil."""
    try:
        return {name: _process(pid).memory_info().rss / 1e6 for name, pid in pids.items()}
    except LoomError:
        return {}


def disk_mb(directory: Path) -> float:
    """Return the disk space that all files below a directory take."""
    blocks = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # servers still run: files come and go
            blocks += path.lstat().st_blocks
    return blocks * 512 / 1e6


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            pass
    return found
