"""Exactly once, on real processes: whatever is killed, every record is once in every output.

Kills come when the victim is in the midst of something, never after a time.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGKILL

import psutil
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from kill_rig import (
    Numbers,
    SparkDriver,
    StandaloneSpark,
    cleared,
    kill,
    numbers_in,
    pipeline_run,
    progress_of,
    until,
)

import loomlog
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses, running
from loomlog.errors import NotFound
from loomlog.spark import table_files
from loomlog.spark.pipelines.units import UnitState
from loomlog.testing.ports import free_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

NODES = 4
SEED = 4
SOURCE = "numbers"
DEFINITIONS = """
from loomlog.spark import delta, log, parquet, pipeline

LOOPBACK = {{"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}}
COMMON = {{
    "source": "numbers", "decode": "json", "schema": "n long", "unit_records": 20_000,
    "spark": LOOPBACK | {{"spark.executor.memory": "512m", "spark.ui.enabled": "false"}},
}}

@pipeline("to-log", output=log("copied", streams=2), **COMMON)
def to_log(rows):
    return rows.select("n")

@pipeline("to-parquet", output=parquet("{place}/table"), **COMMON)
def to_parquet(rows):
    return rows.select("n")

@pipeline("to-delta", output=delta("{place}/delta"), **COMMON)
def to_delta(rows):
    return rows.select("n")
"""
SINK = """
import sys, loomlog.spark
cluster, checkpoint = sys.argv[1:]
spark = loomlog.spark.session("sink", "local[2,4]", {"spark.ui.enabled": "false"})
rows = spark.readStream.format("loomlog").options(
    cluster=cluster, log="numbers", startingPosition="earliest").load()
writing = rows.select("timestamp", "value").writeStream.format("loomlog").options(
    cluster=cluster, log="sunk", checkpointLocation=checkpoint)
writing.trigger(processingTime="250 milliseconds").start().awaitTermination()
"""
PIPELINES = ("to-log", "to-parquet", "to-delta")
# What is killed how often; which of them, and when, is the seed's choice.
KILLS = {"driver": 5, "python worker": 5, "executor": 4, "vsn": 5, "vmr": 3}


class Carnage:
    """A cluster, three pipelines and a query that copy a log, and the means to kill them."""

    def __init__(
        self,
        seed: int,
        servers: LocalProcesses,
        cluster: loomlog.Cluster,
        spark: StandaloneSpark,
        drivers: Sequence[SparkDriver],
    ) -> None:
        self._random = random.Random(seed)
        self._servers = servers
        self._cluster = cluster
        self._spark = spark
        self._drivers = {driver.name.removesuffix("-here"): driver for driver in drivers}
        self._done_before = dict.fromkeys(self._drivers, 0)  # when it was hit last
        self.killed: Counter[str] = Counter()

    async def go(self) -> None:
        """Make all kills, in random order."""
        for name in self._drivers:
            await self._in_the_midst([name], *UnitState)
        begin = time.monotonic()
        order = list(Counter(KILLS).elements())
        self._random.shuffle(order)
        how: dict[str, Callable[[], Awaitable[bool]]] = {
            "driver": self._kill_driver,
            "python worker": self._kill_worker,
            "executor": self._kill_executor,
            "vsn": self._kill_node,
            "vmr": self._kill_metadata,
        }
        for what in order:
            while not await how[what]():
                pass  # it ended by itself: another one, then
            self.killed[what] += 1
            print(f"{time.monotonic() - begin:.1f} s: {what}")  # for whoever looks into a failure

    async def caught_up(self, tail: int) -> None:
        for name in self._drivers:

            async def done(name: str = name) -> bool:
                return await self._position(name) >= tail

            await until(done, f"{name} has all of {tail} records", self._drivers[name])

    # ---- the kinds of kills

    async def _kill_driver(self) -> bool:
        """Kill the Python process or the JVM below it: either ends the driver."""
        name = await self._in_the_midst(list(self._drivers), *UnitState)
        driver = self._drivers[name]
        python, jvm = driver.python(), driver.jvm()
        victim = self._random.choice([python, jvm])
        if victim is None or not kill(victim):
            return False
        await driver.wait()
        if name in PIPELINES and victim is jvm:
            assert "loom: Spark has ended under the pipeline" in driver.said
        await driver.start()
        return True

    async def _kill_worker(self) -> bool:
        name = await self._in_the_midst(list(self._drivers), UnitState.RUNNING)
        where = self._spark if name == "to-log" else self._drivers[name]
        return await self._kill_one_of(where.workers)

    async def _kill_executor(self) -> bool:
        await self._in_the_midst(["to-log"], UnitState.RUNNING)
        return await self._kill_one_of(self._spark.executors)

    async def _kill_node(self) -> bool:
        await self._intact()
        name = f"vsn-{self._random.randint(1, NODES)}"
        await self._servers.end(name, SIGKILL)
        await self._servers.start_again(name)
        return True

    async def _kill_metadata(self) -> bool:
        await self._intact()
        await self._servers.end("vmr-1", SIGKILL)
        await self._servers.start_again("vmr-1")
        return True

    async def _kill_one_of(self, candidates: Callable[[], list[psutil.Process]]) -> bool:
        async def there() -> list[psutil.Process]:
            return candidates()

        return kill(self._random.choice(await until(there, "there is somebody to kill")))

    # ---- when

    async def _in_the_midst(self, names: Sequence[str], *states: UnitState) -> str:
        """Return a pipeline that made progress since its last fault and whose unit is in one of
        these states."""
        state = self._random.choice(states)

        async def ready() -> str | None:
            await self._revive()
            for name in self._random.sample(names, len(names)):
                if await self._is_ready(name, state):
                    return name
            return None

        drivers = [self._drivers[name] for name in names]
        name = await until(ready, f"one of {', '.join(names)} goes on", *drivers)
        self._done_before[name] = await self._position(name)
        return name

    async def _is_ready(self, name: str, state: UnitState) -> bool:
        if await self._position(name) <= self._done_before[name]:
            return False
        progress = await progress_of(self._cluster, name)
        return progress is None or (progress.unit is not None and progress.unit.state is state)

    async def _revive(self) -> None:
        """Restart queries that ended because they lost the cluster for too long."""
        if not self._drivers["sink"].running:
            await self._drivers["sink"].start()
        for name in PIPELINES:
            driver = self._drivers[name]
            assert driver.running, f"{name} ended by itself: {driver.said[-2000:]}"

    async def _intact(self) -> None:
        """Return whether every stream runs on all its nodes, so that another may be lost."""

        async def intact() -> bool:
            status = await self._cluster.status()
            streams = [stream for log in status.logs for stream in log.streams]
            return all(node.alive for node in status.nodes) and all(
                stream.state == "running" for stream in streams
            )

        await until(intact, "the cluster is whole again")

    async def _position(self, name: str) -> int:
        """Return its position in the source, of which all outputs are copies."""
        if name in PIPELINES:
            progress = await progress_of(self._cluster, name)
            return 0 if progress is None else progress.positions[SOURCE]
        return await self._cluster.log("sunk").tail()


@asynccontextmanager
async def cluster_and_spark(
    directory: Path,
) -> AsyncIterator[tuple[LocalProcesses, loomlog.Cluster, StandaloneSpark]]:
    plan = ClusterPlan(directory / "cluster", NODES, port=free_port(), heartbeat_timeout_s=1.0)
    async with (
        running(plan) as servers,
        StandaloneSpark(directory) as spark,
        await loomlog.connect(servers.address) as cluster,
    ):
        await cluster.create_log(SOURCE, streams=2, replicas=3)
        await cluster.create_log("sunk", streams=2, replicas=3)
        yield servers, cluster, spark


def drivers_of(directory: Path, cluster: str, spark: StandaloneSpark) -> list[SparkDriver]:
    definitions, sink = directory / "definitions.py", directory / "sink.py"
    definitions.write_text(DEFINITIONS.format(place=directory))
    sink.write_text(SINK)
    masters = {"to-log": spark.address}
    pipelines = [
        pipeline_run(
            definitions, name, cluster, directory, spark_master=masters.get(name, "local[2,4]")
        )
        for name in PIPELINES
    ]
    command = [sys.executable, str(sink), cluster, str(directory / "checkpoint")]
    return [*pipelines, SparkDriver("sink", command, directory)]


async def test_every_record_is_once_in_every_output_whatever_is_killed(tmp_path: Path) -> None:
    async with cluster_and_spark(tmp_path) as (servers, cluster, spark):
        drivers = drivers_of(tmp_path, servers.address, spark)
        source = cluster.log(SOURCE)
        carnage = Carnage(SEED, servers, cluster, spark, drivers)
        async with cleared(*drivers):
            async with Numbers(source) as writer:
                for driver in drivers:
                    await driver.start()
                await carnage.go()
                await writer.stop()
            await carnage.caught_up(await source.tail())
            assert carnage.killed == KILLS
            assert carnage.killed.total() >= 20
            for driver in drivers:
                await driver.stop()
        written = await numbers_in(source)
        assert not Counter(writer.acknowledged) - Counter(written)
        for name, found in await outputs(cluster, tmp_path):
            assert Counter(found) == Counter(written), name
        for name in PIPELINES:
            with pytest.raises(NotFound):
                await cluster.log(f"{name}.dead-letters").tail()


async def outputs(cluster: loomlog.Cluster, directory: Path) -> list[tuple[str, list[int]]]:
    delta = DeltaTable(str(directory / "delta"))
    return [
        ("log", await numbers_in(cluster.log("copied"))),
        ("sink", await numbers_in(cluster.log("sunk"))),
        ("parquet", rows_of(table_files(directory / "table"))),
        ("delta", rows_of(delta.file_uris())),
    ]


def rows_of(files: list[str]) -> list[int]:
    return [n for file in files for n in pq.read_table(file)["n"].to_pylist()]
