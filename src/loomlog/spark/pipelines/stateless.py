"""A pipeline without state between its units: each unit is a separate batch job.

Each step reads the progress and performs the next action, so it does not matter which process
performed the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf

from loomlog.errors import Busy
from loomlog.spark.pipelines import dead_letters, decoder, units
from loomlog.spark.pipelines.failures import Fault, fault_of, reason_of
from loomlog.spark.pipelines.outputs import UnitId
from loomlog.spark.pipelines.units import Progress, Unit, UnitRange, UnitState
from loomlog.spark.pipelines.work import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from loomlog.client.blocking import BlockingLog

LENIENT_UNITS: Final = 100  # after a record that cannot be decoded: more are likely


class StatelessWork(Work):
    """Processes the units of one pipeline, one after the other."""

    _lenient = 0  # units that are searched for undecodable records at once

    def step(self, source: BlockingLog, last: int | None = None) -> bool:
        """Perform the next action; return False if nothing is left to do in `source`, up to `last`
        if given.

        Raise a Retryable error if another attempt may help, and other errors if none will."""
        progress = self._store.load()
        unit = progress.unit
        if unit is None:
            return self._create(progress, source, last)
        if unit.state is UnitState.COMMITTING:
            self._publish(progress, unit)
        else:
            self._run(progress, unit)
        return True

    def _create(self, progress: Progress, source: BlockingLog, last: int | None) -> bool:
        if progress.paused or progress.at_end:
            return False
        log, most = self._pipeline.log, self._pipeline.unit_records
        tail = source.tail() if last is None else last
        wanted = units.next_range(progress, log, tail, most)
        if wanted is None:
            return False
        self._store.change(lambda now: units.created(now, {log: wanted}))
        return True

    def _run(self, progress: Progress, unit: Unit) -> None:
        self._store.change(lambda now: units.running(now, unit.number))
        try:
            staged = self._stage(self._id(progress, unit), unit.ranges[self._pipeline.log])
        except Exception as error:
            if self._stopping():  # then stopping made it fail
                raise
            self._failed(progress, unit, error)
            return
        self._store.change(lambda now: units.decided(now, unit.number, staged))

    def _stage(self, unit: UnitId, wanted: UnitRange) -> dict[str, Any]:
        """Stage a range; search it for records that cannot be decoded only if there are any."""
        parsed = self._parsed(self._pipeline.log, wanted)
        if not self._lenient:
            try:
                return self._publication.stage(unit, self._frames.result(decoder.strict(parsed)))
            except Exception as error:
                if decoder.UNDECODABLE not in str(error):
                    raise
                self._lenient = LENIENT_UNITS
        self._lenient -= 1
        lost = self._letters(unit, decoder.lost(parsed))
        return self._publication.stage(unit, self._frames.result(parsed), lost)

    def _failed(self, progress: Progress, unit: Unit, error: Exception) -> None:
        """Record the failure; then retry later, halve the unit, set its only record aside, or give
        up."""
        fault, reason = fault_of(error), reason_of(error)
        counts = fault is Fault.RECORDS
        self._store.change(lambda now: units.failed(now, unit.number, reason, counts=counts))
        if fault is Fault.PIPELINE:
            raise error
        if fault is Fault.SURROUNDINGS:
            raise Busy(f"unit {unit.number} waits: {reason}") from error
        # A unit that results from halving is halved again after one failure.
        most = 1 if progress.pieces and unit.records > 1 else self._pipeline.attempts
        if unit.failures + 1 < most:
            raise Busy(f"unit {unit.number} failed and is tried again: {reason}") from error
        if unit.records > 1:
            self._store.change(lambda now: units.halved(now, unit.number))
        else:
            self._put_away(progress, unit, reason)

    def _put_away(self, progress: Progress, unit: Unit, reason: str) -> None:
        """Make a dead letter of a record that fails alone, unless the work also fails without
        it."""
        identity, wanted = self._id(progress, unit), unit.ranges[self._pipeline.log]
        parsed = self._parsed(self._pipeline.log, wanted)
        try:
            self._publication.stage(identity, self._frames.result(parsed.filter(sf.lit(False))))
        except Exception as error:
            raise Busy(f"even without records unit {unit.number} fails: {reason}") from error
        self._store.change(lambda now: units.running(now, unit.number))
        lost = self._letters(identity, decoder.all_lost(parsed, reason))
        staged = self._publication.stage(identity, None, lost)
        self._store.change(lambda now: units.decided(now, unit.number, staged))

    def _letters(self, unit: UnitId, lost: DataFrame) -> DataFrame:
        if letters := self._pipeline.rerun.letters:
            return dead_letters.written(lost, unit.pipeline, letters.version, letters.log)
        return dead_letters.written(lost, unit.pipeline, unit.version, self._pipeline.log)
