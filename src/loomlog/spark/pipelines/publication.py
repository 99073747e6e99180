"""All that a unit puts out, committed together: its rows, and letters of records that are lost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loomlog.errors import Busy
from loomlog.spark.pipelines import units
from loomlog.spark.pipelines.definition import Pipeline
from loomlog.spark.pipelines.log_output import LogOutput
from loomlog.spark.pipelines.outputs import StagedLostError, UnitId
from loomlog.spark.pipelines.store import ProgressStore
from loomlog.spark.pipelines.units import Progress, Unit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Publication:
    """The outputs of a pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._output = pipeline.output
        self._dead_letters = LogOutput(pipeline.dead_letters)

    def stage(
        self, unit: UnitId, rows: DataFrame | None, lost: DataFrame | None = None
    ) -> dict[str, Any]:
        """What `publish` needs, as JSON."""
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


def commit(publication: Publication, store: ProgressStore, unit_id: UnitId, unit: Unit) -> Progress:
    """Publish what is decided and fold the unit into the progress. Raises Busy if the unit has to
    be computed again."""
    staged = unit.staged or {}
    try:
        publication.publish(unit_id, staged)
    except StagedLostError as error:
        store.change(lambda now: units.undecided(now, unit.number))
        raise Busy(f"unit {unit.number} is computed again: {error}") from error
    lost = _letters_in(staged)
    return store.change(lambda now: units.committed(now, unit.number, time.time(), lost))


def _letters_in(staged: Mapping[str, Any]) -> int:
    """How many dead letters there are."""
    found = staged.get("dead_letters")
    return found["rows"] if found else 0


def _unversioned(unit: UnitId) -> UnitId:
    return replace(unit, version=1)
