"""The work that pipelines with and without state share: DataFrames in, publications out.

`Frames` reads and decodes the sources and calls the pipeline's function. `Publication` commits the
output of a unit as a whole: its rows, and dead letters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from loomlog.errors import Busy, LoomError
from loomlog.spark.pipelines import dead_letters, decoder, units
from loomlog.spark.pipelines.definition import ROWS, Pipeline
from loomlog.spark.pipelines.failures import FunctionError, output_ahead, reason_of
from loomlog.spark.pipelines.log_output import LogOutput
from loomlog.spark.pipelines.outputs import CountedOutput, StagedLostError, UnitId
from loomlog.spark.pipelines.store import ProgressStore
from loomlog.spark.pipelines.units import Progress, Unit, UnitRange
from loomlog.types import Glsn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS_PER_TASK: Final = 50_000  # fewer are not worth another task


class Work:
    """Identifies and publishes the units of a pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        cluster: str,
        spark: SparkSession,
        store: ProgressStore,
        committed: Callable[[Unit, Progress], None],
        stopping: Callable[[], bool],
    ) -> None:
        self._pipeline = pipeline
        self._cluster = cluster
        self._spark = spark
        self._frames = Frames(spark, pipeline, cluster)
        self._store = store
        self._publication = Publication(pipeline)
        self._committed = committed
        self._stopping = stopping

    def _publish(self, progress: Progress, unit: Unit) -> None:
        """Publish the decided output and fold the unit into the progress. Raise Busy if the unit
        has to be computed again."""
        staged = unit.staged or {}
        try:
            self._publication.publish(self._id(progress, unit), staged)
        except StagedLostError as error:
            self._store.change(lambda now: units.undecided(now, unit.number))
            raise Busy(f"unit {unit.number} is computed again: {error}") from error
        lost = _letters_in(staged)
        after = self._store.change(lambda now: units.committed(now, unit.number, time.time(), lost))
        self._committed(unit, after)

    def _parsed(self, log: str, wanted: UnitRange) -> DataFrame:
        return self._frames.parsed(log, self._frames.records(log, wanted))

    def _id(self, progress: Progress, unit: Unit) -> UnitId:
        name, version = self._pipeline.name, progress.version
        return UnitId(self._cluster, name, unit.number, version, progress.life)


class Frames:
    """Creates the frames of one pipeline."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, cluster: str) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._cluster = cluster

    def records(self, log: str, wanted: UnitRange) -> DataFrame:
        """Return the records of a range, as in the log."""
        tasks = min(self._spark.sparkContext.defaultParallelism, wanted.records // _ROWS_PER_TASK)
        options: dict[str, Any] = {
            "startingPosition": wanted.first,
            "endingPosition": wanted.last,
            "minPartitions": max(1, tasks),
        }
        return self._load(self._spark.read, log, options)

    def parsed(self, log: str, records: DataFrame) -> DataFrame:
        """Return the records with their decoded values."""
        pipeline = self._pipeline
        return decoder.parsed(records, pipeline.decode[log], pipeline.schemas[log])

    def result(self, parsed: DataFrame) -> DataFrame:
        """Return the result of a stateless pipeline for parsed records."""
        log = self._pipeline.log
        return self._called({log: self._columns(log, parsed)})

    def streaming_result(self, behind: dict[str, Glsn], ends: dict[str, Glsn]) -> DataFrame:
        """Return the result of a stateful pipeline for its sources, as a stream."""
        frames = {}
        for log in self._pipeline.logs:
            options: dict[str, Any] = {
                "startingPosition": behind[log] + 1,
                "maxRecordsPerTrigger": self._pipeline.unit_records,
            }
            if log in ends:
                options["endingPosition"] = ends[log]
            stream = self._load(self._spark.readStream, log, options)
            frames[log] = self._columns(log, self.parsed(log, stream))
        return self._called(frames)

    def _columns(self, log: str, parsed: DataFrame) -> DataFrame:
        pipeline = self._pipeline
        decode, schema = pipeline.decode[log], pipeline.schemas[log]
        return decoder.columns(parsed, decode, schema, pipeline.watermarks.get(log))

    def _called(self, frames: dict[str, DataFrame]) -> DataFrame:
        pipeline = self._pipeline
        by_name = {name: frames[log] for name, log in pipeline.sources.items()}
        try:
            if set(by_name) == {ROWS}:
                found = pipeline.function(by_name[ROWS])
            else:
                found = pipeline.function(**by_name)
        except LoomError:
            raise
        except Exception as error:
            raise FunctionError(
                f"the function of pipeline {pipeline.name!r} failed: "
                f"{type(error).__name__}: {reason_of(error)}"
            ) from error
        if not hasattr(found, "sparkSession"):
            raise FunctionError(
                f"the function of pipeline {pipeline.name!r} must return a DataFrame, "
                f"not {type(found).__name__}"
            )
        return found

    def _load(self, reader: Any, log: str, options: dict[str, Any]) -> DataFrame:
        rerun = self._pipeline.rerun
        if rerun.from_time is not None:
            options["startingTimestamp"] = rerun.from_time.isoformat()
        if rerun.to_time is not None:
            options["endingTimestamp"] = rerun.to_time.isoformat()
        given = {"cluster": self._cluster, "log": log, **options}
        frame: DataFrame = reader.format("loomlog").options(**given).load()
        return dead_letters.opened(frame, rerun.letters) if rerun.letters else frame


class Publication:
    """The outputs of a pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._output = pipeline.output
        self._dead_letters = LogOutput(pipeline.dead_letters)

    def stage(
        self, unit: UnitId, rows: DataFrame | None, lost: DataFrame | None = None
    ) -> dict[str, Any]:
        """Stage the rows and return, as JSON, what `publish` needs."""
        staged: dict[str, Any] = {}
        if rows is not None:
            self._check_unknown(unit)
            staged["output"] = self._output.stage(rows, unit)
        if lost is not None:
            staged["dead_letters"] = self._dead_letters.stage(lost, _unversioned(unit))
        return staged

    def _check_unknown(self, unit: UnitId) -> None:
        """Raise PipelineError if the output has a unit of this number, which was not this one."""
        output = self._output
        if isinstance(output, CountedOutput) and output.last_unit(unit) >= unit.number:
            raise output_ahead(unit.pipeline, f"{output.describe()} has")

    def publish(self, unit: UnitId, staged: Mapping[str, Any]) -> None:
        """Make the staged output visible; may be called again."""
        if staged.get("output") is not None:
            self._output.publish(unit, staged["output"])
        if staged.get("dead_letters") is not None:
            self._dead_letters.publish(_unversioned(unit), staged["dead_letters"])


def _letters_in(staged: Mapping[str, Any]) -> int:
    """Return the number of dead letters."""
    found = staged.get("dead_letters")
    return found["rows"] if found else 0


def _unversioned(unit: UnitId) -> UnitId:
    return replace(unit, version=1)
