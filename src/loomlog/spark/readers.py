"""`spark.read` and `spark.readStream`: a range of positions, and the log as micro-batches.

A batch is planned once and read by many tasks. The offset of a streaming query is `{"log": NAME,
"position": N}`: all positions of that log up to and including N are read. A micro-batch is the
range above its start, up to and including its end, whatever happens to the log's streams meanwhile.
If there may be several logs, an offset is `{"logs": {NAME: N, …}}`; one micro-batch names a new
log, and the next one reads it.

A reader is pickled for the tasks, so it has options but no open connection.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
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
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from loomlog.client.blocking import BlockingCluster, BlockingLog
from loomlog.errors import DataLoss, NotFound, NotYetWritten
from loomlog.spark.filters import WantedRows, wanted_rows
from loomlog.spark.offsets import positions
from loomlog.spark.options import Committed, ReadOptions, Start
from loomlog.spark.pipelines.store import ProgressStore
from loomlog.spark.ranges import PositionRange, StreamRange, plan
from loomlog.spark.tasks import connect, read_range
from loomlog.spark.triggers import Patience, before_next, shares, within_bytes
from loomlog.types import Glsn

Offset: TypeAlias = dict[str, Any]
Positions: TypeAlias = dict[str, Glsn]  # the last one of each log, by its name


class BatchReader(DataSourceReader):
    """Reads the positions that the options name."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = WantedRows()

    def partitions(self) -> list[InputPartition]:
        with connect(self._options) as cluster:
            ranges: list[InputPartition] = []
            for log in map(cluster.log, names_of(cluster, self._options)):
                first, last = self._positions(cluster, log)
                ranges += plan(log, self._options, first, last, self._wanted.streams)
            return ranges

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, StreamRange | PositionRange):
            return iter(())  # Spark's default partition if nothing was planned
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
        self._targets: Positions | None = None  # of Trigger.AvailableNow
        self._last = options.end if isinstance(options.end, int) else None
        self._patience = Patience(options.records_per_trigger_min, options.trigger_delay_s)
        self._cluster: BlockingCluster | None = None  # opened when asked; tasks have their own

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        cluster = self._connected()
        logs = map(cluster.log, names_of(cluster, self._options))
        return self._offset({log.name: self._first(log) - 1 for log in logs})

    def _first(self, log: BlockingLog) -> Glsn:
        options = self._options
        first = _first_position(self._connected(), log, options.start)
        if options.start == "earliest" and options.from_time is not None:
            return _first_at(log, first, options.from_time)
        return first

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Offset, limit: ReadLimit
    ) -> Offset:
        done = self._positions(start)
        names = names_of(self._connected(), self._options, done)
        begins = {name: done[name] for name in names if name in done}
        ends = {name: self._end(name, begin) for name, begin in begins.items()}
        if not isinstance(limit, ReadAllAvailable):
            ends = self._limited(begins, ends, limit)
        ends = {name: max(end, begins[name]) for name, end in ends.items()}
        # The beginning of a new log must be in the checkpoint before the log is read.
        known = begins.keys() | (names if self._targets is None else self._targets.keys())
        new = [name for name in names if name in known and name not in begins]
        return self._offset(ends | {name: self._log(name).earliest() - 1 for name in new})

    def _end(self, name: str, begin: Glsn) -> Glsn:
        """Return the last position of a log that this query may read now."""
        tail = self._log(name).tail()
        if tail < begin and self._options.start != begin + 1:  # a start above the tail may be meant
            raise DataLoss(
                f"log {name!r} ends at {tail}, this query's checkpoint at {begin}: "
                "is it the same log? Start with a new checkpoint"
            )
        target = None if self._targets is None else self._targets.get(name, begin)
        return min(at for at in (tail, target, self._last) if at is not None)

    def _limited(self, begins: Positions, ends: Positions, limit: ReadLimit) -> Positions:
        """Return the ends of the next micro-batch: `ends`, or lower ones if the options say so."""
        before = {name: before_next(self._log(name), begins[name], ends[name]) for name in ends}
        waiting = {name: max(ends[name] - before[name], 0) for name in ends}
        if self._targets is None and not self._patience.is_over(sum(waiting.values())):
            return begins
        if isinstance(limit, ReadMaxRows):
            share = shares(waiting, limit.max_rows)
            ends = {name: min(end, before[name] + share.get(name, 0)) for name, end in ends.items()}
        busy = [name for name, records in waiting.items() if records]
        if self._options.bytes_per_trigger_max is not None and busy:
            most, timeout_s = self._options.bytes_per_trigger_max, self._options.read_timeout_s
            for name in busy:
                first, log = before[name] + 1, self._log(name)
                ends[name] = within_bytes(log, first, ends[name], most // len(busy), timeout_s)
        return ends

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return one limit, as Spark requires; all limits are applied from the options."""
        options = self._options
        if options.records_per_trigger_max is not None:
            return ReadMaxRows(options.records_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        if options.records_per_trigger_min:
            return ReadMinRows(options.records_per_trigger_min)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return self._offset(self._tails())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._targets = self._tails()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        begins, ranges = self._positions(start), list[InputPartition]()
        for name, last in self._positions(end).items():
            first = begins.get(name, last) + 1
            if first <= last:
                ranges += self._planned(name, first, last)
        return ranges

    def _planned(self, name: str, first: Glsn, last: Glsn) -> Sequence[InputPartition]:
        try:
            return plan(self._log(name), self._options, first, last)
        except NotFound:
            if self._options.log_pattern and not self._options.fail_on_data_loss:
                return []  # deleted since
            raise

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, StreamRange | PositionRange)
        return read_range(self._options, partition, to_arrow_schema(self._schema, timezone="UTC"))

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _offset(self, ends: Positions) -> Offset:
        if self._options.log:
            return {"log": self._options.log, "position": ends[self._options.log]}
        return {"logs": dict(sorted(ends.items()))}  # Spark compares offsets as text

    def _positions(self, offset: Offset) -> Positions:
        if self._options.log and "position" in offset:  # the log may have had another name
            return {self._options.log: int(offset["position"])}
        return positions(offset)

    def _tails(self) -> Positions:
        names = names_of(self._connected(), self._options)
        return {name: self._log(name).tail() for name in names}

    def _connected(self) -> BlockingCluster:
        if self._cluster is None:
            self._cluster = connect(self._options)
        return self._cluster

    def _log(self, name: str) -> BlockingLog:
        return self._connected().log(name)


def names_of(
    cluster: BlockingCluster, options: ReadOptions, done: Collection[str] = ()
) -> Sequence[str]:
    """Return the names of the logs that match the options now; raise DataLoss if one of `done`,
    which a query has read, was deleted."""
    if not options.log_pattern:
        return options.logs or (options.log,)
    existing = {info.name for info in cluster.logs() if info.staging_for is None}
    deleted = sorted(set(done) - existing)
    if deleted and options.fail_on_data_loss:
        raise DataLoss(
            f"log {', '.join(deleted)} was deleted, perhaps before all of it was read; with "
            "failOnDataLoss=false the query continues without it"
        )
    return sorted(name for name in existing if re.fullmatch(options.log_pattern, name))


def _first_position(cluster: BlockingCluster, log: BlockingLog, start: Start) -> Glsn:
    """Return the first position to read; above the tail if only new entries are wanted."""
    if start == "earliest":
        return log.earliest()
    if start == "latest":
        return log.tail() + 1
    if isinstance(start, Committed):
        return _committed_position(cluster, start.pipeline, log.name) + 1
    return start


def _first_at(log: BlockingLog, earliest: Glsn, moment: datetime) -> Glsn:
    """Return the first position at or after a time. The archive is not searched; if it may have
    such entries, it is read from its beginning."""
    found = log.find_time(moment)
    return earliest if found <= log.head() else found


def _committed_position(cluster: BlockingCluster, pipeline: str, log: str) -> Glsn:
    """Return the last position of `log` that the pipeline has committed."""
    positions = ProgressStore(cluster, pipeline).load().positions
    if log not in positions:
        raise NotFound(f"pipeline {pipeline!r} does not read log {log!r}: {', '.join(positions)}")
    return positions[log]
