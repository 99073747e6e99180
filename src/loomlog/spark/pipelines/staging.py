"""Staging the rows of a DataFrame for a log, without publishing them.

A data source of its own, for pipelines alone: its tasks stage, and its commit, which Spark runs in
another process beside the driver, leaves word of what was staged in a file.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from loomlog.client.blocking import connect_sync
from loomlog.client.staging import Staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FORMAT: Final = "loomlog-staging"


def register(spark: SparkSession) -> None:
    """Make staging known to a session and those that are made from it."""
    spark.dataSource.register(StagingSource)


def stage_rows(frame: DataFrame, cluster: str, log: str) -> Staged:
    """Stage all rows of a frame; its columns are `value` and, if wanted, `key` and `timestamp`."""
    with tempfile.TemporaryDirectory(prefix="loomlog-staged-") as directory:
        answer = Path(directory) / "staged.json"
        options = {"cluster": cluster, "log": log, "answer": str(answer)}
        frame.write.format(_FORMAT).options(**options).mode("append").save()
        return Staged.from_json(json.loads(answer.read_text()))


@dataclass(frozen=True, slots=True)
class _TaskStaged(WriterCommitMessage):
    staged: Staged


class StagingSource(DataSource):
    """What Spark knows of it."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> StagingWriter:
        return StagingWriter(self.options["cluster"], self.options["log"], self.options["answer"])


class StagingWriter(DataSourceArrowWriter):
    """Travels to the tasks and to the commit: it holds options, never a connection."""

    def __init__(self, cluster: str, log: str, answer: str) -> None:
        self._cluster = cluster
        self._log = log
        self._answer = answer

    def write(self, iterator: Iterator[Any]) -> _TaskStaged:
        with connect_sync(self._cluster) as cluster:
            return _TaskStaged(cluster.log(self._log).stage(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts = [message.staged for message in messages if isinstance(message, _TaskStaged)]
        whole = reduce(add, parts, Staged(self._log))
        Path(self._answer).write_text(json.dumps(whole.to_json()))
