"""Pipelines whose progress is as in a copy of the metadata, while their output has more."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from loomlog import BlockingCluster, connect_sync
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses
from loomlog.errors import LoomError
from loomlog.net.address import split_address
from loomlog.spark import Runner, delta, log, parquet, pipeline, read_table
from loomlog.spark.pipelines import store
from loomlog.spark.pipelines.status import statuses
from loomlog.testing.ports import free_address


def runner(output: Any, address: str, spark: SparkSession) -> Runner:
    @pipeline("copy", source="events", output=output)
    def copied(rows: Any) -> Any:
        return rows.select("value")

    return Runner(copied, address, spark)


def run(output: Any, address: str, spark: SparkSession) -> None:
    runner(output, address, spark).run(once=True)


def append(cluster: BlockingCluster, first: int, last: int) -> None:
    cluster.log("events").append_many([b"%d" % n for n in range(first, last + 1)])


class RestoredRig:
    """A cluster whose metadata is copied, put back, and brought up to date."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._loop = asyncio.new_event_loop()
        self.processes = LocalProcesses(
            ClusterPlan(directory / "cluster", nodes=1, port=split_address(free_address())[1])
        )
        self.wait(self.processes.start())
        self.address = self.processes.address

    def wait(self, work: Any) -> None:
        self._loop.run_until_complete(work)

    def close(self) -> None:
        self.wait(self.processes.stop())
        self._loop.close()

    def copy(self) -> None:
        self._while_stopped(lambda data: shutil.copytree(data, self.directory / "copy"))

    def restore(self) -> str:
        """Put the copy back and catch up; return the output of the command."""
        said: list[str] = []

        def put_back(data: Path) -> None:
            shutil.rmtree(data)
            shutil.copytree(self.directory / "copy", data)
            where = ("--data", str(data), "--listen", self.address)
            command = [sys.executable, "-m", "loomlog.cli.loom", "metadata", "catch-up", *where]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            said.append(done.stdout)

        self._while_stopped(put_back)
        return said[0]

    def _while_stopped(self, work: Callable[[Path], object]) -> None:
        self.wait(self.processes.end("vmr-1", signal.SIGTERM))
        work(self.directory / "cluster" / "vmr-1")
        self.wait(self.processes.start_again("vmr-1"))


@pytest.fixture
def rig(tmp_path: Path) -> Any:
    rig = RestoredRig(tmp_path)
    try:
        yield rig
    finally:
        rig.close()


@pytest.mark.parametrize("kind", ["parquet", "delta", "log"])
def test_a_pipeline_whose_output_is_ahead_stops_and_says_what_to_do(
    rig: RestoredRig, spark: SparkSession, kind: str
) -> None:
    table = rig.directory / "table"
    output = {"parquet": parquet(table), "delta": delta(table), "log": log("copied")}[kind]
    with connect_sync(rig.address) as cluster:
        cluster.create_log("events", replicas=1)
        append(cluster, 1, 4)
        run(output, rig.address, spark)
        rig.copy()
        append(cluster, 5, 6)
        run(output, rig.address, spark)  # a unit of which the copy does not know
        append(cluster, 7, 9)
        assert "pipeline copy" in rig.restore()

        with pytest.raises(LoomError, match="`loom pipeline reset copy`") as caught:
            run(output, rig.address, spark)
        assert "\n" not in str(caught.value)
        (status,) = statuses(cluster, "copy")
        assert (status.state, status.error) == ("stopped", str(caught.value))

        # What to do if it is known where the output ends.
        store.reset(cluster, "copy", 7, same_output=True)
        run(output, rig.address, spark)
        assert values(cluster, kind, table, spark) == list(range(1, 10))
        append(cluster, 10, 11)
        run(output, rig.address, spark)
        assert values(cluster, kind, table, spark) == list(range(1, 12))
        assert statuses(cluster, "copy")[0].error == ""


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_pipeline_continues_if_its_table_has_nothing_more(
    rig: RestoredRig, spark: SparkSession, kind: str
) -> None:
    table = rig.directory / "table"
    output = {"parquet": parquet(table), "delta": delta(table)}[kind]
    with connect_sync(rig.address) as cluster:
        cluster.create_log("events", replicas=1)
        append(cluster, 1, 4)
        run(output, rig.address, spark)
        rig.copy()
        append(cluster, 5, 6)
        rig.restore()
        run(output, rig.address, spark)
        assert values(cluster, kind, table, spark) == list(range(1, 7))


@pytest.mark.parametrize("kind", ["parquet", "delta", "log"])
def test_a_pipeline_that_the_copy_does_not_know_writes_nothing_twice(
    rig: RestoredRig, spark: SparkSession, kind: str
) -> None:
    """The pipeline's output is there, and also the second version, which a reset made."""
    table = rig.directory / "table"
    output = {"parquet": parquet(table), "delta": delta(table), "log": log("copied")}[kind]
    with connect_sync(rig.address) as cluster:
        cluster.create_log("events", replicas=1)
        cluster.create_log("copied", replicas=1)
        append(cluster, 1, 4)
        cluster.log("copied").append(b"0")
        rig.copy()
        run(output, rig.address, spark)
        store.reset(cluster, "copy", 1, same_output=False)
        run(output, rig.address, spark)
        append(cluster, 5, 6)
        rig.restore()

        for _ in range(2):
            with pytest.raises(LoomError, match="`loom pipeline reset copy`"):
                run(output, rig.address, spark)
        assert statuses(cluster, "copy")[0].state == "stopped"
        assert store.reset(cluster, "copy", 1, same_output=False).version > 2
        run(output, rig.address, spark)


def test_a_new_pipeline_works_on_restored_metadata(rig: RestoredRig, spark: SparkSession) -> None:
    with connect_sync(rig.address) as cluster:
        cluster.create_log("events", replicas=1)
        rig.copy()
        append(cluster, 1, 4)
        rig.restore()
        table = rig.directory / "table"
        for _ in range(2):
            run(parquet(table), rig.address, spark)
        assert values(cluster, "parquet", table, spark) == [1, 2, 3, 4]


def values(cluster: BlockingCluster, kind: str, table: Path, spark: SparkSession) -> list[int]:
    if kind == "log":
        found = cluster.log("copied")
        return sorted(int(entry.value) for entry in found.subscribe(1, found.tail()))
    if kind == "parquet":
        return sorted(int(row.value) for row in read_table(spark, table).collect())
    from deltalake import DeltaTable

    return sorted(int(value) for value in DeltaTable(table).to_pyarrow_table()["value"].to_pylist())
