"""Reading while the log changes under it: streams added, sealed and moved, entries trimmed, with a
task of Spark in the midst of its range."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from spark_rig import SparkRig

WAIT_S = 60.0
# Rows enough that most are neither read ahead nor on their way between Spark's processes when the
# first ones are processed.
ROWS = 128 * 1024
ROW_BYTES = 512
TRIMMED = ROWS - 20_000


def fill_one_stream(rig: SparkRig) -> int:
    """Fill one stream, so that there is one task; return the stream."""
    stream = rig.streams[0]
    value = b"x" * ROW_BYTES
    for _ in range(0, ROWS, 1024):
        rig.log.append_many([value] * 1024, stream=stream)
    return stream


class Gate:
    """A place in a query where rows wait until it is opened."""

    def __init__(self, place: Path) -> None:
        self._reached = place / "reached"
        self._open = place / "open"

    def through(self, frame: DataFrame) -> DataFrame:
        """Return a frame of the positions of all rows, which wait at the gate."""
        reached, opened = self._reached, self._open

        def wait(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                reached.touch()
                while not opened.exists():
                    time.sleep(0.01)
                yield batch.select(["position"])

        return frame.mapInArrow(wait, "position long")

    def wait(self) -> None:
        wait_until(self._reached.exists)

    def open(self) -> None:
        self._open.touch()


def wait_until(condition: Callable[[], bool]) -> None:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < WAIT_S
        time.sleep(0.01)


@contextmanager
def reading(frame: DataFrame, gate: Gate) -> Iterator[Future[list[int]]]:
    """Read in a thread; in the block a task has begun and waits. Yield the future positions."""

    def positions() -> list[int]:
        return sorted(row.position for row in gate.through(frame).collect())

    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(positions)
        try:
            gate.wait()
            yield found
        finally:
            gate.open()


def test_entries_trimmed_under_a_running_task_end_the_read_and_are_named(
    rig: SparkRig, tmp_path: Path
) -> None:
    fill_one_stream(rig)
    gate = Gate(tmp_path)
    with reading(rig.frame(), gate) as found:
        rig.log.trim(TRIMMED)
        gate.open()
        with pytest.raises(PySparkException, match=rf"positions \d+ to {TRIMMED} were trimmed"):
            found.result(WAIT_S)


def test_without_fail_on_data_loss_a_running_task_goes_on_behind_the_trim(
    rig: SparkRig, tmp_path: Path
) -> None:
    fill_one_stream(rig)
    gate = Gate(tmp_path)
    with reading(rig.frame(failOnDataLoss="false"), gate) as found:
        rig.log.trim(TRIMMED)
        gate.open()
        positions = found.result(WAIT_S)
    before = [position for position in positions if position <= TRIMMED]
    assert 0 < len(before) < TRIMMED
    assert positions == [*range(1, len(before) + 1), *range(TRIMMED + 1, ROWS + 1)]


def test_a_task_reads_on_while_its_stream_is_sealed_and_moved(
    rig: SparkRig, tmp_path: Path
) -> None:
    stream = fill_one_stream(rig)
    gate = Gate(tmp_path)
    with reading(rig.frame(), gate) as found:
        rig.cluster.seal_stream(stream)
        rig.cluster.add_stream(rig.log.name)
        for replica in replicas(rig, stream):
            rig.cluster.move_stream(stream, replica)
            wait_until(lambda left=replica: left not in replicas(rig, stream))  # type: ignore[misc]
        gate.open()
        assert found.result(WAIT_S) == list(range(1, ROWS + 1))


def replicas(rig: SparkRig, stream: int) -> list[int]:
    info = next(found for found in rig.log.describe().streams if found.id == stream)
    return [replica.node for replica in info.replicas]


def test_a_micro_batch_that_lost_entries_is_repeated_without_them_if_that_is_wanted(
    rig: SparkRig, tmp_path: Path
) -> None:
    fill_one_stream(rig)
    gate = Gate(tmp_path)

    def start(**options: Any) -> Any:
        stream = gate.through(rig.stream(startingPosition="earliest", **options))
        return (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )

    query = start()
    gate.wait()
    rig.log.trim(TRIMMED)
    gate.open()
    with pytest.raises(PySparkException, match=rf"positions \d+ to {TRIMMED} were trimmed"):
        query.awaitTermination(WAIT_S)
    start(failOnDataLoss="false").awaitTermination(WAIT_S)
    assert written(rig, tmp_path) == list(range(TRIMMED + 1, ROWS + 1))


def test_a_query_has_every_position_once_whatever_happens_to_the_streams(
    rig: SparkRig, tmp_path: Path
) -> None:
    first, second, third = rig.streams
    query = (
        rig.stream(startingPosition="earliest", minPartitions=4)
        .select("position")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(str(tmp_path / "rows"))
    )
    changes: list[Callable[[], object]] = [
        lambda: rig.cluster.add_stream(rig.log.name),
        lambda: rig.cluster.seal_stream(first),
        lambda: rig.cluster.move_stream(second, replicas(rig, second)[0]),
        lambda: rig.log.trim(last_read(query)),
        lambda: rig.cluster.unseal_stream(first),
        lambda: rig.cluster.seal_stream(third),
        lambda: rig.cluster.move_stream(first, replicas(rig, first)[1]),
        lambda: rig.log.trim(last_read(query)),
    ]
    with appending(rig):
        for change in changes:
            at = rig.log.tail()
            change()
            wait_until(lambda at=at: rig.log.tail() > at)  # type: ignore[misc]
            wait_until(lambda at=at: last_read(query) > at)  # type: ignore[misc]
    query.processAllAvailable()
    query.stop()
    assert rig.log.head() > 1
    assert written(rig, tmp_path) == list(range(1, rig.log.tail() + 1))


@contextmanager
def appending(rig: SparkRig) -> Iterator[None]:
    """Append all the time, to the streams that accept it."""
    stop = threading.Event()

    def append() -> None:
        while not stop.wait(0.01):
            rig.log.append_many([b"x"] * 20)

    with ThreadPoolExecutor(1) as thread:
        writer = thread.submit(append)
        try:
            yield
        finally:
            stop.set()
        writer.result(WAIT_S)


def last_read(query: Any) -> int:
    """Return the last position of its committed micro-batches."""
    assert query.isActive, query.exception()
    progress = query.lastProgress
    if not progress or not progress["sources"][0]["endOffset"]:
        return 0
    offset = progress["sources"][0]["endOffset"]
    return int((json.loads(offset) if isinstance(offset, str) else offset)["position"])


def written(rig: SparkRig, place: Path) -> list[int]:
    rows = rig.spark.read.parquet(str(place / "rows"))
    return sorted(row.position for row in rows.select("position").collect())
