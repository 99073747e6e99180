"""Decodes a batch into records and Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa

from loomlog import batch
from loomlog.batch import HEADER_BYTES, Header, aligned
from loomlog.columns.headers import decode_headers
from loomlog.columns.layout import (
    BINARY,
    INT32,
    INT64,
    OFFSET_BYTES,
    SCHEMA,
    TIMESTAMP,
    TIMESTAMP_BYTES,
    one_line,
)
from loomlog.errors import Corrupt
from loomlog.types import NO_HEADERS, Buffer, Entry, Glsn, Llsn, StreamId

_ALIGNED_FOR_ARROW: Final = 8  # what its 64-bit numbers need


class Batch:
    """A decoded batch. It refers to its buffer, which must not change.

    Positions, streams and LLSNs are 0 until servers have assigned them.
    """

    __slots__ = ("header", "headers", "keys", "num_records", "timestamps", "values")

    def __init__(
        self, header: Header, timestamps: Any, values: Any, keys: Any, headers: Any
    ) -> None:
        self.header = header
        self.num_records = header.count
        self.values = values  # pyarrow.BinaryArray
        self.keys = keys  # the same, or None if no record has one
        self.headers = headers  # the same
        self.timestamps = timestamps  # pyarrow.Int64Array

    def placed(
        self, skip: int, rows: int, *, position: Glsn, stream: StreamId, llsn: Llsn
    ) -> Batch:
        """Return `rows` records after the first `skip`, renumbered from the given numbers."""
        header = self.header._replace(
            count=rows, first_position=position, stream_id=stream, first_llsn=llsn
        )
        return Batch(
            header,
            self.timestamps.slice(skip, rows),
            self.values.slice(skip, rows),
            None if self.keys is None else self.keys.slice(skip, rows),
            None if self.headers is None else self.headers.slice(skip, rows),
        )

    def to_arrow(self, first: int = 0) -> Any:
        """Return the rows from `first` on as a pyarrow.RecordBatch of SCHEMA."""
        header = self.header
        first = min(first, header.count)
        count = header.count - first
        keys = pa.nulls(count, BINARY) if self.keys is None else self.keys.slice(first)
        columns = [
            _counted(header.first_position, first, count),
            pa.repeat(pa.scalar(header.stream_id, INT32), count),
            _counted(header.first_llsn, first, count),
            self.timestamps.slice(first).view(TIMESTAMP),
            keys,
            self.values.slice(first),
            pa.nulls(count, BINARY) if self.headers is None else self.headers.slice(first),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def positions(self, skip: int, rows: int) -> range:
        """Return the positions of `rows` records after the first `skip`."""
        first = self.header.first_position + skip
        return range(first, first + rows)

    def chosen(self, indices: Any) -> Iterator[Entry]:
        """Return the records at these indices, a numpy array, as entries. They have positions."""
        header, keys, headers = self.header, self.keys, self.headers
        positions = (indices + header.first_position).tolist()
        has_one_time = header.min_timestamp_us == header.max_timestamp_us
        return entries_of(
            positions,
            repeat(header.stream_id),
            positions
            if header.first_llsn == header.first_position
            else (indices + header.first_llsn).tolist(),
            repeat(header.min_timestamp_us)
            if has_one_time
            else int64_numbers(self.timestamps)[indices].tolist(),
            repeat(None) if keys is None else items(keys, indices),
            items(self.values, indices),
            repeat(NO_HEADERS)
            if headers is None
            else headers_of(headers.take(index_column(indices))),
        )

    def entries(self, skip: int = 0, rows: int | None = None) -> Iterator[Entry]:
        """Return `rows` records (by default all) after the first `skip` as entries."""
        header, keys, headers = self.header, self.keys, self.headers
        end = header.count if rows is None else skip + rows
        positions = _numbers(header.first_position, skip, end)
        has_one_time = header.min_timestamp_us == header.max_timestamp_us
        return entries_of(
            positions,
            repeat(header.stream_id),
            positions
            if header.first_llsn == header.first_position
            else _numbers(header.first_llsn, skip, end),
            repeat(header.min_timestamp_us)
            if has_one_time
            else self.timestamps.slice(skip, end - skip).to_pylist(),
            repeat(None) if keys is None else keys.slice(skip, end - skip).to_pylist(),
            self.values.slice(skip, end - skip).to_pylist(),
            repeat(NO_HEADERS) if headers is None else headers_of(headers.slice(skip, end - skip)),
        )

    def entry(self, index: int) -> Entry:
        """Return the record at `index`, counted from 0."""
        header = self.header
        if not 0 <= index < header.count:
            raise IndexError(f"record {index} of a batch of {header.count}")
        return Entry(
            position=header.first_position + index if header.first_position else 0,
            stream=header.stream_id,
            llsn=header.first_llsn + index if header.first_llsn else 0,
            timestamp_us=self.timestamps[index].as_py(),
            key=None if self.keys is None else self.keys[index].as_py(),
            value=self.values[index].as_py(),
            headers=NO_HEADERS
            if self.headers is None
            else next(headers_of(self.headers.slice(index, 1))),
        )


def entries_of(*fields: Iterable[Any]) -> Iterator[Entry]:
    """Return entries with these fields, created one by one."""
    # What Entry._make does, without a Python frame per record. No list: entries that live only
    # until the next one use the same memory, and the garbage collector has less to do.
    return map(tuple.__new__, repeat(Entry), zip(*fields, strict=False))


# Where pandas is installed, `pa.array` and `to_numpy` import it, which takes half a second. These
# two do not.


def int64_numbers(column: Any) -> Any:
    """Return a column of 64-bit numbers without nulls as a numpy array, without a copy."""
    return np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column)]


def index_column(indices: Any) -> Any:
    """Return a numpy array of indices as Arrow, for `take`."""
    return pa.Array.from_buffers(INT64, len(indices), [None, pa.py_buffer(indices)])


def items(column: Any, indices: Any) -> list[bytes | None]:
    """Return the items of a column at these indices. Those of one size need no call of Arrow,
    which costs as much as a hundred items."""
    if not column.null_count:
        _, offset_buffer, data = column.buffers()
        count, start = len(column), column.offset * OFFSET_BYTES
        offsets = np.frombuffer(offset_buffer, np.int32, count + 1, start)
        first, size = int(offsets[0]), int(offsets[1] - offsets[0])
        if size and (offsets[1:] - offsets[:-1] == size).all():
            items = np.ndarray((count,), f"V{size}", data, first)
            return items[indices].tolist()  # type: ignore[no-any-return]
    return column.take(index_column(indices)).to_pylist()  # type: ignore[no-any-return]


def headers_of(column: Any) -> Iterator[Mapping[str, bytes]]:
    """Return the headers of each record of a column."""
    return (NO_HEADERS if data is None else decode_headers(data) for data in column.to_pylist())


def without_payloads(rows: Any) -> Any:
    """Return the rows with empty values and no keys."""
    values = pa.repeat(pa.scalar(b"", BINARY), rows.num_rows)
    nothing = pa.nulls(rows.num_rows, BINARY)
    columns = [*rows.columns[:-3], nothing, values, nothing]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _counted(first: int, skip: int, count: int) -> Any:
    if first == 0:
        return pa.repeat(pa.scalar(0, INT64), count)
    return pa.arange(first + skip, first + skip + count)


def _numbers(first: int, skip: int, end: int) -> Iterable[int]:
    return list(range(first + skip, first + end)) if first else repeat(0)


def decode(buffer: Buffer, header: Header | None = None) -> Batch:
    """Decode and verify the batch in `buffer`, without a copy unless it is compressed; `header` is
    its header, if the caller has read it."""
    header = batch.check(buffer, header)
    body = _Body(_raw_body(header, memoryview(buffer)))
    count = header.count
    timestamps = pa.Array.from_buffers(INT64, count, [None, body.take(count * TIMESTAMP_BYTES)])
    values = _take_column(body, count, nullable=False)
    keys = headers = None
    if header.flags & batch.FLAG_KEYS:
        keys = _take_column(body, count, nullable=True)
    if header.flags & batch.FLAG_HEADERS:
        headers = _take_column(body, count, nullable=True)
    body.require_end()
    return Batch(header, timestamps, values, keys, headers)


class _Body:
    """Reads the parts of an uncompressed body in order."""

    __slots__ = ("_at", "_buffer")

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self._at = 0

    def take(self, size: int) -> Any:
        start = self._at
        self._at = start + aligned(size)
        if self._at > self._buffer.size:
            raise Corrupt(f"batch body of {self._buffer.size} bytes: a part ends at {self._at}")
        return self._buffer.slice(start, size)

    def require_end(self) -> None:
        if self._at != self._buffer.size:
            raise Corrupt(f"batch body of {self._buffer.size} bytes: its parts end at {self._at}")


def _take_column(body: _Body, count: int, *, nullable: bool) -> Any:
    validity = body.take(-(-count // 8)) if nullable else None
    offsets = body.take((count + 1) * OFFSET_BYTES)
    numbers = memoryview(offsets).cast("i")
    if numbers[0] != 0 or numbers[count] < 0:
        raise Corrupt(f"batch body: offsets run from {numbers[0]} to {numbers[count]}")
    data = body.take(numbers[count])
    try:
        column = pa.Array.from_buffers(BINARY, count, [validity, offsets, data])
        column.validate(full=True)
    except pa.ArrowException as problem:
        raise Corrupt(f"batch body: {one_line(problem)}") from None
    return column


def _raw_body(header: Header, view: memoryview) -> Any:
    stored = pa.py_buffer(view[HEADER_BYTES : HEADER_BYTES + header.body_size])
    if header.codec == batch.CODEC_NONE:
        if stored.address % _ALIGNED_FOR_ARROW:
            return pa.py_buffer(stored.to_pybytes())
        return stored
    try:
        raw = _decompressed(header, stored)
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise Corrupt(f"batch body cannot be decompressed: {one_line(problem)}") from None
    if raw.size != header.raw_size:
        raise Corrupt(f"batch body decompresses to other than {header.raw_size} bytes")
    return raw


def _decompressed(header: Header, stored: Any) -> Any:
    if header.codec == batch.CODEC_ZSTD:
        return pa.decompress(stored, header.raw_size, codec="zstd")
    # pyarrow's one-shot LZ4 does not report data that ends early; memory would stay unwritten.
    with pa.CompressedInputStream(pa.BufferReader(stored), "lz4") as stream:
        return stream.read_buffer(header.raw_size + 1)
