"""All that a unit puts out, committed together: its rows, and letters of records that are lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loomlog.errors import Busy
from loomlog.spark.pipelines import units
from loomlog.spark.pipelines.definition import Pipeline
from loomlog.spark.pipelines.frames import Frames
from loomlog.spark.pipelines.log_output import LogOutput
from loomlog.spark.pipelines.outputs import StagedLostError, UnitId
from loomlog.spark.pipelines.store import ProgressStore
from loomlog.spark.pipelines.units import Progress, Range, Unit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
            staged["output"] = self._output.stage(rows, unit)
        if lost is not None:
            staged["dead_letters"] = self._dead_letters.stage(lost, _unversioned(unit))
        return staged

    def publish(self, unit: UnitId, staged: Mapping[str, Any]) -> None:
        """Make it visible; fine to do again."""
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


class Work:
    """Common to pipelines with and without state: how their units are identified and published."""

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
        """Publish what is decided and fold the unit into the progress. Raises Busy if the unit has
        to be computed again."""
        staged = unit.staged or {}
        try:
            self._publication.publish(self._id(progress, unit), staged)
        except StagedLostError as error:
            self._store.change(lambda now: units.undecided(now, unit.number))
            raise Busy(f"unit {unit.number} is computed again: {error}") from error
        lost = _letters_in(staged)
        after = self._store.change(lambda now: units.committed(now, unit.number, time.time(), lost))
        self._committed(unit, after)

    def _parsed(self, log: str, wanted: Range) -> DataFrame:
        return self._frames.parsed(log, self._frames.records(log, wanted))

    def _id(self, progress: Progress, unit: Unit) -> UnitId:
        name, version = self._pipeline.name, progress.version
        return UnitId(self._cluster, name, unit.number, version, progress.life)
