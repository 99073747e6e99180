"""Processes of Spark and of a cluster that tests kill, freeze and start again.

A driver is a Python process, its JVM below it and the Python workers of its tasks below that. On a
standalone cluster the workers are below executors, which belong to nobody but the cluster.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil
import pyspark

import loomlog
from loomlog.cli.processes.local_metadata import HOST
from loomlog.errors import LoomError
from loomlog.spark.pipelines import store
from loomlog.spark.pipelines.store import register_name
from loomlog.spark.pipelines.units import Progress
from loomlog.testing.ports import free_port

WAIT_S = 180.0  # for anything, on a machine that has more to do
LOOK_S = 0.02
APPEND_S = 0.25  # between appends: what reads them shall not take all of the machine
_SPARK = {
    "PYSPARK_PYTHON": sys.executable,
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # for short lives
}
_STANDALONE = _SPARK | {
    "SPARK_LOCAL_IP": HOST,
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # it has a port of its own
}

Found = TypeVar("Found")


async def until(
    look: Callable[[], Awaitable[Found | None]], what: str, *drivers: SparkDriver
) -> Found:
    """Return the first thing that is found; an unreachable cluster has nothing."""
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                with suppress(LoomError):
                    if found := await look():
                        return found
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        said = "".join(f"\n{driver.name}: {driver.said[-2000:]}" for driver in drivers)
        raise AssertionError(f"never: {what}{said}") from None


class SparkDriver:
    """A program with a Spark driver in it."""

    def __init__(self, name: str, command: list[str], directory: Path) -> None:
        self.name = name
        self._command = command
        self._output = directory / f"{name}.out"
        self._process: asyncio.subprocess.Process | None = None
        self._family: list[psutil.Process] = []
        self._said_before = 0  # bytes, in earlier lives

    async def start(self) -> None:
        with self._output.open("ab") as output:
            self._said_before = output.tell()
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | _SPARK,
            )

    @property
    def said(self) -> str:
        """Return what the current process has printed."""
        if not self._output.exists():
            return ""
        return self._output.read_bytes()[self._said_before :].decode(errors="replace")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def python(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def jvm(self) -> psutil.Process | None:
        return next(_named(self._below(), "SparkSubmit"), None)

    def workers(self) -> list[psutil.Process]:
        return _workers(self._below())

    async def wait(self) -> int:
        """Wait until it ends, and return its exit code."""
        assert self._process is not None
        async with asyncio.timeout(WAIT_S):
            return await self._process.wait()

    async def stop(self) -> int:
        """Send SIGTERM, as an operator does."""
        self.python().terminate()
        return await self.wait()

    def freeze(self) -> None:
        """Suspend all its processes, parents first, so that none notices."""
        self._family = [self.python(), *self._below()]
        for process in self._family:
            process.suspend()

    def wake(self) -> None:
        for process in reversed(self._family):
            process.resume()

    async def clear(self) -> None:
        """Kill what is left of it."""
        if self._process is None:
            return
        if self.running:
            for process in [*self._below(), self.python()]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        await self._process.wait()

    def _below(self) -> list[psutil.Process]:
        try:
            return self.python().children(recursive=True)
        except psutil.NoSuchProcess:
            return []


class StandaloneSpark:
    """Spark's own cluster manager and workers of it, on this machine."""

    def __init__(self, directory: Path, workers: int = 1) -> None:
        self._directory = directory
        self._count = workers
        self._processes: list[asyncio.subprocess.Process] = []
        self._port = free_port()

    @property
    def address(self) -> str:
        return f"spark://{HOST}:{self._port}"

    def executors(self) -> list[psutil.Process]:
        return list(_named(self._below(), "CoarseGrainedExecutorBackend"))

    def workers(self) -> list[psutil.Process]:
        """Return the Python processes of tasks."""
        return _workers(self._below())

    async def __aenter__(self) -> StandaloneSpark:
        where = ["--host", HOST, "--port"]
        await self._start("master.Master", *where, str(self._port), "--webui-port", "0")
        for number in range(self._count):
            place = ["--work-dir", str(self._directory / f"worker-{number}")]
            size = ["--cores", "2", "--memory", "2g", "--webui-port", "0"]
            await self._start("worker.Worker", *where, "0", *size, *place, self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        below = self._below()
        for process in self._processes:
            process.kill()
            await process.wait()
        for orphan in below:
            with suppress(psutil.NoSuchProcess):
                orphan.kill()

    async def _start(self, kind: str, *arguments: str) -> None:
        program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        with (self._directory / "standalone.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(program, f"org.apache.spark.deploy.{kind}", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | _STANDALONE,
            )
        self._processes.append(process)

    def _below(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                found += psutil.Process(process.pid).children(recursive=True)
        return found


class Numbers:
    """Appends {"n": 0}, {"n": 1}, … to a log, whatever happens, until it is stopped."""

    def __init__(self, log: loomlog.Log, at_once: int = 100) -> None:
        self._log = log
        self._at_once = at_once
        self._writing = True
        self.acknowledged: list[int] = []

    async def stop(self) -> None:
        self._writing = False
        async with asyncio.timeout(WAIT_S):
            await self._task

    async def _write(self) -> None:
        next_number = 0
        while self._writing:
            numbers = range(next_number, next_number + self._at_once)
            next_number += self._at_once
            with suppress(LoomError):  # then nobody knows; the log tells in the end
                await self._log.append_many([json.dumps({"n": n}).encode() for n in numbers])
                self.acknowledged += numbers
            await asyncio.sleep(APPEND_S)

    async def __aenter__(self) -> Numbers:
        self._task = asyncio.create_task(self._write())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def pipeline_run(
    definitions: Path, name: str, cluster: str, directory: Path, site: str = "here", **options: str
) -> SparkDriver:
    """Run `loom pipeline run` as a process."""
    command = [sys.executable, "-m", "loomlog.cli.loom", "pipeline", "run", str(definitions)]
    command += ["--name", name, "--cluster", cluster, "--site", site]
    for option, value in options.items():
        command += [f"--{option.replace('_', '-')}", value]
    return SparkDriver(f"{name}-{site}", command, directory)


async def progress_of(cluster: loomlog.Cluster, pipeline: str) -> Progress | None:
    found = await cluster.register(register_name(pipeline)).get()
    return None if found is None else store.decode(found.value)


async def numbers_in(log: loomlog.Log) -> list[int]:
    """Return all numbers, in the order of the log."""
    tail = await log.tail()
    if not tail:
        return []
    return [json.loads(entry.value)["n"] async for entry in log.subscribe(1, tail)]


@asynccontextmanager
async def cleared(*drivers: SparkDriver) -> AsyncIterator[None]:
    """Kill the drivers that still run at the end of the block."""
    try:
        yield
    finally:
        for driver in drivers:
            await driver.clear()


def kill(process: psutil.Process) -> bool:
    """Send SIGKILL; return whether the process still existed."""
    try:
        os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _named(processes: list[psutil.Process], text: str) -> Iterator[psutil.Process]:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if any(text in argument for argument in process.cmdline()):
                yield process


def _workers(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return the workers, which daemons fork for each task."""
    daemons = {process.pid for process in _named(processes, "pyspark.daemon")}
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.ppid() in daemons:
                found.append(process)
    return found
