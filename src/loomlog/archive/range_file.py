"""Writes, reads and checks Parquet files with the rows of a range of positions, in order.

A position without a row is a gap of the log. The footer says which positions each row group has, so
finding one row takes reading one row group. The footer and every page have checksums, which are
verified on every read; `check` verifies the whole file.

The checksum of rows does not depend on how they are split into batches or files: it consists of the
CRC32C of each column's bytes, and of the lengths in each binary column.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from crc32c import crc32c

from loomlog import limits
from loomlog.archive.location import Location
from loomlog.archive.manifest import RangeFile
from loomlog.columns import SCHEMA
from loomlog.errors import Corrupt, DataLoss
from loomlog.types import Gap, Glsn

ROWS_PER_GROUP: Final = 64 * 1024  # read at once; also the largest batch that a reader gets
BYTES_PER_GROUP: Final = 16 * limits.MIB  # limits groups of large values
_CHUNK_BYTES: Final = 4 * limits.MIB
_FOOTER_END: Final = Struct("<I4s")  # the length of the footer before it, and Parquet's magic

_DENSE: Final = ["position", "llsn", "timestamp"]  # small increments, stored as differences
_LAYOUT: Final = {
    "compression": "zstd",
    "use_dictionary": ["stream", "key"],
    "column_encoding": dict.fromkeys(_DENSE, "DELTA_BINARY_PACKED"),
    "write_statistics": [*_DENSE, "stream"],
    "write_page_checksum": True,
    "store_schema": False,
}


def write(location: Location, first: Glsn, last: Glsn, items: Iterable[Any]) -> RangeFile:
    """Write a new file with these rows. Rows and Gaps must cover exactly the positions from `first`
    to `last`, in order; otherwise raise DataLoss."""
    name = f"positions-{first}-{last}.{secrets.token_hex(6)}.parquet"
    checksum = Checksum()
    rows = 0
    with location.create(name) as sink:
        counted = _Counted(sink)
        with pq.ParquetWriter(pa.PythonFile(counted, mode="w"), SCHEMA, **_LAYOUT) as writer:
            for group in _groups(complete(items, first, last, f"log rows for {name}")):
                rows += group.num_rows
                checksum.update(group)
                writer.write_batch(group, row_group_size=group.num_rows)
    return RangeFile(
        name=name,
        first=first,
        last=last,
        rows=rows,
        size_bytes=counted.size,
        crc32c=counted.crc,
        footer_crc32c=_footer_crc(location, name),
        checksum=checksum.text(),
    )


def read(
    location: Location, file: RangeFile, first: Glsn = 1, last: Glsn | None = None
) -> Iterator[Any]:
    """Yield the rows from `first` to `last` as batches of schema SCHEMA, one per row group."""
    first, last = max(first, file.first), file.last if last is None else min(last, file.last)
    with location.open(file.name) as source:
        try:
            if _crc_of_footer(source) != file.footer_crc32c:
                raise Corrupt(f"the archive file {location.describe(file.name)} is damaged")
            yield from _read_groups(source, file, first, last, location.describe(file.name))
        except (pa.ArrowException, OSError, ValueError) as problem:
            raise Corrupt(
                f"the archive file {location.describe(file.name)} cannot be read: "
                f"{' '.join(str(problem).split())}"
            ) from None


def check(location: Location, file: RangeFile, live: Iterable[Any] = ()) -> None:
    """Read the whole file. Raise Corrupt if it is not as it was written, or if its last rows differ
    from these `live` rows of the log."""
    named = f"the archive file {location.describe(file.name)}"
    _check_bytes(location, file, named)
    live_checksum, live_first = _checksum_of(live, file, named)
    whole, part = Checksum(), Checksum()
    for batch in read(location, file):
        whole.update(batch)
        if live_first is not None:
            part.update(batch.slice(_count_below(batch, live_first)))
    if whole.text() != file.checksum:
        raise Corrupt(f"{named} has other rows than its manifest says")
    if live_first is not None and part.text() != live_checksum:
        raise Corrupt(f"{named} differs from the log in: {difference(part.text(), live_checksum)}")


def complete(items: Iterable[Any], first: Glsn, last: Glsn, named: str) -> Iterator[Any]:
    """Yield the batches among the items; raise DataLoss unless batches and gaps cover exactly the
    positions from `first` to `last`, in order."""
    expected = first
    for item in items:
        begin, end = _range_of(item)
        if isinstance(item, Gap):
            end = min(end, last + 1)
        elif begin == end:
            continue
        elif not pc.all(pc.equal(item.column(0), pa.arange(begin, end))).as_py():
            raise DataLoss(f"{named}: positions from {begin} on are not in order")
        if begin != expected:
            raise DataLoss(f"{named}: position {expected} is missing or out of order")
        if not isinstance(item, Gap):
            yield item
        expected = end
    if expected != last + 1:
        raise DataLoss(f"{named}: it ends at {expected - 1} instead of {last}")


def _range_of(item: Any) -> tuple[Glsn, Glsn]:
    """Return the first position of a batch or gap, and the position after its last one."""
    if isinstance(item, Gap):
        return item.first, item.last + 1
    begin = item.column(0)[0].as_py() if item.num_rows else 0
    return begin, begin + item.num_rows


def _count_below(batch: Any, position: Glsn) -> int:
    """Return how many rows at the beginning of a batch are below a position."""
    return pc.sum(pc.less(batch.column(0), position)).as_py() or 0


class _Counted(io.RawIOBase):
    """A file that computes the size and the CRC of everything that is written to it."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.size = 0
        self.crc = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.crc = crc32c(data, self.crc)
        self._sink.write(data)
        self.size += len(data)
        return len(data)


def _groups(batches: Iterable[Any]) -> Iterator[Any]:
    """Split and join batches into row groups."""
    parts: list[Any] = []
    rows = size = 0
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_PER_GROUP):
            part = batch.slice(start, ROWS_PER_GROUP)
            if parts and (
                rows + part.num_rows > ROWS_PER_GROUP or size + part.nbytes > BYTES_PER_GROUP
            ):
                yield pa.concat_batches(parts)
                parts, rows, size = [], 0, 0
            parts.append(part)
            rows += part.num_rows
            size += part.nbytes
    if parts:
        yield pa.concat_batches(parts)


def _read_groups(
    source: Any, file: RangeFile, first: Glsn, last: Glsn, named: str
) -> Iterator[Any]:
    parquet = pq.ParquetFile(source, page_checksum_verification=True)
    if parquet.metadata.num_rows != file.rows:
        raise Corrupt(f"the archive file {named} does not have the rows that its manifest lists")
    expected = file.first
    for group in range(parquet.num_row_groups):
        statistics = parquet.metadata.row_group(group).column(0).statistics
        if statistics.min <= last and statistics.max >= first:
            batch = _one_batch(parquet.read_row_group(group))
            _check_order(batch, expected, file.last, named)
            skip, end = _count_below(batch, first), _count_below(batch, last + 1)
            if skip < end:
                yield batch.slice(skip, end - skip)
        expected = statistics.max + 1


def _check_order(batch: Any, first: Glsn, last: Glsn, named: str) -> None:
    positions = batch.column(0)
    begin, end = positions[0].as_py(), positions[-1].as_py()
    before, after = positions.slice(0, len(positions) - 1), positions.slice(1)
    increasing = pc.all(pc.less(before, after), min_count=0).as_py()
    if not (first <= begin <= end <= last and increasing):
        raise Corrupt(f"the archive file {named}: positions from {first} on are not in order")


def _footer_crc(location: Location, name: str) -> int:
    with location.open(name) as source:
        return _crc_of_footer(source)


def _crc_of_footer(source: Any) -> int:
    """Return the CRC of the footer, including its length and the magic; 0 if there is none."""
    size = source.size()
    if size < _FOOTER_END.size:
        return 0
    source.seek(size - _FOOTER_END.size)
    end = source.read()
    length, _ = _FOOTER_END.unpack(end)
    if length > size - _FOOTER_END.size:
        return 0
    source.seek(size - _FOOTER_END.size - length)
    return int(crc32c(source.read()))


def _one_batch(table: Any) -> Any:
    return table.combine_chunks().to_batches()[0]


def _check_bytes(location: Location, file: RangeFile, named: str) -> None:
    crc = size = 0
    with location.open(file.name) as source:
        while data := source.read(_CHUNK_BYTES):
            crc = crc32c(data, crc)
            size += len(data)
    if size != file.size_bytes:
        raise Corrupt(f"{named} has {size} bytes, not {file.size_bytes}")
    if crc != file.crc32c:
        raise Corrupt(f"{named} is damaged: its bytes do not match their checksum")


def _checksum_of(live: Iterable[Any], file: RangeFile, named: str) -> tuple[str, Glsn | None]:
    """Return the checksum of the log's rows, and their first position or None if there are none."""
    checksum = Checksum()
    first: Glsn | None = None
    end = 0
    for item in live:
        begin, end = _range_of(item)
        first = begin if first is None else first
        if not isinstance(item, Gap):
            checksum.update(item)
    if first is not None and end <= file.last:
        raise DataLoss(f"{named}: the log ends at {end - 1}, before it")
    return checksum.text(), first


# This is -1. `pa.scalar(-1)` would import pandas if it is installed, which takes half a second.
_NULL_LENGTH: Final = pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(b"\xff" * 4)])[0]
_BYTES_PER_OFFSET: Final = 4


class Checksum:
    """Computes the checksum of a sequence of batches of schema SCHEMA."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(_PARTS, 0)

    def update(self, batch: Any) -> None:
        for name, column in zip(SCHEMA.names, batch.columns, strict=True):
            if pa.types.is_binary(column.type):
                lengths = pc.binary_length(column)
                self._add(f"{name} lengths", _fixed(pc.fill_null(lengths, _NULL_LENGTH)))
                self._add(name, _contents(column))
            else:
                self._add(name, _fixed(column))

    def text(self) -> str:
        """Return the checksum as text."""
        return "-".join(f"{value:08x}" for value in self._sums.values())

    def _add(self, part: str, data: memoryview) -> None:
        self._sums[part] = crc32c(data, self._sums[part])


def _parts() -> list[str]:
    parts: list[str] = []
    for field in SCHEMA:
        parts += [f"{field.name} lengths"] if pa.types.is_binary(field.type) else []
        parts.append(field.name)
    return parts


_PARTS: Final = _parts()


def difference(one: str, other: str) -> str:
    """Return the names of the parts in which two checksums differ; empty if they are equal."""
    pairs = zip(_PARTS, one.split("-"), other.split("-"), strict=False)
    return ", ".join(part for part, a, b in pairs if a != b)


def _fixed(column: Any) -> memoryview:
    """Return the bytes of a numeric column without nulls."""
    width = column.type.bit_width // 8
    start = column.offset * width
    return memoryview(column.buffers()[1])[start : start + len(column) * width]


def _contents(column: Any) -> memoryview:
    """Return the concatenated values of a binary column."""
    if column.null_count:
        column = pc.fill_null(column, b"")
    _, offsets, data = column.buffers()
    if not len(column) or data is None:
        return memoryview(b"")
    numbers = memoryview(offsets)[column.offset * _BYTES_PER_OFFSET :].cast("B").cast("i")
    return memoryview(data)[numbers[0] : numbers[len(column)]]
