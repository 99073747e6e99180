"""Tasks in Python workers of Spark: read a range of one stream from its nodes, or a range of
positions from the log or its archive, as Arrow.

Batches of the log are joined or split to suit Spark; no Python runs per record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from loomlog import limits
from loomlog.client.blocking import BlockingCluster, BlockingLog, connect_sync
from loomlog.columns import SCHEMA, decode_headers
from loomlog.errors import NotFound, Trimmed
from loomlog.spark.options import ReadOptions
from loomlog.spark.ranges import PositionRange, StreamRange, TaskRange, lost
from loomlog.types import Glsn, Llsn

ROWS_MIN: Final = 16 * 1024  # batches are joined up to this size: each has a cost in Spark
ROWS_MAX: Final = 64 * 1024
BYTES_MAX: Final = 32 * limits.MIB  # of joined batches; with large values rows are few

_STREAM: Final = SCHEMA.get_field_index("stream")
_LLSN: Final = SCHEMA.get_field_index("llsn")


def connect(options: ReadOptions) -> BlockingCluster:
    """Connect for one task or one plan, with the timeout of the options."""
    timeout_s = min(options.read_timeout_s, limits.REQUEST_TIMEOUT_S)
    return connect_sync(
        options.cluster, request_timeout_s=timeout_s, tls=options.tls, token_file=options.token_file
    )


def read_range(options: ReadOptions, wanted: TaskRange, schema: Any) -> Iterator[Any]:
    """Yield the rows of a range as Arrow batches of `schema`."""
    with connect(options) as cluster:
        log = cluster.log(wanted.log)
        if isinstance(wanted, PositionRange):
            batches = _by_position(log, options, wanted)
        else:
            batches = _streamed(log, options, wanted)
        for batch in sized(_in_time(batches, options)):
            columns = batch.select([n for n in schema.names if n != "log"]).columns
            if schema.names[0] == "log":
                columns.insert(0, pa.repeat(pa.scalar(log.name), batch.num_rows))
            if options.include_headers:
                columns[-1] = _as_maps(columns[-1], schema.field("headers").type)
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _as_maps(headers: Any, kind: Any) -> Any:
    """Return a column of encoded headers as one of maps; a record without headers has null."""
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), kind)
    maps = [data and list(decode_headers(data).items()) for data in headers.to_pylist()]
    return pa.array(maps, kind)


def _archived(log: BlockingLog, options: ReadOptions, wanted: PositionRange) -> Iterator[Any]:
    rows = log.subscribe_arrow(wanted.first, wanted.last, timeout_s=options.read_timeout_s)
    for batch in rows:
        if wanted.streams is not None:
            streams = pa.array(wanted.streams, SCHEMA.field("stream").type)
            batch = batch.filter(pc.is_in(batch.column(_STREAM), streams))
        yield batch


def _by_position(log: BlockingLog, options: ReadOptions, wanted: PositionRange) -> Iterator[Any]:
    """Read by position; entries that are trimmed meanwhile count as data loss."""
    position = wanted.first
    while position <= wanted.last:
        try:
            for batch in _archived(log, options, replace(wanted, first=position)):
                if batch.num_rows:
                    position = batch.column(0)[-1].as_py() + 1
                yield batch
            return
        except Trimmed:
            head = log.head()
            if head <= position:
                raise  # the metadata repository does not know of this trim
            if options.fail_on_data_loss:
                raise lost(log.name, position, min(wanted.last, head - 1)) from None
            position = head


def _streamed(log: BlockingLog, options: ReadOptions, wanted: StreamRange) -> Iterator[Any]:
    next_llsn = wanted.first_llsn
    position = wanted.first
    while next_llsn <= wanted.last_llsn:
        entries = log.subscribe_stream_arrow(
            wanted.stream, next_llsn, wanted.last_llsn, timeout_s=options.read_timeout_s
        )
        try:
            for batch in entries:
                next_llsn = batch.column(_LLSN)[-1].as_py() + 1
                position = batch.column(0)[-1].as_py() + 1
                yield batch
            return  # fewer rows than LLSNs, because a transaction failed
        except (Trimmed, NotFound):  # a stream of an ended segment is removed with its last entry
            found, info = next_llsn, log.archive()
            is_whole = info is not None and info.first <= position and info.through >= wanted.last
            for batch in _meanwhile_archived(log, options, wanted, next_llsn, position):
                next_llsn = batch.column(_LLSN)[-1].as_py() + 1
                position = batch.column(0)[-1].as_py() + 1
                yield batch
            if is_whole:
                return
            if next_llsn > found:
                continue
            head = log.head()
            kept = log.locate(head).get(wanted.stream, wanted.last_llsn + 1)
            if kept <= next_llsn:
                raise  # the metadata repository does not know of this trim
            if options.fail_on_data_loss:
                raise lost(log.name, position, min(wanted.last, head - 1)) from None
            next_llsn = kept


def _meanwhile_archived(
    log: BlockingLog, options: ReadOptions, wanted: StreamRange, next_llsn: Llsn, position: Glsn
) -> Iterator[Any]:
    """Return the part of a stream's range that was trimmed after planning and is in the archive; an
    empty range if it is not."""
    info = log.archive()
    if info is None or info.first > position:
        return
    rest = PositionRange(position, wanted.last, frozenset({wanted.stream}))
    try:
        for batch in _archived(log, options, rest):
            llsn = batch.column(_LLSN)
            batch = batch.filter(
                pc.and_(pc.greater_equal(llsn, next_llsn), pc.less_equal(llsn, wanted.last_llsn))
            )
            if not batch.num_rows:
                continue
            yield batch
            if batch.column(_LLSN)[-1].as_py() >= wanted.last_llsn:
                return
    except Trimmed:
        return


def _in_time(batches: Iterable[Any], options: ReadOptions) -> Iterator[Any]:
    """Keep only rows within the wanted times."""
    for batch in batches:
        time = batch.column(SCHEMA.get_field_index("timestamp"))
        if options.from_time is not None:
            begin = pa.scalar(options.from_time, time.type)
            batch = batch.filter(pc.greater_equal(time, begin))
            time = batch.column(SCHEMA.get_field_index("timestamp"))
        if options.to_time is not None:
            batch = batch.filter(pc.less(time, pa.scalar(options.to_time, time.type)))
        if batch.num_rows:
            yield batch


def sized(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows in batches of ROWS_MIN to ROWS_MAX, fewer if rows are large or at the end."""
    waiting: list[Any] = []
    rows = size = 0
    for batch in batches:
        if waiting and (rows + batch.num_rows > ROWS_MAX or size + batch.nbytes > BYTES_MAX):
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
        if batch.num_rows > ROWS_MAX:
            yield from (batch.slice(at, ROWS_MAX) for at in range(0, batch.num_rows, ROWS_MAX))
            continue
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROWS_MIN:
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[Any]) -> Any:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
