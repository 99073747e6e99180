"""Logs of protocol `copyset`, whose positions have wide gaps, without Spark around them."""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from spark_rig import SparkRig

from loomlog.client.blocking import BlockingLog
from loomlog.columns import SCHEMA
from loomlog.spark.options import ReadOptions, read_options
from loomlog.spark.ranges import TaskRange, plan
from loomlog.spark.readers import MicroBatchReader
from loomlog.spark.source import COLUMNS
from loomlog.spark.tasks import read_range


@pytest.fixture
def log(rig: SparkRig, request: pytest.FixtureRequest) -> BlockingLog:
    """Make a log with entries in several epochs, and some epochs without any."""
    log = rig.cluster.create_log(request.node.name, protocol="copyset", replicas=1)
    for number in range(3):
        log.append_many([b"%d-%d" % (number, row) for row in range(100)])
        rig.cluster.switch_log(log.name, protocol="copyset")
    log.append(b"last")
    return log


def options_of(rig: SparkRig, log: BlockingLog, **more: str) -> ReadOptions:
    return read_options({"cluster": rig.address, "log": log.name, **more}, streaming=False)


def positions_of(options: ReadOptions, ranges: list[TaskRange]) -> list[int]:
    found = [batch for r in ranges for batch in read_range(options, r, SCHEMA)]
    return [position for batch in found for position in batch.column(0).to_pylist()]


def test_a_plan_has_few_tasks_and_reads_everything(rig: SparkRig, log: BlockingLog) -> None:
    expected = [entry.position for entry in log.subscribe(1, log.tail())]
    for more in ({}, {"minPartitions": "4"}, {"maxRecordsPerPartition": "10"}):
        options = options_of(rig, log, **more)
        ranges = plan(log, options, 1, log.tail())
        assert len(ranges) < 60
        assert positions_of(options, ranges) == expected


def test_an_epoch_is_split_by_its_entries(rig: SparkRig, log: BlockingLog) -> None:
    first = log.append_many([b"x"] * 100)[0].position
    options = options_of(rig, log, maxRecordsPerPartition="10")
    ranges = plan(log, options, first, first + 99)
    assert [r.count for r in ranges] == [10] * 10
    assert positions_of(options, ranges) == list(range(first, first + 100))


def test_limited_micro_batches_pass_wide_gaps_at_once(rig: SparkRig, log: BlockingLog) -> None:
    reader = MicroBatchReader(options_of(rig, log), COLUMNS)
    expected = [entry.position for entry in log.subscribe(1, log.tail())]
    offset, read = reader.initialOffset(), []
    try:
        for _ in range(30):
            end = reader.latestOffset(offset, ReadMaxRows(20))
            rows = [b for part in reader.partitions(offset, end) for b in reader.read(part)]
            read += [position for batch in rows for position in batch.column(0).to_pylist()]
            assert sum(batch.num_rows for batch in rows) <= 20
            offset = end
    finally:
        reader.stop()
    assert read == expected
