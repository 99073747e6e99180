"""The archive on Spark: made by a job, and read as one with the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import EqualTo
from spark_rig import SparkRig

from loomlog.errors import DataLoss, LoomError, NotFound, Trimmed, Unavailable
from loomlog.spark import archive_job
from loomlog.spark.archive_job import ArchiveOutcome
from loomlog.spark.archive_tasks import tasks_on
from loomlog.spark.options import read_options
from loomlog.spark.ranges import PositionRange, StreamRange
from loomlog.spark.readers import BatchReader, FilteringReader
from loomlog.spark.source import COLUMNS

Archive = Callable[..., ArchiveOutcome]


@pytest.fixture
def archive(rig: SparkRig, tmp_path: Path) -> Archive:
    """Archive and trim the rig's log, by default with the tasks in this process."""

    def run(until: int, **options: Any) -> ArchiveOutcome:
        given = {"rows_per_file": 40, "trim": True} | options
        name, to = rig.log.name, str(tmp_path / "archive")
        return archive_job.run(rig.cluster, rig.address, name, to=to, until=until, **given)

    return run


def test_a_spark_job_makes_the_archive(rig: SparkRig, archive: Archive) -> None:
    rig.fill(300)
    before = list(rig.log.subscribe(1, 300))
    reports: list[tuple[str, int, int]] = []
    outcome = archive(
        250, run_tasks=tasks_on(rig.spark), report=lambda *report: reports.append(report)
    )
    assert (outcome.through, outcome.files_written, outcome.files_checked) == (250, 7, 7)
    assert rig.log.head() == 251
    assert list(rig.log.subscribe(1, 300)) == before
    assert {"writing", "publishing", "checking", "trimming"} <= {what for what, _, _ in reports}


def test_archive_and_log_are_one_frame(rig: SparkRig, archive: Archive) -> None:
    rig.fill(300)
    before = sorted(rig.frame().collect())
    archive(210)
    assert sorted(rig.frame().collect()) == before
    assert rig.positions(startingPosition=1) == list(range(1, 301))
    assert rig.positions(startingPosition=200, endingPosition=220) == list(range(200, 221))
    assert rig.positions(endingPosition=210) == list(range(1, 211))
    assert rig.positions(startingPosition=100, endingPosition=105) == list(range(100, 106))
    many = rig.frame(maxRecordsPerPartition=30)
    assert many.rdd.getNumPartitions() >= 10
    assert rig.values(many) == list(range(1, 301))


def test_archive_and_log_are_one_stream(rig: SparkRig, archive: Archive, tmp_path: Path) -> None:
    rig.fill(150)
    archive(90)
    rig.run_available(tmp_path, startingPosition="earliest", maxRecordsPerTrigger=40)
    assert rig.written(tmp_path) == list(range(1, 151))
    rig.fill(50, first=151)
    archive(180)  # beyond what the query has read
    rig.run_available(tmp_path, startingPosition="earliest", maxRecordsPerTrigger=40)
    assert rig.written(tmp_path) == list(range(1, 201))


@pytest.mark.parametrize("ended", [False, True])
def test_what_is_trimmed_after_it_was_planned_comes_from_the_archive(
    rig: SparkRig, archive: Archive, ended: bool
) -> None:
    rig.fill(200, batch=3)
    options = read_options({"cluster": rig.address, "log": rig.log.name}, streaming=False)
    reader = BatchReader(options, COLUMNS)
    partitions = reader.partitions()
    assert all(isinstance(part, StreamRange) for part in partitions)
    tasks = [reader.read(part) for part in partitions]
    begun = [next(tasks[0])]  # reads on while all is trimmed
    if ended:  # its streams are gone, then
        rig.cluster.switch_log(rig.log.name, streams=1)
    archive(200 if ended else 190)
    found = [n for batch in begun for n in batch.column(0).to_pylist()]
    found += [n for task in tasks for batch in task for n in batch.column(0).to_pylist()]
    assert sorted(found) == list(range(1, 201))


def test_streams_of_the_archive_are_chosen(rig: SparkRig, archive: Archive) -> None:
    rig.fill(120)
    stream = rig.streams[1]
    wanted = [e.position for e in rig.log.subscribe(1, 120) if e.stream == stream]
    archive(100)
    reader = FilteringReader(
        read_options({"cluster": rig.address, "log": rig.log.name}, streaming=False), COLUMNS
    )
    reader.pushFilters([EqualTo(("stream",), stream)])
    parts = reader.partitions()
    assert any(isinstance(part, PositionRange) for part in parts)
    found = [n for p in parts for batch in reader.read(p) for n in batch.column(0).to_pylist()]
    assert sorted(found) == wanted


def test_trimmed_and_not_archived_is_data_loss(rig: SparkRig, archive: Archive) -> None:
    rig.fill(100)
    rig.log.trim(10)
    archive(40)
    assert rig.positions() == list(range(11, 101))  # from the archive's first on
    with pytest.raises(PySparkException, match="positions 1 to 10 were trimmed"):
        rig.positions(startingPosition=1)
    assert rig.positions(startingPosition=1, failOnDataLoss="false") == list(range(11, 101))
    rig.log.trim(60)
    with pytest.raises(PySparkException, match="positions 41 to 60 were trimmed"):
        rig.positions(startingPosition=11)
    found = rig.positions(startingPosition=11, failOnDataLoss="false")
    assert found == [*range(11, 41), *range(61, 101)]


def test_a_file_that_is_gone_is_named(rig: SparkRig, archive: Archive, tmp_path: Path) -> None:
    rig.fill(100)
    archive(80)
    gone = next((tmp_path / "archive").rglob("positions-41-*.parquet"))
    gone.unlink()
    with pytest.raises(PySparkException, match=gone.name):
        rig.positions()


def test_errors_of_tasks_are_the_errors_of_the_job(rig: SparkRig) -> None:
    def fail(task: type[LoomError]) -> None:
        raise task("the reason")

    run = tasks_on(rig.spark)
    for kind in (DataLoss, NotFound, Trimmed):
        with pytest.raises(kind, match="the reason"):
            run(fail, [kind], lambda count: None)
    with pytest.raises(LoomError, match=r"task of the archive job fails: .*the reason"):
        run(fail, [Unavailable], lambda count: None)
