"""`spark.read.format("loomlog")`: columns, ranges, options, filters, partitions."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from spark_rig import SparkRig

from loomlog.spark.source import COLUMNS


def failure(frame: DataFrame) -> str:
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    return str(caught.value)


def test_every_column_of_every_entry_is_what_the_client_reads(rig: SparkRig) -> None:
    rig.fill(95)
    frame = rig.frame()
    assert [(f.name, f.dataType) for f in frame.schema] == [(f.name, f.dataType) for f in COLUMNS]
    rows = sorted(frame.collect(), key=lambda row: row.position)
    entries = list(rig.log.subscribe(1, 95))
    assert len({entry.stream for entry in entries}) == 3
    assert [
        (
            row.position,
            row.stream,
            row.llsn,
            row.key and bytes(row.key),
            bytes(row.value),
        )
        for row in rows
    ] == [(e.position, e.stream, e.llsn, e.key, e.value) for e in entries]
    micros = rig.frame().selectExpr("position", "unix_micros(timestamp) AS t").collect()
    assert {row.position: row.t for row in micros} == {e.position: e.timestamp_us for e in entries}


def test_an_empty_log_is_an_empty_frame(rig: SparkRig) -> None:
    assert rig.positions() == []


def test_ranges_of_positions(rig: SparkRig) -> None:
    rig.fill(60)
    assert rig.positions(startingPosition=17, endingPosition=44) == list(range(17, 45))
    assert rig.positions(startingPosition=60, endingPosition=60) == [60]
    assert rig.positions(startingPosition=55) == list(range(55, 61))
    assert rig.positions(startingPosition="earliest", endingPosition="latest") == list(range(1, 61))
    assert rig.positions(startingPosition="latest") == []


def test_times_choose_rows(rig: SparkRig) -> None:
    rig.fill(20)
    entries = list(rig.log.subscribe(1, 20))
    begin, end = entries[5].timestamp_us, entries[15].timestamp_us
    wanted = [e.position for e in entries if begin <= e.timestamp_us < end]
    found = rig.positions(startingTimestamp=_iso(begin), endingTimestamp=_iso(end))
    assert found == wanted
    assert rig.positions(startingTimestamp="0", endingTimestamp="1000") == []


def test_one_log_is_read_by_several_tasks(rig: SparkRig) -> None:
    rig.fill(300)
    assert rig.frame().rdd.getNumPartitions() == 3  # one a stream
    many = rig.frame(minPartitions=10)
    assert many.rdd.getNumPartitions() >= 10
    assert rig.values(many) == list(range(1, 301))
    small = rig.frame(maxRecordsPerPartition=40).withColumn("task", F.spark_partition_id())
    counts = [row["count"] for row in small.groupBy("task").count().collect()]
    assert sum(counts) == 300
    assert max(counts) <= 40


def test_a_group_by_counts_every_entry(rig: SparkRig) -> None:
    rig.fill(5000, batch=500)
    groups = rig.frame().groupBy((F.col("position") % 10).alias("g")).count().collect()
    assert {row.g: row["count"] for row in groups} == dict.fromkeys(range(10), 500)


def test_filters_are_pushed_down_where_spark_allows_it(rig: SparkRig) -> None:
    rig.fill(200)
    stream = rig.streams[1]
    middle = rig.log.read(100).timestamp
    rig.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        narrow = rig.frame().where("position > 50 AND position <= 60")
        assert narrow.rdd.getNumPartitions() == 1  # they are all in one batch of one stream
        assert rig.values(narrow) == list(range(51, 61))
        one = rig.frame().where(F.col("stream") == stream)
        assert one.rdd.getNumPartitions() == 1
        assert {row.stream for row in one.collect()} == {stream}
        late = rig.frame().where(F.col("timestamp") >= F.lit(middle))
        assert rig.values(late)[-1] == 200
        assert rig.values(late) == rig.values(rig.frame(startingTimestamp=middle.isoformat()))
        assert rig.values(rig.frame()) == list(range(1, 201))
        assert rig.values(rig.frame().where("position = 7 OR position = 9")) == [7, 9]
    finally:
        rig.spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert rig.values(rig.frame().where("position > 50 AND position <= 60")) == list(range(51, 61))


def test_trimmed_data_fails_the_read_and_the_error_names_it(rig: SparkRig) -> None:
    rig.fill(100)
    rig.log.trim(40)
    message = failure(rig.frame(startingPosition=11))
    assert "positions 11 to 40 were trimmed" in message
    assert "failOnDataLoss=false" in message
    assert rig.positions(startingPosition=11, failOnDataLoss="false") == list(range(41, 101))
    assert rig.positions(endingPosition=30, startingPosition=5, failOnDataLoss="false") == []
    assert rig.positions() == list(range(41, 101))  # the earliest there is


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startPosition": 1}, "has no option startposition; there are cluster, log"),
        ({"endingPosition": "77"}, "endingPosition 77 of log"),
        ({"log": "nobody"}, "nobody"),
        ({"cluster": "127.0.0.1:1", "readTimeoutMs": 500}, "127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_one_clear_error(
    rig: SparkRig, options: dict[str, object], said: str
) -> None:
    assert said in failure(rig.frame(**options))


def test_a_schema_of_the_users_own_is_refused(rig: SparkRig) -> None:
    frame = (
        rig.spark.read.format("loomlog")
        .schema("position long, value string")
        .options(cluster=rig.address, log=rig.log.name)
        .load()
    )
    assert "leave .schema() out" in failure(frame)


def test_reads_go_on_while_streams_are_added_sealed_and_moved(rig: SparkRig) -> None:
    rig.fill(3000, batch=100)
    first, second, third = rig.streams
    rig.cluster.seal_stream(first)
    rig.cluster.add_stream(rig.log.name)
    info = next(s for s in rig.log.describe().streams if s.id == second)
    rig.cluster.move_stream(second, info.replicas[0].node)
    assert rig.values(rig.frame(endingPosition=3000)) == list(range(1, 3001))

    stop = threading.Event()
    appended: list[int] = []

    def append() -> None:
        while not stop.is_set():
            appended.append(rig.log.append_many([b"0"] * 20)[-1].position)

    writer = threading.Thread(target=append)
    writer.start()
    try:
        before = appended[-1] if appended else 3000
        count = rig.frame(maxRecordsPerPartition=500).count()
        assert count >= before
        rig.cluster.unseal_stream(first)
        rig.cluster.seal_stream(third)
        frame = rig.frame(endingPosition=rig.log.tail())
        assert rig.values(frame.where("position <= 3000")) == list(range(1, 3001))
    finally:
        stop.set()
        writer.join()
    assert rig.positions() == list(range(1, rig.log.tail() + 1))


def _iso(micros: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).isoformat()


def test_headers_are_a_map(rig: SparkRig) -> None:
    rig.log.append(b"traced", headers={"trace": b"7", "other": b""})
    rig.log.append(b"plain")
    rows = rig.frame(includeHeaders="true").orderBy("position").collect()
    found = [row.headers and {n: bytes(v) for n, v in row.headers.items()} for row in rows]
    assert found == [{"trace": b"7", "other": b""}, None]
    assert "headers" not in rig.frame().columns
