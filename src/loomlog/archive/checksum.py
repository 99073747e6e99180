"""A checksum of rows that does not depend on how they are split into batches or files.

It consists of the CRC32C of each column's bytes, and of the lengths in each column of bytes. The
order of rows matters.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from loomlog.columns import SCHEMA

_NULL_LENGTH: Final = pa.scalar(-1, pa.int32())
_BYTES_PER_OFFSET: Final = 4


class Checksum:
    """Computes the checksum of a sequence of batches of SCHEMA."""

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
    found: list[str] = []
    for field in SCHEMA:
        found += [f"{field.name} lengths"] if pa.types.is_binary(field.type) else []
        found.append(field.name)
    return found


_PARTS: Final = _parts()


def difference(one: str, other: str) -> str:
    """Return the names of the parts in which two checksums differ; empty if they are equal."""
    pairs = zip(_PARTS, one.split("-"), other.split("-"), strict=False)
    return ", ".join(part for part, a, b in pairs if a != b)


def _fixed(column: Any) -> memoryview:
    """Return the bytes of a column of numbers without nulls."""
    width = column.type.bit_width // 8
    start = column.offset * width
    return memoryview(column.buffers()[1])[start : start + len(column) * width]


def _contents(column: Any) -> memoryview:
    """Return the concatenated bytes of a column of bytes; nulls have none."""
    if column.null_count:
        column = pc.fill_null(column, b"")
    _, offsets, data = column.buffers()
    if not len(column) or data is None:
        return memoryview(b"")
    numbers = memoryview(offsets)[column.offset * _BYTES_PER_OFFSET :].cast("B").cast("i")
    return memoryview(data)[numbers[0] : numbers[len(column)]]
