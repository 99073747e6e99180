"""The sparse index of a full data file, stored so that a start need not read the data.

    offset  size
    0       4     magic "LMI2"
    4       4     n, the number of index entries
    8       4     m, the number of producer marks
    12      4     zero
    16      40    first LLSN, last LLSN, end (bytes of data), last epoch, zero
    56      8n    LLSNs at which batches start, ascending
    …       8n    the offsets of these batches in the data file
    …       8n    the latest timestamp from each of these batches to the next one (signed)
    …       32m   producer marks: producer id, sequence, first LLSN, count
    …       4     CRC32C of all bytes before

Little-endian. A damaged index is rebuilt from its data file.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Literal, NamedTuple

from crc32c import crc32c

from loomlog.errors import Corrupt
from loomlog.types import Llsn

_MAGIC = b"LMI2"
_HEAD = Struct("<4sII4xQQQQ8x")
_MARK = Struct("<QQQQ")
_CRC = Struct("<I")


class DataIndex(NamedTuple):
    """The contents of an index file."""

    first_llsn: Llsn
    last_llsn: Llsn
    end: int
    last_epoch: int
    llsns: array[int]
    offsets: array[int]
    times_us: array[int]
    marks: Sequence[tuple[int, ...]]  # of producers


def encode(index: DataIndex) -> bytes:
    head = _HEAD.pack(
        _MAGIC,
        len(index.llsns),
        len(index.marks),
        index.first_llsn,
        index.last_llsn,
        index.end,
        index.last_epoch,
    )
    marks = b"".join(_MARK.pack(*mark) for mark in index.marks)
    columns = map(_to_bytes, (index.llsns, index.offsets, index.times_us))
    body = b"".join((head, *columns, marks))
    return body + _CRC.pack(crc32c(body))


def decode(data: bytearray) -> DataIndex:
    """Return the index in `data`, or raise Corrupt."""
    if len(data) < _HEAD.size + _CRC.size:
        raise Corrupt("data file index: cut off")
    body = memoryview(data)[: -_CRC.size]
    if _CRC.unpack_from(data, len(body))[0] != crc32c(body):
        raise Corrupt("data file index: does not match its checksum")
    magic, entries, marks, first_llsn, last_llsn, end, last_epoch = _HEAD.unpack_from(body)
    if magic != _MAGIC or len(body) != _HEAD.size + 24 * entries + _MARK.size * marks:
        raise Corrupt("data file index: not an index of this format")
    at = _HEAD.size
    llsns = _from_bytes(body[at : at + 8 * entries], "Q")
    offsets = _from_bytes(body[at + 8 * entries : at + 16 * entries], "Q")
    times_us = _from_bytes(body[at + 16 * entries : at + 24 * entries], "q")
    rest = body[at + 24 * entries :]
    return DataIndex(
        first_llsn,
        last_llsn,
        end,
        last_epoch,
        llsns,
        offsets,
        times_us,
        list(_MARK.iter_unpack(rest)),
    )


def _to_bytes(numbers: array[int]) -> bytes:
    return _little_endian(numbers[:]).tobytes()


def _from_bytes(data: memoryview, kind: Literal["Q", "q"]) -> array[int]:
    numbers = array(kind)
    numbers.frombytes(data)
    return _little_endian(numbers)


def _little_endian(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
