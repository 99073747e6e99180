"""`write` and `writeStream`: tasks stage their rows, the driver publishes them all at once.

Readers of the log see all rows of a batch or micro-batch or none, and see them once: a micro-batch
that Spark repeats has the number that it had, and the cluster knows whether that was published.
What a failed task or an aborted batch has staged is never published; trimming the log clears it
away.

A writer travels from the planner to the tasks and to the commit: it holds options, never a
connection.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from loomlog.client.blocking import connect_sync
from loomlog.client.publish.stager import Staged
from loomlog.errors import LoomError
from loomlog.spark.write_options import WriteOptions

_QUERY: Final = "sql.streaming.queryId"  # where Spark tells a task to which query it belongs


@dataclass(frozen=True, slots=True)
class TaskStaged(WriterCommitMessage):
    """The rows that a task staged for a writer."""

    writer: str
    staged: Staged


class BatchWriter(DataSourceArrowWriter):
    """`df.write`: one publication."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._writer = options.writer or f"batch-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[Any]) -> TaskStaged:
        return _stage(self._options, self._writer, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _publish(self._options, self._options.sequence, messages)
        self._forget()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with suppress(LoomError):  # Spark is about to tell what was wrong in the first place
            self._forget()

    def _forget(self) -> None:
        """A writer that was made for this batch alone is of no use any more."""
        if self._options.writer is None:
            with connect_sync(self._options.cluster) as cluster:
                cluster.log(self._options.log).writer(self._writer).forget()


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: a publication per micro-batch; the query, by its checkpoint, is the
    writer."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> TaskStaged:
        return _stage(self._options, _query(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _publish(self._options, batchId + 1, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: staged rows that are not published stay invisible."""


def _stage(options: WriteOptions, writer: str, batches: Iterator[Any]) -> TaskStaged:
    """Stage rows in a task. The writer is created first, so that no trim removes them."""
    with connect_sync(options.cluster) as cluster:
        log = cluster.log(options.log)
        log.writer(writer)
        return TaskStaged(writer, log.stage(batches))


def _publish(
    options: WriteOptions, sequence: int, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Publish on the driver, when all tasks are done."""
    staged = [message for message in messages if isinstance(message, TaskStaged)]
    if not staged:
        return  # Spark had no task for it: there was nothing to write
    with connect_sync(options.cluster) as cluster:
        writer = cluster.log(options.log).writer(staged[0].writer)
        writer.publish(sequence, reduce(add, (message.staged for message in staged)))


def _query() -> str:
    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY) if context is not None else None
    if not query:
        raise LoomError(f"Spark did not say which query this is (local property {_QUERY})")
    return query
