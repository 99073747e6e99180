"""Encodes records or Arrow into a batch."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from loomlog import batch
from loomlog.batch import HEADER_BYTES, aligned
from loomlog.columns.headers import decode_headers
from loomlog.columns.layout import (
    BINARY,
    CODECS,
    INT32,
    INT64,
    OFFSET_BYTES,
    TIMESTAMP_BYTES,
    one_line,
)
from loomlog.errors import Corrupt, InvalidArgument
from loomlog.limits import ALIGNMENT, BATCH_BYTES_MAX, BATCH_RECORDS_MAX, RECORD_BYTES_MAX
from loomlog.types import Buffer

Bytes: TypeAlias = bytes | bytearray | memoryview

Special: TypeAlias = tuple[bytes | None, int | None]
"""The encoded headers of a record and its time, if it has some."""

_ASSIGNED: Final = frozenset({"position", "stream", "llsn"})  # the cluster assigns new ones
_WRITTEN: Final = frozenset({"value", "key", "timestamp", "headers"})
_BYTES_LIKE: Final = (bytes, bytearray, memoryview)
_BYTES_OR_NONE: Final = (*_BYTES_LIKE, type(None))
_PACKED_RATIO_MAX: Final = 0.9  # above this, compression does not pay for the copy
_OFFSETS_OF_ONE: Final = Struct("<ii")


class _Timestamps(NamedTuple):
    data: Buffer
    first: int  # the earliest
    last: int  # the latest


def encode(
    values: Sequence[Bytes],
    *,
    timestamps_us: int | Sequence[int],
    keys: Sequence[Bytes | None] | None = None,
    headers: Sequence[Bytes | None] | None = None,
    producer_id: int = 0,
    sequence: int = 0,
    compression: str = "none",
) -> bytearray:
    """Return a batch of records; `timestamps_us` is one number for all, or one per record, and
    `headers` are encoded."""
    count = _require_count(len(values))
    return _assemble(
        count,
        _value_parts(values, count),
        _optional_from_python("key", keys, count),
        _timestamps_from_python(timestamps_us, count),
        headers=_optional_from_python("headers", headers, count),
        producer_id=producer_id,
        sequence=sequence,
        compression=compression,
    )


def encode_gathered(
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None,
    special: Mapping[int, Special],
    timestamp_us: int,
    **stamps: Any,
) -> bytearray:
    """Return a batch of records of which few have headers or a time of their own: `special` is by
    index, and `timestamp_us` the time of all others."""
    headers: list[bytes | None] | None = None
    timestamps_us: int | list[int] = timestamp_us
    if special:
        each = [special.get(index, (None, None)) for index in range(len(values))]
        headers = [data for data, _ in each]
        timestamps_us = [timestamp_us if time is None else time for _, time in each]
    return encode(values, keys=keys, headers=headers, timestamps_us=timestamps_us, **stamps)


def encode_arrow(
    records: Any,
    *,
    timestamps_us: int | None = None,
    producer_id: int = 0,
    sequence: int = 0,
    compression: str = "none",
) -> bytearray:
    """Return a batch of the rows of a pyarrow.RecordBatch.

    Columns: `value`, and optionally `key` (both binary or string), `timestamp` (a timestamp of any
    unit, or int64 microseconds; where that is missing, `timestamps_us` is the time of all), and
    `headers`, encoded as `to_arrow` gives them.
    `position`, `stream` and `llsn`, as `to_arrow` gives them, are passed over.
    """
    _require_columns(records)
    count = _require_count(records.num_rows)
    values = _from_arrow("value", records)
    if values.null_count:
        raise InvalidArgument(f"{values.null_count} values are null; filter them out or fill them")
    return _assemble(
        count,
        _parts("value", values),
        _optional_from_arrow("key", records),
        _timestamps_from_arrow(records, timestamps_us, count),
        headers=_headers_from_arrow(records),
        producer_id=producer_id,
        sequence=sequence,
        compression=compression,
    )


def _assemble(
    count: int,
    values: tuple[Buffer, Buffer],
    keys: Any,
    timestamps: _Timestamps,
    *,
    headers: Any = None,
    producer_id: int,
    sequence: int,
    compression: str,
) -> bytearray:
    codec = _require_codec(compression)
    parts = [timestamps.data, *values]
    flags = 0
    if keys is not None:
        flags |= batch.FLAG_KEYS
        parts += [_validity(keys), *_parts("key", keys)]
    if headers is not None:
        flags |= batch.FLAG_HEADERS
        parts += [_validity(headers), *_parts("headers", headers)]
    raw_size = sum(map(aligned, map(len, parts)))
    buffer = batch.allocate(raw_size)
    _lay_out(parts, buffer)
    body_size = raw_size
    if codec != batch.CODEC_NONE:
        packed = pa.compress(memoryview(buffer)[HEADER_BYTES:], codec=compression)
        if packed.size <= raw_size * _PACKED_RATIO_MAX:
            body_size = packed.size
            buffer = batch.allocate(body_size)
            _lay_out([_bytes_of(packed)], buffer)
        else:
            codec = batch.CODEC_NONE
    batch.write_header(
        buffer,
        body_size=body_size,
        codec=codec,
        flags=flags,
        count=count,
        raw_size=raw_size,
        producer_id=producer_id,
        sequence=sequence,
        min_timestamp_us=timestamps.first,
        max_timestamp_us=timestamps.last,
    )
    return buffer


def _lay_out(parts: Iterable[Buffer], buffer: bytearray) -> None:
    target = memoryview(buffer)
    at = HEADER_BYTES
    for part in parts:
        target[at : at + len(part)] = part
        at += len(part) + -len(part) % ALIGNMENT


def _value_parts(values: Sequence[Bytes], count: int) -> tuple[Buffer, Buffer]:
    """Return offsets and bytes; a single record is encoded without Arrow, in half the time."""
    value = values[0]
    if count == 1 and type(value) is bytes and len(value) <= RECORD_BYTES_MAX:
        return _OFFSETS_OF_ONE.pack(0, len(value)), value
    return _parts("value", _from_python("value", values, count, _BYTES_LIKE))


def _parts(name: str, column: Any) -> tuple[Buffer, Buffer]:
    """Return the offsets, from 0 on, and the bytes of a BinaryArray, which may be a slice."""
    _, offsets, data = column.buffers()
    start = column.offset * OFFSET_BYTES
    stop = start + (len(column) + 1) * OFFSET_BYTES
    own_offsets = _bytes_of(offsets)[start:stop]
    numbers = own_offsets.cast("i")
    first, last = numbers[0], numbers[-1]
    if last - first > RECORD_BYTES_MAX:  # else no record can be above it
        _require_record_sizes(name, column)
    if first:
        own_offsets = _rebased(own_offsets, first)
    return own_offsets, _bytes_of(data)[first:last]


def _rebased(offsets: memoryview, first: int) -> memoryview:
    numbers = pa.Array.from_buffers(
        INT32, len(offsets) // OFFSET_BYTES, [None, pa.py_buffer(offsets)]
    )
    shifted = pc.subtract(numbers, pa.scalar(first, INT32)).buffers()[1]
    return _bytes_of(shifted)[: len(offsets)]


def _validity(column: Any) -> Buffer:
    """Return one bit per record, set where it is not null; padding bits are 0."""
    size = -(-len(column) // 8)
    ones: int = (1 << len(column)) - 1
    bitmap = column.buffers()[0]
    if bitmap is None:
        return ones.to_bytes(size, "little")
    # A slice may start within a byte; one big integer shifts all bits at once.
    start = column.offset // 8
    own_bytes = _bytes_of(bitmap)[start : start + size + 1]
    bits: int = int.from_bytes(own_bytes, "little") >> column.offset % 8
    return (bits & ones).to_bytes(size, "little")


def _bytes_of(buffer: Any) -> memoryview:
    return memoryview(buffer if buffer is not None else b"").cast("B")


# ---- what may be written ----------------------------------------------------------


def _require_count(count: int) -> int:
    if count == 0:
        raise InvalidArgument("a batch needs at least one record; append nothing instead")
    if count > BATCH_RECORDS_MAX:
        raise InvalidArgument(
            f"{count} records are above the limit of {BATCH_RECORDS_MAX} a batch; "
            "append fewer at once"
        )
    return count


def _require_codec(compression: str) -> int:
    codec = CODECS.get(compression)
    if codec is None:
        raise InvalidArgument(f"no compression {compression!r}; use one of {', '.join(CODECS)}")
    return codec


def _require_same_count(name: str, given: int, count: int) -> None:
    if given != count:
        raise InvalidArgument(f"{name}: {given} given for {count} values; give one for each")


def _require_record_sizes(name: str, column: Any) -> None:
    sizes = pc.binary_length(column)
    largest = pc.max(sizes).as_py()
    if largest > RECORD_BYTES_MAX:
        raise InvalidArgument(
            f"{name} {pc.index(sizes, largest).as_py()} has {largest} bytes, above the limit of "
            f"{RECORD_BYTES_MAX}; store it elsewhere and append a reference"
        )


def _from_python(name: str, items: Sequence[Any], count: int, kinds: tuple[type, ...]) -> Any:
    _require_same_count(name, len(items), count)
    for kind in set(map(type, items)):
        if not issubclass(kind, kinds):
            raise InvalidArgument(f"{name} must be bytes, not {kind.__name__}; encode it first")
    try:
        column = pa.array(items, BINARY)
    except (pa.ArrowException, BufferError, ValueError, TypeError) as problem:
        raise InvalidArgument(f"{name} must be bytes: {one_line(problem)}") from None
    if isinstance(column, pa.ChunkedArray):  # too large for 32-bit offsets
        raise InvalidArgument(
            f"{name}: {column.nbytes} bytes are above the limit of {BATCH_BYTES_MAX} a batch; "
            "append fewer records at once"
        )
    return column


def _optional_from_python(name: str, items: Sequence[Bytes | None] | None, count: int) -> Any:
    if items is None:
        return None
    column = _from_python(name, items, count, _BYTES_OR_NONE)
    return None if column.null_count == count else column


def _timestamps_from_python(timestamps_us: int | Sequence[int], count: int) -> _Timestamps:
    try:
        if isinstance(timestamps_us, int):
            one = timestamps_us.to_bytes(TIMESTAMP_BYTES, "little", signed=True)
            return _Timestamps(one * count, timestamps_us, timestamps_us)
        each = array("q", timestamps_us)
    except (OverflowError, TypeError) as problem:
        raise InvalidArgument(
            f"timestamps_us must be microseconds since 1970 as integers of 64 bits: {problem}"
        ) from None
    _require_same_count("timestamps_us", len(each), count)
    return _Timestamps(memoryview(each).cast("B"), min(each), max(each))


def _require_columns(records: Any) -> None:
    if not isinstance(records, pa.RecordBatch):
        raise InvalidArgument(f"a pyarrow.RecordBatch is needed, not {type(records).__name__}")
    names = records.schema.names
    if "value" not in names:
        raise InvalidArgument(f"no column `value` in {names}; rename the one that holds the data")
    unknown = sorted(set(names) - _WRITTEN - _ASSIGNED)
    if unknown or len(set(names)) != len(names):
        raise InvalidArgument(
            f"columns {names}: a log keeps value, key, timestamp and headers, each once; "
            "drop the others or encode them into value"
        )
    try:
        records.validate(full=True)
    except pa.ArrowException as problem:
        raise InvalidArgument(f"the RecordBatch is not valid: {one_line(problem)}") from None


def _is_bytes_like(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
    )


def _from_arrow(name: str, records: Any) -> Any:
    column = records.column(name)
    if not _is_bytes_like(column.type):
        raise InvalidArgument(f"column {name} must be binary or string, not {column.type}; cast it")
    try:
        return column.cast(BINARY)
    except pa.ArrowException as problem:
        raise InvalidArgument(f"column {name} as binary: {one_line(problem)}") from None


def _optional_from_arrow(name: str, records: Any) -> Any:
    if name not in records.schema.names or records.column(name).null_count == len(records):
        return None
    return _from_arrow(name, records)


def _headers_from_arrow(records: Any) -> Any:
    column = _optional_from_arrow("headers", records)
    try:
        for data in () if column is None else column.drop_null().to_pylist():
            decode_headers(data)
    except Corrupt as problem:
        raise InvalidArgument(f"column headers: {problem}; use encode_headers") from None
    return column


def _timestamps_from_arrow(records: Any, timestamps_us: int | None, count: int) -> _Timestamps:
    if "timestamp" not in records.schema.names:
        if timestamps_us is None:
            raise InvalidArgument("no column `timestamp` and no timestamps_us; give one of them")
        return _timestamps_from_python(timestamps_us, count)
    column = _as_microseconds(records.column("timestamp"))
    if column.null_count:
        raise InvalidArgument(f"{column.null_count} timestamps are null; fill them in")
    start = column.offset * TIMESTAMP_BYTES
    data = _bytes_of(column.buffers()[1])[start : start + count * TIMESTAMP_BYTES]
    bounds = pc.min_max(column).as_py()
    return _Timestamps(data, bounds["min"], bounds["max"])


def _as_microseconds(column: Any) -> Any:
    if column.type == INT64:
        return column
    if not pa.types.is_timestamp(column.type):
        raise InvalidArgument(f"column timestamp must be a timestamp, not {column.type}; cast it")
    # Arrow keeps UTC under every time zone, so only the unit matters.
    target = pa.timestamp("us", tz=column.type.tz)
    try:
        options = pc.CastOptions(target, allow_time_truncate=True)
        return pc.cast(column, options=options).view(INT64)
    except pa.ArrowException as problem:
        raise InvalidArgument(f"column timestamp in microseconds: {one_line(problem)}") from None
