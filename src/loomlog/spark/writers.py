"""`write` and `writeStream`: tasks stage their rows, the driver publishes them all at once.

Readers of the log see all rows of a batch or micro-batch or none, and see them once: a repeated
micro-batch has the same number, and the cluster knows whether that was published. The staged rows
of a failed task or an aborted batch are never published; trimming the log removes them.

A writer is pickled for the tasks and the commit, so it has options but no connection.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
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
from pyspark.sql.types import BinaryType, DataType, StringType, StructType, TimestampType

from loomlog.client.blocking import BlockingCluster, connect_sync
from loomlog.client.publish.stager import Staged
from loomlog.errors import InvalidArgument, LoomError
from loomlog.spark.options import named, number, required

_QUERY: Final = "sql.streaming.queryId"  # the property with the query of a task
_OPTIONS: Final = ("cluster", "log", "writer", "sequence", "tls", "tokenFile")
_OF_SPARK: Final = ("checkpointlocation",)  # options of Spark, which it passes on

_BYTES: Final = (BinaryType, StringType)
_COLUMNS: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "timestamp": (TimestampType,),
}
_GIVEN_BY_LOG: Final = frozenset({"position", "stream", "llsn"})


# ---- options and columns, checked: whatever is wrong is one error that names it


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write."""

    cluster: str
    log: str
    writer: str | None  # of a batch; None if it is written only once
    sequence: int
    tls: str | None  # as of `connect`
    token_file: str


def write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Check the options of a batch or of a streaming query."""
    ours = {name: value for name, value in given.items() if name.lower() not in _OF_SPARK}
    options = named(ours, _OPTIONS, "sink")
    writer, sequence = options.get("writer"), options.get("sequence")
    if streaming and (writer or sequence):
        raise InvalidArgument(
            "writer and sequence are for a batch: a streaming query has its checkpoint"
        )
    if (writer is None) != (sequence is None):
        raise InvalidArgument("writer and sequence go together: give both or none")
    return WriteOptions(
        cluster=required(options, "cluster", "the vmr's address, e.g. 127.0.0.1:7400"),
        log=required(options, "log", "the name of the log to write to"),
        writer=writer,
        sequence=1 if sequence is None else number("sequence", sequence, "a number from 1 on"),
        tls=options.get("tls"),
        token_file=options.get("tokenFile", ""),
    )


def _connect(options: WriteOptions) -> BlockingCluster:
    return connect_sync(options.cluster, tls=options.tls, token_file=options.token_file)


def require_writable(schema: StructType, overwrite: bool) -> None:
    """Raise InvalidArgument if the rows cannot go into a log."""
    if overwrite:
        raise InvalidArgument(
            "a log is only ever appended to: use mode('append'), or outputMode('append') or "
            "('update') for a stream"
        )
    for field in schema.fields:
        kinds = _COLUMNS.get(field.name)
        if field.name in _GIVEN_BY_LOG:
            raise InvalidArgument(
                f"the column {field.name} is given by the log that is written to: drop it, e.g. "
                "select('timestamp', 'key', 'value')"
            )
        if kinds is None:
            raise InvalidArgument(
                f"a log has no column {field.name}: it keeps value, key and timestamp; drop it or "
                "encode it into value, e.g. with to_json(struct(…))"
            )
        if not isinstance(field.dataType, kinds):
            wanted = " or ".join(kind.typeName() for kind in kinds)
            raise InvalidArgument(
                f"the column {field.name} must be {wanted}, not "
                f"{field.dataType.simpleString()}: cast it"
            )
    if "value" not in schema.names:
        raise InvalidArgument(
            f"no column value in {schema.simpleString()}: rename the one that holds the data"
        )


# ---- tasks and driver


@dataclass(frozen=True, slots=True)
class TaskStaged(WriterCommitMessage):
    """The rows that a task staged."""

    staged: Staged
    writer: str = ""  # the name of the writer that publishes them


def all_staged(messages: Sequence[WriterCommitMessage | None], log: str) -> Staged:
    """Return the rows of all tasks together."""
    parts = (message.staged for message in messages if isinstance(message, TaskStaged))
    return reduce(add, parts, Staged(log))


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
        with suppress(LoomError):  # Spark reports the original error
            self._forget()

    def _forget(self) -> None:
        """Forget a writer that was made for this batch alone."""
        if self._options.writer is None:
            with _connect(self._options) as cluster:
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
    with _connect(options) as cluster:
        log = cluster.log(options.log)
        log.writer(writer)
        return TaskStaged(log.stage(batches), writer)


def _publish(
    options: WriteOptions, sequence: int, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Publish on the driver, when all tasks are done."""
    writers = [message.writer for message in messages if isinstance(message, TaskStaged)]
    if not writers:
        return  # Spark ran no task, because there were no rows
    with _connect(options) as cluster:
        writer = cluster.log(options.log).writer(writers[0])
        writer.publish(sequence, all_staged(messages, options.log))


def _query() -> str:
    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY) if context is not None else None
    if not query:
        raise LoomError(f"Spark did not say which query this is (local property {_QUERY})")
    return query
