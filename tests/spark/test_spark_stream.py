"""`spark.readStream.format("loomlog")`: every position in exactly one micro-batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from spark_rig import SparkRig


def progress_of(query: Any) -> list[Any]:
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


def end_of(progress: Any) -> int:
    """Return the last position of a micro-batch."""
    return int(_parsed(progress["sources"][0]["endOffset"])["position"])


def _parsed(offset: Any) -> Any:
    return json.loads(offset) if isinstance(offset, str) else offset


def test_available_now_reads_exactly_what_there_is_and_the_next_run_what_came(
    rig: SparkRig, tmp_path: Path
) -> None:
    rig.fill(100)
    rig.run_available(tmp_path, startingPosition="earliest")
    assert rig.written(tmp_path) == list(range(1, 101))
    rig.run_available(tmp_path, startingPosition="earliest")  # nothing new
    assert rig.written(tmp_path) == list(range(1, 101))
    rig.cluster.add_stream(rig.log.name)
    rig.fill(50, first=101)
    rig.run_available(tmp_path, startingPosition="earliest")
    assert rig.written(tmp_path) == list(range(1, 151))


def test_a_rate_limit_makes_small_batches_also_for_available_now(
    rig: SparkRig, tmp_path: Path
) -> None:
    rig.fill(100)
    query = rig.run_available(tmp_path, startingPosition=11, maxRecordsPerTrigger=40)
    assert [end_of(p) for p in progress_of(query)] == [50, 90, 100]
    assert [p["numInputRows"] for p in progress_of(query)] == [40, 40, 10]
    latest = _parsed(query.lastProgress["sources"][0]["latestOffset"])
    assert latest == {"log": rig.log.name, "position": 100}
    assert rig.written(tmp_path) == list(range(11, 101))


def test_a_stream_may_have_an_end(rig: SparkRig, tmp_path: Path) -> None:
    rig.fill(100)
    rig.run_available(tmp_path, startingPosition=11, endingPosition=30)
    assert rig.written(tmp_path) == list(range(11, 31))


def test_a_query_that_was_stopped_continues_from_its_checkpoint(
    rig: SparkRig, tmp_path: Path
) -> None:
    rig.fill(60)
    output = str(tmp_path / "rows")
    query = (
        rig.stream(startingPosition="earliest", maxRecordsPerTrigger=25)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(output)
    )
    query.processAllAvailable()
    rig.fill(30, first=61)
    query.processAllAvailable()
    query.stop()
    rig.fill(10, first=91)
    rig.run_available(tmp_path, startingPosition="earliest")
    assert rig.written(tmp_path) == list(range(1, 101))


def test_latest_is_the_default_and_begins_behind_what_is_there(
    rig: SparkRig, tmp_path: Path
) -> None:
    rig.fill(20)
    rig.run_available(tmp_path)
    rig.fill(20, first=21)
    rig.run_available(tmp_path)
    assert rig.written(tmp_path) == list(range(21, 41))


@pytest.fixture
def half_read(rig: SparkRig, tmp_path: Path) -> SparkRig:
    """Let a query read up to 30, then trim 31 to 50."""
    rig.fill(30)
    rig.run_available(tmp_path, startingPosition="earliest")
    rig.fill(70, first=31)
    rig.log.trim(50)
    return rig


def test_trimmed_data_fails_the_query_and_the_error_names_it(
    half_read: SparkRig, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match="positions 31 to 50 were trimmed"):
        half_read.run_available(tmp_path, startingPosition="earliest")
    assert half_read.written(tmp_path) == list(range(1, 31))


def test_without_fail_on_data_loss_the_query_goes_on_behind_it(
    half_read: SparkRig, tmp_path: Path
) -> None:
    half_read.run_available(tmp_path, startingPosition="earliest", failOnDataLoss="false")
    assert half_read.written(tmp_path) == [*range(1, 31), *range(51, 101)]


def test_a_checkpoint_of_a_longer_log_is_refused(rig: SparkRig, tmp_path: Path) -> None:
    rig.fill(30)
    rig.run_available(tmp_path, startingPosition="earliest")
    rig.cluster.delete_log(rig.log.name)
    rig.log = rig.cluster.create_log(rig.log.name, streams=1, replicas=2)
    rig.fill(5)
    with pytest.raises(PySparkException, match="is it the same log"):
        rig.run_available(tmp_path, startingPosition="earliest")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingPosition": "0"}, "endingPosition must be latest or a position"),
        ({"maxRecordsPerTrigger": "none"}, "maxRecordsPerTrigger must be a number"),
        ({"log": "nobody"}, "nobody"),
    ],
)
def test_a_wrong_option_is_one_clear_error(
    rig: SparkRig, tmp_path: Path, options: dict[str, object], said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        rig.run_available(tmp_path, **options)
