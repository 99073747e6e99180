"""The DataFrames of a pipeline: its sources, read and decoded, and what its function returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from loomlog.errors import LoomError
from loomlog.spark.pipelines import dead_letters, decoder
from loomlog.spark.pipelines.definition import ROWS, Pipeline
from loomlog.spark.pipelines.failures import FunctionError, reason_of
from loomlog.spark.pipelines.units import Range
from loomlog.types import Glsn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS_PER_TASK: Final = 50_000  # fewer are not worth another task


class Frames:
    """Makes the frames of one pipeline."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, cluster: str) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._cluster = cluster

    def records(self, log: str, wanted: Range) -> DataFrame:
        """The records of a range, as they are in the log."""
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
