"""A log as output: Spark's tasks stage the rows, one reference publishes them all."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType

from loomlog.client.blocking import connect_sync
from loomlog.client.publish.stager import Staged
from loomlog.errors import AlreadyExists, InvalidArgument, NotFound, Trimmed
from loomlog.spark.pipelines.outputs import StagedLostError, UnitId
from loomlog.spark.writers import TaskStaged, all_staged, require_writable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from loomlog.client.blocking import BlockingCluster


_FORMAT: Final = "loomlog-staging"
_COLUMNS: Final = frozenset({"value", "key", "timestamp"})
_REPLICAS: Final = 3  # of a log that is made here, if there are as many nodes


@dataclass(frozen=True, slots=True)
class LogOutput:
    """`log(name)`: another log of the cluster, created with the first rows if it is missing.

    A frame with the columns `value` and optionally `key` and `timestamp` is stored unchanged; rows
    of other frames are converted to JSON."""

    name: str
    streams: int = 1  # of a log that is made here

    def stage(self, frame: DataFrame, unit: UnitId) -> Any:
        log = unit.place(self.name)
        with connect_sync(unit.cluster) as cluster:
            self._make(cluster, log)
            cluster.log(log).writer(unit.pipeline)  # known from now on: no trim takes its rows
        staged = stage_rows(as_records(frame), unit.cluster, log)
        return {"rows": staged.rows, "staged": staged.to_json()} if staged.rows else None

    def publish(self, unit: UnitId, staged: Any) -> None:
        with connect_sync(unit.cluster) as cluster:
            writer = cluster.log(unit.place(self.name)).writer(unit.pipeline)
            try:
                writer.publish(unit.number, Staged.from_json(staged["staged"]))
            except Trimmed as error:
                raise StagedLostError(str(error)) from None

    def may_have(self, unit: UnitId) -> bool:
        try:
            with connect_sync(unit.cluster) as cluster:
                return cluster.log(unit.place(self.name)).tail() > 0
        except NotFound:
            return False

    def describe(self) -> str:
        return f"log {self.name}"

    def _make(self, cluster: BlockingCluster, log: str) -> None:
        try:
            cluster.log(log).describe()
        except NotFound:
            self._create(cluster, log)

    def _create(self, cluster: BlockingCluster, log: str) -> None:
        for replicas in range(_REPLICAS, 0, -1):
            try:
                cluster.create_log(log, streams=self.streams, replicas=replicas)
                return
            except AlreadyExists:
                return  # another site was faster
            except InvalidArgument:  # the cluster has fewer nodes
                if replicas == 1:
                    raise


def as_records(frame: DataFrame) -> DataFrame:
    """Return the rows as records of a log."""
    types = {field.name: field.dataType for field in frame.schema.fields}
    plain = isinstance(types.get("value"), BinaryType | StringType) and _COLUMNS.issuperset(types)
    if not plain:
        return frame.select(sf.to_json(sf.struct("*")).alias("value"))
    require_writable(frame.schema, overwrite=False)  # here, where no record is blamed for it
    return frame


def log(name: str, streams: int = 1) -> LogOutput:
    """Return an output to another log, which is created with `streams` streams if it is missing."""
    return LogOutput(name, streams)


# ---- staging: a data source whose tasks stage rows. Its commit, which Spark runs in another
# process next to the driver, leaves a file that says what was staged.


def register(spark: SparkSession) -> None:
    """Register the data source for staging in a session and those derived from it."""
    spark.dataSource.register(StagingSource)


def stage_rows(frame: DataFrame, cluster: str, log: str) -> Staged:
    """Stage all rows of a frame with the columns `value` and optionally `key`, `timestamp`."""
    with tempfile.TemporaryDirectory(prefix="loomlog-staged-") as directory:
        answer = Path(directory) / "staged.json"
        options = {"cluster": cluster, "log": log, "answer": str(answer)}
        frame.write.format(_FORMAT).options(**options).mode("append").save()
        return Staged.from_json(json.loads(answer.read_text()))


class StagingSource(DataSource):
    """The data source that Spark loads."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> StagingWriter:
        return StagingWriter(self.options["cluster"], self.options["log"], self.options["answer"])


class StagingWriter(DataSourceArrowWriter):
    """Is pickled for the tasks and the commit, so it has options but no connection."""

    def __init__(self, cluster: str, log: str, answer: str) -> None:
        self._cluster = cluster
        self._log = log
        self._answer = answer

    def write(self, iterator: Iterator[Any]) -> TaskStaged:
        with connect_sync(self._cluster) as cluster:
            return TaskStaged(cluster.log(self._log).stage(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        whole = all_staged(messages, self._log)
        Path(self._answer).write_text(json.dumps(whole.to_json()))
