"""The body of a record batch: from records or Arrow to bytes, and back.

The body is columnar, in Arrow's memory layout, so that both ways are a few copies of whole
buffers (reading: none, unless compressed) and no Python runs per record. docs/batch-format.md
describes the layout. Only clients import this module; servers carry bodies unread.

Invariants: `decode` accepts what `encode` made; of anything else it raises `Corrupt` or
`VersionMismatch` before an Arrow array with bad offsets can be touched.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from loomlog import batch
from loomlog.batch import HEADER_BYTES, Header, aligned
from loomlog.errors import Corrupt, InvalidArgument
from loomlog.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, RECORD_BYTES_MAX
from loomlog.types import Buffer, Entry, Glsn, Llsn, StreamId

Bytes: TypeAlias = bytes | bytearray | memoryview

_BINARY: Final = pa.binary()
_INT32: Final = pa.int32()
_INT64: Final = pa.int64()
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

SCHEMA: Final = pa.schema(
    [
        pa.field("position", _INT64, nullable=False),
        pa.field("stream", _INT32, nullable=False),
        pa.field("llsn", _INT64, nullable=False),
        pa.field("timestamp", _TIMESTAMP, nullable=False),
        pa.field("key", _BINARY),
        pa.field("value", _BINARY, nullable=False),
    ]
)

_CODECS: Final = {"none": batch.CODEC_NONE, "lz4": batch.CODEC_LZ4, "zstd": batch.CODEC_ZSTD}
_ASSIGNED: Final = frozenset({"position", "stream", "llsn"})  # the cluster gives them anew
_WRITTEN: Final = frozenset({"value", "key", "timestamp", "attributes"})
_BYTES_LIKE: Final = (bytes, bytearray, memoryview)
_BYTES_OR_NONE: Final = (*_BYTES_LIKE, type(None))
_ALIGNED_FOR_ARROW: Final = 8  # what its 64-bit numbers need

_PACKED_RATIO_MAX: Final = 0.9  # above this a reader is better off with a body it need not copy

_OFFSET_BYTES: Final = 4
_OFFSETS_OF_ONE: Final = Struct("<ii")
_TIMESTAMP_BYTES: Final = 8


# ---- writing ----------------------------------------------------------------------


class _Timestamps(NamedTuple):
    data: Buffer
    first: int  # the earliest
    last: int  # the latest


def encode(
    values: Sequence[Bytes],
    *,
    timestamps_us: int | Sequence[int],
    keys: Sequence[Bytes | None] | None = None,
    attributes: Sequence[Bytes | None] | None = None,
    producer_id: int = 0,
    sequence: int = 0,
    compression: str = "none",
) -> bytearray:
    """A batch of records; `timestamps_us` is one number for all of them, or one each."""
    count = _require_count(len(values))
    return _assemble(
        count,
        _value_parts(values, count),
        _optional_from_python("key", keys, count),
        _optional_from_python("attributes", attributes, count),
        _timestamps_from_python(timestamps_us, count),
        producer_id=producer_id,
        sequence=sequence,
        compression=compression,
    )


def encode_arrow(
    records: Any,
    *,
    timestamps_us: int | None = None,
    producer_id: int = 0,
    sequence: int = 0,
    compression: str = "none",
) -> bytearray:
    """A batch of the rows of a pyarrow.RecordBatch.

    Columns: `value`, and optionally `key`, `attributes` (all binary or string) and `timestamp`
    (a timestamp of any unit, or int64 microseconds); where that is missing, `timestamps_us` is
    the time of all. `position`, `stream` and `llsn`, as `to_arrow` gives them, are passed over.
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
        _optional_from_arrow("attributes", records),
        _timestamps_from_arrow(records, timestamps_us, count),
        producer_id=producer_id,
        sequence=sequence,
        compression=compression,
    )


def _assemble(
    count: int,
    values: tuple[Buffer, Buffer],
    keys: Any,
    attributes: Any,
    timestamps: _Timestamps,
    *,
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
    if attributes is not None:
        flags |= batch.FLAG_ATTRIBUTES
        parts += [_validity(attributes), *_parts("attributes", attributes)]
    raw_size = sum(aligned(len(part)) for part in parts)
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
        at += aligned(len(part))


def _value_parts(values: Sequence[Bytes], count: int) -> tuple[Buffer, Buffer]:
    """A lone record, whose appender waits for it, does without Arrow: that takes half the time."""
    value = values[0]
    if count == 1 and type(value) is bytes and len(value) <= RECORD_BYTES_MAX:
        return _OFFSETS_OF_ONE.pack(0, len(value)), value
    return _parts("value", _from_python("value", values, count, _BYTES_LIKE))


def _parts(name: str, column: Any) -> tuple[Buffer, Buffer]:
    """The offsets, from 0 on, and the bytes of a BinaryArray, which may be a slice."""
    _, offsets, data = column.buffers()
    start = column.offset * _OFFSET_BYTES
    stop = start + (len(column) + 1) * _OFFSET_BYTES
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
        _INT32, len(offsets) // _OFFSET_BYTES, [None, pa.py_buffer(offsets)]
    )
    shifted = pc.subtract(numbers, pa.scalar(first, _INT32)).buffers()[1]
    return _bytes_of(shifted)[: len(offsets)]


def _validity(column: Any) -> Buffer:
    """One bit per record, set where it is not null; the bits behind the last one are 0."""
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
    codec = _CODECS.get(compression)
    if codec is None:
        raise InvalidArgument(f"no compression {compression!r}; use one of {', '.join(_CODECS)}")
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
        column = pa.array(items, _BINARY)
    except (pa.ArrowException, BufferError, ValueError, TypeError) as problem:
        raise InvalidArgument(f"{name} must be bytes: {_one_line(problem)}") from None
    if isinstance(column, pa.ChunkedArray):  # beyond what offsets of 32 bits can say
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
            one = timestamps_us.to_bytes(_TIMESTAMP_BYTES, "little", signed=True)
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
            f"columns {names}: a log keeps value, key, timestamp and attributes, each once; "
            "drop the others or encode them into value"
        )
    try:
        records.validate(full=True)
    except pa.ArrowException as problem:
        raise InvalidArgument(f"the RecordBatch is not valid: {_one_line(problem)}") from None


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
        return column.cast(_BINARY)
    except pa.ArrowException as problem:
        raise InvalidArgument(f"column {name} as binary: {_one_line(problem)}") from None


def _optional_from_arrow(name: str, records: Any) -> Any:
    if name not in records.schema.names or records.column(name).null_count == len(records):
        return None
    return _from_arrow(name, records)


def _timestamps_from_arrow(records: Any, timestamps_us: int | None, count: int) -> _Timestamps:
    if "timestamp" not in records.schema.names:
        if timestamps_us is None:
            raise InvalidArgument("no column `timestamp` and no timestamps_us; give one of them")
        return _timestamps_from_python(timestamps_us, count)
    column = _as_microseconds(records.column("timestamp"))
    if column.null_count:
        raise InvalidArgument(f"{column.null_count} timestamps are null; fill them in")
    start = column.offset * _TIMESTAMP_BYTES
    data = _bytes_of(column.buffers()[1])[start : start + count * _TIMESTAMP_BYTES]
    bounds = pc.min_max(column).as_py()
    return _Timestamps(data, bounds["min"], bounds["max"])


def _as_microseconds(column: Any) -> Any:
    if column.type == _INT64:
        return column
    if not pa.types.is_timestamp(column.type):
        raise InvalidArgument(f"column timestamp must be a timestamp, not {column.type}; cast it")
    # Arrow keeps UTC under every time zone, so only the unit matters.
    target = pa.timestamp("us", tz=column.type.tz)
    try:
        options = pc.CastOptions(target, allow_time_truncate=True)
        return pc.cast(column, options=options).view(_INT64)
    except pa.ArrowException as problem:
        raise InvalidArgument(f"column timestamp in microseconds: {_one_line(problem)}") from None


def _one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split())


# ---- reading ----------------------------------------------------------------------


class Batch:
    """A decoded batch; it keeps the buffer it was decoded from alive and must see it unchanged.

    Positions, streams and LLSNs are 0 where the servers have not given them yet.
    """

    __slots__ = ("_timestamps", "attributes", "header", "keys", "num_records", "values")

    def __init__(
        self, header: Header, timestamps: Any, values: Any, keys: Any, attributes: Any
    ) -> None:
        self.header = header
        self.num_records = header.count
        self.values = values  # pyarrow.BinaryArray
        self.keys = keys  # the same, or None if no record has one
        self.attributes = attributes  # likewise
        self._timestamps = timestamps  # int64

    def placed(
        self, skip: int, rows: int, *, position: Glsn, stream: StreamId, llsn: Llsn
    ) -> Batch:
        """`rows` records after the first `skip`, as if they stood elsewhere: from these numbers
        on."""
        header = self.header._replace(
            count=rows, first_position=position, stream_id=stream, first_llsn=llsn
        )
        return Batch(
            header,
            self._timestamps.slice(skip, rows),
            self.values.slice(skip, rows),
            None if self.keys is None else self.keys.slice(skip, rows),
            None if self.attributes is None else self.attributes.slice(skip, rows),
        )

    def to_arrow(self, first: int = 0) -> Any:
        """The rows from `first` on as a pyarrow.RecordBatch of SCHEMA."""
        header = self.header
        first = min(first, header.count)
        count = header.count - first
        keys = pa.nulls(count, _BINARY) if self.keys is None else self.keys.slice(first)
        columns = [
            _counted(header.first_position, first, count),
            pa.repeat(pa.scalar(header.stream_id, _INT32), count),
            _counted(header.first_llsn, first, count),
            self._timestamps.slice(first).view(_TIMESTAMP),
            keys,
            self.values.slice(first),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def entries(self, skip: int = 0) -> list[Entry]:
        """The records after the first `skip` as entries."""
        header = self.header
        keys = repeat(None) if self.keys is None else self.keys.slice(skip).to_pylist()
        rows = zip(
            _numbers(header.first_position, skip, header.count),
            repeat(header.stream_id),
            _numbers(header.first_llsn, skip, header.count),
            self._timestamps.slice(skip).to_pylist(),
            keys,
            self.values.slice(skip).to_pylist(),
            strict=False,
        )
        # What Entry._make does, without a Python frame per record.
        return list(map(tuple.__new__, repeat(Entry), rows))

    def entry(self, index: int) -> Entry:
        """The record at `index`, counted from 0."""
        header = self.header
        if not 0 <= index < header.count:
            raise IndexError(f"record {index} of a batch of {header.count}")
        return Entry(
            position=header.first_position + index if header.first_position else 0,
            stream=header.stream_id,
            llsn=header.first_llsn + index if header.first_llsn else 0,
            timestamp_us=self._timestamps[index].as_py(),
            key=None if self.keys is None else self.keys[index].as_py(),
            value=self.values[index].as_py(),
        )


def blank(header: Header) -> Batch:
    """As many records as the header says, of which nothing but places and time is known."""
    timestamps = pa.repeat(pa.scalar(header.max_timestamp_us, _INT64), header.count)
    values = pa.repeat(pa.scalar(b"", _BINARY), header.count)
    return Batch(header, timestamps, values, None, None)


def without_payloads(rows: Any) -> Any:
    """A pyarrow.RecordBatch of SCHEMA with empty values and no keys."""
    values = pa.repeat(pa.scalar(b"", _BINARY), rows.num_rows)
    columns = [*rows.columns[:-2], pa.nulls(rows.num_rows, _BINARY), values]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _counted(first: int, skip: int, count: int) -> Any:
    if first == 0:
        return pa.repeat(pa.scalar(0, _INT64), count)
    return pa.arange(first + skip, first + skip + count)


def _numbers(first: int, skip: int, count: int) -> Iterable[int]:
    return range(first + skip, first + count) if first else repeat(0)


def decode(buffer: Buffer) -> Batch:
    """The batch that `buffer` is, checked to the last offset; no copy unless it is compressed."""
    header = batch.check(buffer)
    body = _Body(_raw_body(header, memoryview(buffer)))
    count = header.count
    timestamps = pa.Array.from_buffers(_INT64, count, [None, body.take(count * _TIMESTAMP_BYTES)])
    values = _take_column(body, count, nullable=False)
    keys = attributes = None
    if header.flags & batch.FLAG_KEYS:
        keys = _take_column(body, count, nullable=True)
    if header.flags & batch.FLAG_ATTRIBUTES:
        attributes = _take_column(body, count, nullable=True)
    body.require_end()
    return Batch(header, timestamps, values, keys, attributes)


class _Body:
    """The parts of an uncompressed body, one after the other."""

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
    offsets = body.take((count + 1) * _OFFSET_BYTES)
    numbers = memoryview(offsets).cast("i")
    if numbers[0] != 0 or numbers[count] < 0:
        raise Corrupt(f"batch body: offsets run from {numbers[0]} to {numbers[count]}")
    data = body.take(numbers[count])
    try:
        column = pa.Array.from_buffers(_BINARY, count, [validity, offsets, data])
        column.validate(full=True)
    except pa.ArrowException as problem:
        raise Corrupt(f"batch body: {_one_line(problem)}") from None
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
        raise Corrupt(f"batch body cannot be decompressed: {_one_line(problem)}") from None
    if raw.size != header.raw_size:
        raise Corrupt(f"batch body decompresses to other than {header.raw_size} bytes")
    return raw


def _decompressed(header: Header, stored: Any) -> Any:
    if header.codec == batch.CODEC_ZSTD:
        return pa.decompress(stored, header.raw_size, codec="zstd")
    # pyarrow's one-shot LZ4 does not tell when the data end early and memory stays unwritten.
    with pa.CompressedInputStream(pa.BufferReader(stored), "lz4") as stream:
        return stream.read_buffer(header.raw_size + 1)
