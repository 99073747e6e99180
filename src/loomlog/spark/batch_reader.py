"""`spark.read`: a range of positions, planned once and read by many tasks.

A reader travels from the planner to the tasks: it holds options, never a connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from loomlog.client.blocking import BlockingCluster, BlockingLog
from loomlog.errors import NotYetWritten
from loomlog.spark.filters import Narrowing, narrowing
from loomlog.spark.options import ReadOptions
from loomlog.spark.positions import first_position
from loomlog.spark.ranges import PositionRange, StreamRange, plan
from loomlog.spark.tasks import connect, read_range
from loomlog.types import Glsn


class BatchReader(DataSourceReader):
    """Reads what the options say."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        with connect(self._options) as cluster:
            log = cluster.log(self._options.log)
            first, last = self._positions(cluster, log)
            return list(plan(log, self._options, first, last, self._narrowing.streams))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, StreamRange | PositionRange):
            return iter(())  # Spark's own partition, when there was nothing to plan
        return read_range(self._options, partition, to_arrow_schema(self._schema, timezone="UTC"))

    def _positions(self, cluster: BlockingCluster, log: BlockingLog) -> tuple[Glsn, Glsn]:
        options, narrow = self._options, self._narrowing
        tail = log.tail()
        first = first_position(cluster, log, options.start)
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
        found = self._narrowing = narrowing(filters)
        options = self._options
        times = [t for t in (options.from_time, found.from_time) if t is not None]
        ends = [t for t in (options.to_time, found.to_time) if t is not None]
        self._options = replace(
            options, from_time=max(times, default=None), to_time=min(ends, default=None)
        )
        return filters
