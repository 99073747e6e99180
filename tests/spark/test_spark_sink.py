"""`write` and `writeStream` with `format("loomlog")`: every row once, a micro-batch all at once."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from spark_rig import SparkRig

import loomlog
from loomlog.spark.options import read_options
from loomlog.spark.writers import write_options

ROWS = 500


@pytest.fixture
def target(rig: SparkRig) -> Iterator[loomlog.BlockingLog]:
    name = f"target-{uuid.uuid4().hex[:8]}"
    yield rig.cluster.create_log(name, streams=2, replicas=2)
    rig.cluster.delete_log(name)


def numbers(rig: SparkRig, count: int = ROWS) -> DataFrame:
    """Return rows with the values b"1", b"2", …"""
    frame: DataFrame = rig.spark.range(1, count + 1, numPartitions=4)
    return frame.select(f.col("id").cast("string").alias("value"))


def save(rig: SparkRig, frame: DataFrame, into: loomlog.BlockingLog, **options: Any) -> None:
    given = {"cluster": rig.address, "log": into.name, **options}
    frame.write.format("loomlog").options(**given).mode("append").save()


def copy_available(
    rig: SparkRig, log: loomlog.BlockingLog, checkpoint: Path, change: Any = None, **options: Any
) -> Any:
    """Run a streaming query of all that is there now from the rig's log to `log`."""
    frame = rig.stream(startingPosition="earliest", **options).select("timestamp", "key", "value")
    query = (
        (frame if change is None else change(frame))
        .writeStream.format("loomlog")
        .options(cluster=rig.address, log=log.name)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    return query


def entries(log: loomlog.BlockingLog) -> list[loomlog.Entry]:
    tail = log.tail()
    return list(log.subscribe(1, tail)) if tail else []


def values(log: loomlog.BlockingLog) -> list[int]:
    return sorted(int(entry.value) for entry in entries(log))


# ---- whatever runs the log ----------------------------------------------------------


def test_batches_and_streams_are_written_to_a_log_of_every_protocol(
    rig: SparkRig, target: loomlog.BlockingLog, tmp_path: Path
) -> None:
    """Spark reads the rows back."""
    expected: list[int] = []
    for at, protocol in enumerate(("copyset", "chained")):
        rig.cluster.switch_log(target.name, protocol=protocol, replicas=2)
        save(rig, numbers(rig), target)
        rig.fill(30, first=30 * at + 1)
        copy_available(rig, target, tmp_path)
        expected += [*range(1, ROWS + 1), *range(30 * at + 1, 30 * at + 31)]
        assert values(target) == sorted(expected)
    frame = rig.spark.read.format("loomlog").options(cluster=rig.address, log=target.name).load()
    assert rig.values(frame) == sorted(expected)


# ---- batch ------------------------------------------------------------------------


def test_a_batch_is_appended_as_one(rig: SparkRig, target: loomlog.BlockingLog) -> None:
    target.append(b"0")
    save(rig, numbers(rig), target)
    assert values(target) == list(range(ROWS + 1))
    assert [entry.position for entry in entries(target)] == list(range(1, ROWS + 2))
    assert not rig.cluster.registers(f"writer/{target.name}/")  # it does not come again
    save(rig, numbers(rig, 3), target)
    assert target.tail() == ROWS + 4
    frame = rig.spark.read.format("loomlog").options(cluster=rig.address, log=target.name).load()
    assert rig.values(frame) == sorted([*range(ROWS + 1), 1, 2, 3])


def test_keys_and_timestamps_come_along(rig: SparkRig, target: loomlog.BlockingLog) -> None:
    rig.fill(20)
    frame = rig.frame().select("value", "timestamp", "key")
    save(rig, frame.coalesce(1).sortWithinPartitions("timestamp"), target)
    copied = {(entry.timestamp_us, entry.key, entry.value) for entry in entries(target)}
    assert copied == {(e.timestamp_us, e.key, e.value) for e in rig.log.subscribe(1, 20)}


def test_rows_of_a_task_keep_their_order(rig: SparkRig, target: loomlog.BlockingLog) -> None:
    save(rig, numbers(rig, 30_000).coalesce(1), target)
    assert [int(entry.value) for entry in entries(target)] == list(range(1, 30_001))


def test_a_batch_with_a_writer_and_a_sequence_is_appended_once(
    rig: SparkRig, target: loomlog.BlockingLog
) -> None:
    for _ in range(2):
        save(rig, numbers(rig), target, writer="nightly", sequence=1)
    assert values(target) == list(range(1, ROWS + 1))
    save(rig, numbers(rig), target, writer="nightly", sequence=2)
    assert target.tail() == 2 * ROWS


def test_no_rows_are_no_append(rig: SparkRig, target: loomlog.BlockingLog) -> None:
    save(rig, numbers(rig).where("value = 'none'"), target)
    assert target.tail() == 0


def test_a_batch_that_fails_leaves_nothing_to_see(
    rig: SparkRig, target: loomlog.BlockingLog
) -> None:
    with pytest.raises(PySparkException, match="value 400 is bad"):
        save(rig, numbers(rig).select(failing_at(400)), target)
    assert target.tail() == 0
    assert rig.cluster.log(f"{target.name}.staged").tail() > 0
    # The batch's writer is forgotten; a task that outlived it may have named it once more.
    for left in rig.cluster.registers(f"writer/{target.name}/").values():
        assert json.loads(left.value)["published"] == [0, 0]


def failing_at(number: int) -> Any:
    """Return the values, one of which cannot be computed."""
    wrong = f.raise_error(f.lit(f"value {number} is bad")).cast("string")
    return f.when(f.col("value") == str(number), wrong).otherwise(f.col("value")).alias("value")


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["'v' as value", "1 as stream"], {}, "stream is given by the log"),
        (["string(null) as value"], {}, "values are null"),
        (["'v' as value"], {"log": "nobody"}, "there is no log 'nobody'"),
        (["'v' as value"], {"topic": "t"}, "the loomlog sink has no option topic"),
    ],
)
def test_what_is_wrong_is_one_clear_error(
    rig: SparkRig,
    target: loomlog.BlockingLog,
    columns: list[str],
    options: dict[str, str],
    said: str,
) -> None:
    with pytest.raises(PySparkException, match=said):
        save(rig, rig.spark.range(2).selectExpr(*columns), target, **options)
    assert target.tail() == 0


def test_a_log_cannot_be_overwritten(rig: SparkRig, target: loomlog.BlockingLog) -> None:
    writer = numbers(rig, 2).write.format("loomlog").mode("overwrite")
    with pytest.raises(PySparkException, match="only ever appended to"):
        writer.options(cluster=rig.address, log=target.name).save()


# ---- streams ----------------------------------------------------------------------


def test_a_stream_goes_from_log_to_log(
    rig: SparkRig, target: loomlog.BlockingLog, tmp_path: Path
) -> None:
    rig.fill(100)
    copy_available(rig, target, tmp_path, maxRecordsPerTrigger=40)
    assert values(target) == list(range(1, 101))
    rig.fill(50, first=101)
    copy_available(rig, target, tmp_path, maxRecordsPerTrigger=40)
    assert values(target) == list(range(1, 151))
    originals = {e.value: (e.timestamp_us, e.key) for e in rig.log.subscribe(1, 150)}
    assert {e.value: (e.timestamp_us, e.key) for e in entries(target)} == originals


def test_a_micro_batch_is_one_neighbourhood(
    rig: SparkRig, target: loomlog.BlockingLog, tmp_path: Path
) -> None:
    rig.fill(90)
    copy_available(rig, target, tmp_path, maxRecordsPerTrigger=30)
    found = [int(entry.value) for entry in entries(target)]
    for number in range(3):
        batch = found[30 * number : 30 * (number + 1)]
        assert sorted(batch) == list(range(30 * number + 1, 30 * number + 31))


def test_a_micro_batch_that_spark_repeats_is_not_doubled(
    rig: SparkRig, target: loomlog.BlockingLog, tmp_path: Path
) -> None:
    """The crash was between the sink's commit and the checkpoint's."""
    rig.fill(60)
    copy_available(rig, target, tmp_path, maxRecordsPerTrigger=20)
    for left in (tmp_path / "commits").glob("*2*"):  # of the third micro-batch, and its checksum
        left.unlink()
    rig.fill(20, first=61)
    query = copy_available(rig, target, tmp_path, maxRecordsPerTrigger=20)
    assert [p["batchId"] for p in query.recentProgress if p["numInputRows"]] == [2, 3]
    assert values(target) == list(range(1, 81))


def test_a_query_that_fails_in_a_task_goes_on_when_it_is_mended(
    rig: SparkRig, target: loomlog.BlockingLog, tmp_path: Path
) -> None:
    rig.fill(60)

    def spoiled(frame: DataFrame) -> DataFrame:
        return frame.select(failing_at(47))

    with pytest.raises(PySparkException, match="value 47 is bad"):
        copy_available(rig, target, tmp_path, change=spoiled, maxRecordsPerTrigger=30)
    assert values(target) == list(range(1, 31))
    copy_available(rig, target, tmp_path, change=lambda frame: frame.select("value"))
    assert values(target) == list(range(1, 61))


def test_trimming_the_target_trims_what_was_staged(
    rig: SparkRig, target: loomlog.BlockingLog, tmp_path: Path
) -> None:
    rig.fill(100)
    copy_available(rig, target, tmp_path, maxRecordsPerTrigger=20)
    target.trim(70)
    staged = rig.cluster.log(f"{target.name}.staged")
    assert staged.head() > 20
    assert [e.position for e in target.subscribe("earliest", 100)] == list(range(71, 101))


def test_complete_mode_is_refused(
    rig: SparkRig, target: loomlog.BlockingLog, tmp_path: Path
) -> None:
    counts = rig.stream().groupBy("value").count().select("value")
    query = (
        counts.writeStream.format("loomlog")
        .outputMode("complete")
        .options(cluster=rig.address, log=target.name)
        .option("checkpointLocation", str(tmp_path))
    )
    with pytest.raises(PySparkException, match="only ever appended to"):
        query.start().awaitTermination(60)


def test_a_token_is_read_where_it_is_used_and_is_in_no_plan(
    rig: SparkRig, target: loomlog.BlockingLog, tmp_path: Path
) -> None:
    secret = uuid.uuid4().hex
    file = tmp_path / "app.token"
    file.write_text(secret)
    with pytest.raises(PySparkException, match=r"app\.token may be read by others"):
        save(rig, numbers(rig, 5), target, tokenFile=str(file))
    file.chmod(0o600)
    save(rig, numbers(rig, 5), target, tokenFile=str(file))
    place = {"cluster": rig.address, "log": target.name, "tokenFile": str(file)}
    frame = rig.spark.read.format("loomlog").options(**place).load()
    assert frame.count() == 5
    assert secret not in str(frame._jdf.queryExecution().toString())
    settings = write_options(place, streaming=False), read_options(place, streaming=False)
    assert secret.encode() not in pickle.dumps(settings)  # what travels to tasks
    with pytest.raises(PySparkException, match=r"has no option token; there are .*tokenFile") as e:
        save(rig, numbers(rig, 1), target, token=secret)
    assert secret not in str(e.value)
