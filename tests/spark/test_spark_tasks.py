"""A task without Spark around it: sizes of batches, trims on the way, waiting."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, LessThanOrEqual, Not
from spark_rig import SparkRig

from loomlog.client.transactions import transaction
from loomlog.columns import SCHEMA
from loomlog.errors import NotYetWritten, Timeout, Trimmed
from loomlog.spark.filters import WantedRows, wanted_rows
from loomlog.spark.options import ReadOptions, read_options
from loomlog.spark.ranges import TaskRange, plan
from loomlog.spark.readers import FilteringReader
from loomlog.spark.source import COLUMNS
from loomlog.spark.tasks import ROWS_MAX, ROWS_MIN, read_range, sized


def options_of(rig: SparkRig, **more: str) -> ReadOptions:
    given = {"cluster": rig.address, "log": rig.log.name, **more}
    return read_options(given, streaming=False)


def rows_of(rig: SparkRig, options: ReadOptions, ranges: list[TaskRange]) -> list[int]:
    found = [batch for r in ranges for batch in read_range(options, r, SCHEMA)]
    return sorted(position for batch in found for position in batch.column(0).to_pylist())


def numbers(first: int, count: int) -> Any:
    return pa.RecordBatch.from_arrays([pa.arange(first, first + count)], ["n"])


def test_batches_are_joined_and_cut_to_sizes_that_spark_likes() -> None:
    sizes = [1] * 5000 + [200_000, 3, 60_000, 60_000, 7]
    given, at = [], 0
    for size in sizes:
        given.append(numbers(at, size))
        at += size
    found = list(sized(given))
    assert pa.Table.from_batches(found).column(0).to_pylist() == list(range(at))
    assert max(batch.num_rows for batch in found) <= ROWS_MAX
    joined = list(sized(numbers(at, 100) for at in range(0, 100_000, 100)))
    assert min(batch.num_rows for batch in joined[:-1]) >= ROWS_MIN


def test_large_values_are_not_joined_without_bound() -> None:
    large = pa.RecordBatch.from_arrays([pa.array([b"x" * (9 << 20)])], ["value"])
    assert [batch.num_rows for batch in sized([large] * 7)] == [3, 3, 1]


def test_positions_are_located_in_every_stream(rig: SparkRig) -> None:
    rig.fill(60)  # batches of ten, in turn
    first, second, third = rig.streams
    assert rig.log.locate(1) == {first: 1, second: 1, third: 1}
    assert rig.log.locate(15) == {first: 11, second: 5, third: 1}
    assert rig.log.locate(61) == {first: 21, second: 21, third: 21}
    with pytest.raises(NotYetWritten):
        rig.log.locate(62)
    rig.cluster.seal_stream(second)
    assert rig.log.locate(61)[second] == 21
    rig.log.trim(30)
    with pytest.raises(Trimmed):
        rig.log.locate(30)
    assert rig.log.locate(31) == {first: 11, second: 11, third: 11}


def test_a_sealed_stream_still_tells_where_new_positions_would_be(rig: SparkRig) -> None:
    rig.fill(30)
    sealed, other, _ = rig.streams
    rig.cluster.seal_stream(sealed)
    rig.log.append_many([b"more"] * 100, stream=other)
    assert rig.log.locate(131)[sealed] == 11


def test_a_stream_as_arrow_ends_at_its_stop_or_with_a_timeout(rig: SparkRig) -> None:
    rig.fill(30)
    stream = rig.streams[0]
    batches = list(rig.log.subscribe_stream_arrow(stream, 3, 8))
    assert [n for b in batches for n in b.column("llsn").to_pylist()] == list(range(3, 9))
    with pytest.raises(Timeout, match="nothing came"):
        list(rig.log.subscribe_stream_arrow(stream, 1, 11, timeout_s=0.1))


def test_data_trimmed_after_the_plan_is_skipped_or_named(rig: SparkRig) -> None:
    rig.fill(300)
    strict, loose = options_of(rig), options_of(rig, failOnDataLoss="false")
    ranges = plan(rig.log, strict, 1, 300)
    rig.log.trim(100)
    with pytest.raises(Trimmed, match="positions 1 to 100 were trimmed"):
        rows_of(rig, strict, ranges)
    assert rows_of(rig, loose, ranges) == list(range(101, 301))


def test_streams_that_a_trim_took_away_altogether_are_skipped_or_named(rig: SparkRig) -> None:
    rig.fill(30)
    strict, loose = options_of(rig), options_of(rig, failOnDataLoss="false")
    ranges = plan(rig.log, strict, 1, 30)
    rig.cluster.switch_log(rig.log.name, streams=1)
    rig.log.append(b"in the next segment")
    rig.log.trim(30)
    with pytest.raises(Trimmed, match="positions 1 to 30 were trimmed"):
        rows_of(rig, strict, ranges)
    assert rows_of(rig, loose, ranges) == []


def test_parts_are_even_and_cover_everything(rig: SparkRig) -> None:
    rig.fill(95)
    ranges = plan(rig.log, options_of(rig, minPartitions="8", maxRecordsPerPartition="9"), 4, 90)
    assert len(ranges) >= 8
    assert max(r.count for r in ranges) <= 9
    assert sum(r.count for r in ranges) == 87
    assert pickle.loads(pickle.dumps(ranges)) == ranges
    assert rows_of(rig, options_of(rig), ranges) == list(range(4, 91))
    assert len(plan(rig.log, options_of(rig, minPartitions="500"), 1, 95)) == 95


def test_filters_only_narrow() -> None:
    position, stream = ("position",), ("stream",)
    found = wanted_rows(
        [
            GreaterThan(position, 10),
            GreaterThan(position, 5),
            LessThanOrEqual(position, 20),
            In(stream, (1, 2)),
            EqualTo(stream, 2),
            Not(EqualTo(position, 12)),
            IsNotNull(("key",)),
            EqualTo(("value",), b"x"),
        ]
    )
    assert found == WantedRows(first=11, last=20, streams=frozenset({2}))


def test_all_filters_are_left_to_spark_as_well(rig: SparkRig) -> None:
    rig.fill(60)
    reader = FilteringReader(options_of(rig), COLUMNS)
    filters = [GreaterThan(("position",), 50), IsNotNull(("position",))]
    assert list(reader.pushFilters(list(filters))) == filters
    ranges = [r for r in reader.partitions() if isinstance(r, TaskRange)]
    assert sum(r.count for r in ranges) == 10


def test_what_failed_transactions_leave_is_passed_over_once(
    rig: SparkRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(self: Any, cell: Any) -> bool:
        raise ZeroDivisionError

    rig.fill(30)
    with monkeypatch.context() as patch:
        patch.setattr(transaction._Writer, "_write", dies)
        failed = rig.cluster.transaction()
        for _ in range(7):
            failed.append(rig.log.name, b"half")
        with pytest.raises(ZeroDivisionError):
            failed.commit()
    rig.log.append_many([b"more"] * 30)
    options = options_of(rig)
    found = rows_of(rig, options, list(plan(rig.log, options, 1, 67)))
    assert found == [*range(1, 31), *range(38, 68)]
