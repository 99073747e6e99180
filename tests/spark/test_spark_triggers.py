"""Options that decide what a micro-batch reads: starting times, limits, and minimum sizes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from poll import wait_until
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.listener import StreamingQueryListener
from spark_rig import SparkRig

from loomlog.spark import lag
from loomlog.spark.options import read_options
from loomlog.spark.readers import MicroBatchReader
from loomlog.spark.source import COLUMNS
from loomlog.spark.triggers import Patience, shares, within_bytes

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def make_reader(rig: SparkRig) -> Iterator[Any]:
    made = []

    def make(**options: str) -> MicroBatchReader:
        given = {"cluster": rig.address, "log": rig.log.name, **options}
        made.append(MicroBatchReader(read_options(given, streaming=True), COLUMNS))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def ends_of(reader: MicroBatchReader, batches: int) -> list[int]:
    """Return where the next micro-batches end."""
    offset, found = reader.initialOffset(), []
    for _ in range(batches):
        offset = reader.latestOffset(offset, reader.getDefaultReadLimit())
        found.append(offset["position"])
    return found


def fill_hours(rig: SparkRig, hours: int) -> None:
    """Append a record per hour from noon on."""
    for hour in range(hours):
        rig.log.append(b"%d" % hour, timestamp=NOON + timedelta(hours=hour))


def test_a_starting_timestamp_is_where_a_stream_begins(rig: SparkRig, make_reader: Any) -> None:
    fill_hours(rig, 6)
    assert make_reader(startingTimestamp="2026-01-31T15:30:00Z").initialOffset()["position"] == 4
    assert make_reader(startingTimestamp="2026-01-31T11:00:00Z").initialOffset()["position"] == 0
    assert make_reader(startingTimestamp="2026-02-28T00:00:00Z").initialOffset()["position"] == 6
    named = {"startingTimestamp": "2026-01-31T15:30:00Z", "startingOffsets": "2"}
    assert make_reader(**named).initialOffset()["position"] == 1


def test_bytes_limit_a_micro_batch_but_one_record_always_goes(
    rig: SparkRig, make_reader: Any
) -> None:
    for size in (40, 40, 40, 500, 10):
        rig.log.append_many([b"x" * size])
    reader = make_reader(startingOffsets="earliest", maxBytesPerTrigger="100")
    assert ends_of(reader, 5) == [2, 3, 4, 5, 5]
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["position"] == 5


def test_bytes_are_counted_with_keys_and_within_a_batch(rig: SparkRig) -> None:
    rig.log.append_many([b"x" * 10] * 100, [b"k" * 10] * 100)
    assert within_bytes(rig.log, 1, 100, 200, 5) == 10
    assert within_bytes(rig.log, 1, 7, 200, 5) == 7
    rig.log.trim(50)
    assert within_bytes(rig.log, 1, 100, 200, 5) == 60
    assert within_bytes(rig.log, 1, 40, 200, 5) == 40


def test_few_records_wait_for_more(rig: SparkRig, make_reader: Any) -> None:
    rig.fill(5)
    limits = {"minRecordsPerTrigger": "8", "maxRecordsPerTrigger": "9"}
    reader = make_reader(startingOffsets="earliest", **limits)
    assert ends_of(reader, 2) == [0, 0]
    rig.fill(6, first=6)
    assert ends_of(reader, 2) == [9, 9]
    reader.prepareForTriggerAvailableNow()  # ends with what there is
    assert ends_of(reader, 2) == [9, 11]


def test_records_wait_no_longer_than_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("loomlog.spark.triggers.time.monotonic", lambda: now)
    patience = Patience(10, 60)
    assert not patience.is_over(0)
    now = 200.0
    assert not patience.is_over(3)  # waits from now on
    now = 259.0
    assert not patience.is_over(4)
    now = 260.0
    assert patience.is_over(4)
    assert not patience.is_over(1)  # of the next micro-batch
    assert patience.is_over(10)


def test_a_query_with_all_limits_reads_everything_once(rig: SparkRig, tmp_path: Path) -> None:
    rig.fill(60)
    options: dict[str, Any] = {"startingOffsets": "earliest", "maxBytesPerTrigger": "150"}
    query = rig.run_available(tmp_path, **options, minRecordsPerTrigger=5, maxTriggerDelay="1h")
    assert rig.written(tmp_path) == list(range(1, 61))
    assert len([p for p in query.recentProgress if p["numInputRows"]]) > 1
    assert lag(query.lastProgress) == {rig.log.name: 0}


def test_a_listener_gets_the_lag_after_each_micro_batch(rig: SparkRig, tmp_path: Path) -> None:
    found: list[dict[str, int]] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...

        def onQueryProgress(self, event: Any) -> None:
            found.append(lag(event.progress))

        def onQueryIdle(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None: ...

    rig.fill(6)
    listener = Listener()
    rig.spark.streams.addListener(listener)
    try:
        rig.run_available(tmp_path, startingPosition="earliest", maxRecordsPerTrigger=4)
        wait_until(lambda: len(found) == 2)
    finally:
        rig.spark.streams.removeListener(listener)
    assert [progress[rig.log.name] for progress in found] == [2, 0]


def test_lag_is_told_of_each_log_and_of_no_other_source() -> None:
    def source(end: Any, latest: Any) -> dict[str, Any]:
        return {"endOffset": end, "latestOffset": latest}

    many = source({"logs": {"b": 1}}, '{"logs": {"b": 4, "c": 2}}')
    ours = source('{"log": "a", "position": 5}', {"log": "a", "position": 12})
    slower = source({"log": "a", "position": 2}, {"log": "a", "position": 12})
    others = [source({"topic": {"0": 3}}, {"topic": {"0": 4}}), source(None, "7")]
    assert lag({"sources": [ours, slower, many, *others]}) == {"a": 10, "b": 3, "c": 2}


def test_every_log_has_a_share_and_small_ones_leave_theirs() -> None:
    assert shares({"a": 100, "b": 10, "c": 100, "d": 0}, 90) == {"b": 10, "a": 40, "c": 40}
    assert shares({"a": 3, "b": 2}, 90) == {"a": 3, "b": 2}
    assert shares({"a": 9, "b": 9, "c": 9}, 1) == {"a": 1, "b": 1, "c": 1}
