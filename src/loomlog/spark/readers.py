"""`spark.read` and `spark.readStream`: a range of positions, and the log as micro-batches.

A batch is planned once and read by many tasks. Of a stream, an offset is `{"log": NAME, "position":
N}`: all positions of that log up to and with N are read. A micro-batch is the range above its
start, to its end inclusive, whatever became of the log's streams meanwhile.

A reader travels from the planner to the tasks: it holds options, never an open connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from loomlog.client.blocking import BlockingCluster, BlockingLog
from loomlog.client.loglets.registry import is_dense
from loomlog.errors import DataLoss, NotFound, NotYetWritten
from loomlog.spark.filters import WantedRows, wanted_rows
from loomlog.spark.options import Committed, ReadOptions, Start
from loomlog.spark.pipelines.store import ProgressStore
from loomlog.spark.ranges import PositionRange, StreamRange, plan
from loomlog.spark.tasks import connect, read_range
from loomlog.types import Glsn

Offset: TypeAlias = dict[str, Any]


class BatchReader(DataSourceReader):
    """Reads the positions that the options name."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = WantedRows()

    def partitions(self) -> list[InputPartition]:
        with connect(self._options) as cluster:
            log = cluster.log(self._options.log)
            first, last = self._positions(cluster, log)
            return list(plan(log, self._options, first, last, self._wanted.streams))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, StreamRange | PositionRange):
            return iter(())  # Spark's own partition, when there was nothing to plan
        return read_range(self._options, partition, to_arrow_schema(self._schema, timezone="UTC"))

    def _positions(self, cluster: BlockingCluster, log: BlockingLog) -> tuple[Glsn, Glsn]:
        options, narrow = self._options, self._wanted
        tail = log.tail()
        first = _first_position(cluster, log, options.start)
        last = tail if options.end == "latest" else options.end
        if last > tail:
            raise NotYetWritten(
                f"endingPosition {last} of log {log.name!r} is not written yet; the last is {tail}"
            )
        last = last if narrow.last is None else min(last, narrow.last)
        return max(first, narrow.first or 1), last


class FilteringReader(BatchReader):
    """A BatchReader for versions of Spark that push filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        found = self._wanted = wanted_rows(filters)
        options = self._options
        times = [t for t in (options.from_time, found.from_time) if t is not None]
        ends = [t for t in (options.to_time, found.to_time) if t is not None]
        self._options = replace(
            options, from_time=max(times, default=None), to_time=min(ends, default=None)
        )
        return filters


class MicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, with one client for the life of the query."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: Glsn | None = None  # of Trigger.AvailableNow
        self._last = options.end if isinstance(options.end, int) else None
        self._cluster: BlockingCluster | None = None  # opened when asked; tasks have their own

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        log = self._log()
        assert self._cluster is not None
        return self._offset(_first_position(self._cluster, log, self._options.start) - 1)

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Offset, limit: ReadLimit
    ) -> Offset:
        done = _position(start)
        tail = self._log().tail()
        if tail < done and self._options.start != done + 1:  # a start above the tail may be meant
            raise DataLoss(
                f"log {self._options.log!r} ends at {tail}, this query's checkpoint at {done}: "
                "is it the same log? Start with a new checkpoint"
            )
        end = min(at for at in (tail, self._target, self._last) if at is not None)
        if isinstance(limit, ReadMaxRows):
            end = min(end, self._before_next(done, end) + limit.max_rows)
        return self._offset(max(end, done))

    def _before_next(self, done: Glsn, end: Glsn) -> Glsn:
        """Return the position before the next entry if only a gap follows `done`: a gap between
        epochs may be wider than the limit of a trigger."""
        if is_dense(done, end) or done + 1 < self._log().head():
            return done
        rows = next(self._log().subscribe_arrow(done + 1, end, payloads=False), None)
        return end if rows is None else int(rows.column("position")[0].as_py()) - 1

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        most = self._options.records_per_trigger_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return self._offset(self._log().tail())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._log().tail()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        first, last = _position(start) + 1, _position(end)
        return plan(self._log(), self._options, first, last) if first <= last else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, StreamRange | PositionRange)
        return read_range(self._options, partition, to_arrow_schema(self._schema, timezone="UTC"))

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _offset(self, position: Glsn) -> Offset:
        return {"log": self._options.log, "position": position}

    def _log(self) -> BlockingLog:
        if self._cluster is None:
            self._cluster = connect(self._options)
        return self._cluster.log(self._options.log)


def _position(offset: Offset) -> Glsn:
    return int(offset["position"])


def _first_position(cluster: BlockingCluster, log: BlockingLog, start: Start) -> Glsn:
    """Return the first position to read; above the tail if only what comes is wanted."""
    if start == "earliest":
        return log.earliest()
    if start == "latest":
        return log.tail() + 1
    if isinstance(start, Committed):
        return _committed_position(cluster, start.pipeline, log.name) + 1
    return start


def _committed_position(cluster: BlockingCluster, pipeline: str, log: str) -> Glsn:
    """Return the last position of `log` that the pipeline has committed."""
    positions = ProgressStore(cluster, pipeline).load().positions
    if log not in positions:
        raise NotFound(f"pipeline {pipeline!r} does not read log {log!r}: {', '.join(positions)}")
    return positions[log]
