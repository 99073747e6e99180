"""A pipeline with state (windows, joins, de-duplication), which is a streaming query of Spark.

Its units are the micro-batches. Spark's checkpoint has the state and the positions that a
micro-batch reads; the pipeline's progress says which micro-batch is committed. A micro-batch that
Spark repeats is run again to advance the state, but its output is the one that was decided before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from loomlog.errors import Corrupt
from loomlog.spark.pipelines import dead_letters, decoder, units
from loomlog.spark.pipelines.failures import PipelineError
from loomlog.spark.pipelines.units import Progress, Unit, UnitRange, UnitState
from loomlog.spark.pipelines.work import Work
from loomlog.types import Glsn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_PAUSED_S: Final = 0.2  # how often a paused pipeline checks whether it was resumed


class StatefulWork(Work):
    """The streaming query of one pipeline."""

    _failure: Exception | None = None
    _checkpoint: SparkCheckpoint

    def start(self, *, once: bool) -> StreamingQuery:
        """Start the query, from its checkpoint if there is one."""
        progress = self._store.load()
        generation = progress.generation
        self._checkpoint = SparkCheckpoint(self._spark, self._pipeline.checkpoint, generation)
        self._require_own(progress)
        frame = self._frames.streaming_result(dict(progress.positions), dict(progress.ends))
        writing = (
            frame.writeStream.foreachBatch(self._batch)
            .outputMode(self._pipeline.output_mode)
            .option("checkpointLocation", self._checkpoint.path)
        )
        if once or progress.ends:
            writing = writing.trigger(availableNow=True)
        else:
            interval_ms = max(1, int(self._pipeline.interval_s * 1000))
            writing = writing.trigger(processingTime=f"{interval_ms} milliseconds")
        query = writing.start()
        self._store.change(lambda now: units.query_bound(now, str(query.id)))
        return query

    def failure(self, query: StreamingQuery) -> Exception | None:
        """Return why the query ended; None: it is done."""
        return self._failure or query.exception()

    def _require_own(self, progress: Progress) -> None:
        """Raise unless the checkpoint holds this pipeline's state."""
        found = self._checkpoint.query()
        if progress.query and found != progress.query:
            wrong = "is another query's" if found else "is empty"
            raise PipelineError(
                f"pipeline {self._pipeline.name!r} has state, and the checkpoint "
                f"{self._checkpoint.path} {wrong}: use the one its other sites use, on shared "
                "storage, or start over with `loom pipeline reset`"
            )

    # ---- a micro-batch

    def _batch(self, frame: DataFrame, batch: int) -> None:
        try:
            self._process(frame, batch)
        except Exception as error:
            self._failure = error  # Spark reports only its text
            raise

    def _process(self, frame: DataFrame, batch: int) -> None:
        progress = self._unpaused()
        decided = progress.unit
        if decided is not None and decided.state is not UnitState.COMMITTING:
            progress = self._store.change(units.abandoned)  # a runner died while it worked on it
            decided = None
        if decided is None and batch > progress.batch:
            self._publish(*self._run(frame, progress, batch))
            return
        self._require_last(progress, decided, batch)
        frame.write.format("noop").mode("overwrite").save()  # only to advance the state
        if decided is not None:
            self._publish(progress, decided)

    def _unpaused(self) -> Progress:
        progress = self._store.load()
        while progress.paused and not self._stopping():
            time.sleep(_PAUSED_S)
            progress = self._store.load()
        return progress

    def _require_last(self, progress: Progress, decided: Unit | None, batch: int) -> None:
        """Raise unless Spark repeats the last known micro-batch, with the same ranges."""
        known, ends = progress.batch, dict(progress.positions)
        if decided is not None:
            known = decided.batch if decided.batch is not None else -1
            ends = {log: found.last for log, found in decided.ranges.items()}
        found = self._checkpoint.offsets(batch)
        if batch != known or found != ends:
            raise self._mismatch(found, progress)

    def _ranges(self, progress: Progress, batch: int) -> dict[str, UnitRange]:
        ends = self._checkpoint.offsets(batch) or {}
        before = self._checkpoint.offsets(batch - 1) if batch else dict(progress.positions)
        if set(ends) != set(progress.positions) or before != dict(progress.positions):
            raise self._mismatch(before, progress)
        return {log: UnitRange(progress.positions[log] + 1, last) for log, last in ends.items()}

    def _mismatch(self, found: Mapping[str, Glsn] | None, progress: Progress) -> PipelineError:
        return PipelineError(
            f"the checkpoint {self._checkpoint.path} is at {found}, pipeline "
            f"{self._pipeline.name!r} is committed up to {dict(progress.positions)}: it is not its "
            "checkpoint, or an old copy; `loom pipeline reset` starts over"
        )

    def _run(self, frame: DataFrame, progress: Progress, batch: int) -> tuple[Progress, Unit]:
        """Compute a micro-batch; return the progress and its decided unit."""
        ranges = self._ranges(progress, batch)
        progress = self._store.change(lambda now: units.created(now, ranges, batch))
        assert progress.unit is not None
        unit, number = progress.unit, progress.unit.number
        self._store.change(lambda now: units.running(now, number))
        lost = self._letters(unit, progress.version)
        staged = self._publication.stage(self._id(progress, unit), frame, lost)
        progress = self._store.change(lambda now: units.decided(now, number, staged))
        assert progress.unit is not None
        return progress, progress.unit

    def _letters(self, unit: Unit, version: int) -> DataFrame | None:
        """Read the sources of the micro-batch again, and return the records that cannot be
        decoded."""
        name = self._pipeline.name
        found = [
            dead_letters.written(decoder.lost(self._parsed(log, wanted)), name, version, log)
            for log, wanted in unit.ranges.items()
            if wanted.records and self._pipeline.decode[log] != "raw"
        ]
        return reduce(lambda one, other: one.union(other), found) if found else None


class SparkCheckpoint:
    """Spark's checkpoint of a stateful pipeline, one directory for each generation of its state.

    It is read through Hadoop's file systems, as Spark does, so it may be on any storage.
    """

    def __init__(self, spark: SparkSession, directory: str, generation: int) -> None:
        # Java may have begun in another directory.
        place = directory if "://" in directory else str(Path(directory).absolute())
        self.path = f"{place.rstrip('/')}/{generation}"
        self._jvm: Any = spark.sparkContext._jvm
        self._configuration = spark.sparkContext._jsc.hadoopConfiguration()

    def query(self) -> str:
        """Return the id of its query, or "" if there is none yet."""
        text = self._read("metadata")
        return "" if text is None else str(json.loads(text)["id"])

    def offsets(self, batch: int) -> dict[str, Glsn] | None:
        """Return the last position of a micro-batch by log; None if it is not in the checkpoint."""
        text = self._read(f"offsets/{batch}")
        if text is None:
            return None
        version, _, *lines = text.splitlines()
        if version != "v1":
            raise Corrupt(f"{self.path}: this Spark writes offsets of a form not known: {version}")
        found = [json.loads(line) for line in lines if line != "-"]
        return {offset["log"]: offset["position"] for offset in found}

    def _read(self, name: str) -> str | None:
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self.path}/{name}")
        files = path.getFileSystem(self._configuration)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
