"""One Spark session and one cluster for all tests of the source; each test has a log of its own."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipeline_rig import PipelineRig
from pyspark.sql import SparkSession
from spark_rig import SparkRig

import loomlog
from loomlog.spark import require_java
from loomlog.testing import LocalCluster

# Tests are over before the second compiler, or a collector with threads of its own, pays off.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
WORKER_START = str(Path(__file__).with_name("worker_start"))

TIMEOUT_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests more time than others have: after one that is interrupted while Spark answers,
    the session understands no answer any more, and all later tests of the worker fail."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session", autouse=True)
def _quick_start() -> Iterator[None]:
    """Let every Spark that a test starts, also in another process, start quickly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", QUICK_JVM)
        patch.setenv("PYTHONPATH", WORKER_START, prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Make a session as a user does: loomlog is not registered explicitly."""
    require_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # what an activated venv does
    builder = SparkSession.builder.master("local[2]").appName("loomlog tests")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "1g",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster_address() -> Iterator[str]:
    """Run a cluster of four nodes on an event loop in a thread: Spark's workers reach it over
    TCP."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    local = LocalCluster(nodes=4, sync="none")
    asyncio.run_coroutine_threadsafe(local.__aenter__(), loop).result(30)
    yield local.address
    asyncio.run_coroutine_threadsafe(local.close(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture
def cluster(cluster_address: str) -> Iterator[loomlog.BlockingCluster]:
    with loomlog.connect_sync(cluster_address) as cluster:
        yield cluster


@pytest.fixture
def rig(
    spark: SparkSession, cluster: loomlog.BlockingCluster, cluster_address: str
) -> Iterator[SparkRig]:
    name = f"log-{uuid.uuid4().hex[:8]}"
    log = cluster.create_log(name, streams=3, replicas=2)
    yield SparkRig(spark, cluster, cluster_address, log)
    cluster.delete_log(name)


@pytest.fixture
def pipelines(rig: SparkRig) -> PipelineRig:
    return PipelineRig(rig.spark, rig.cluster, rig.address, rig.log)
