"""Checks the write-ahead log of a RocksDB before it is opened.

RocksDB ends a log at the first record that it cannot read, and drops all behind it without a word:
that may be what a power loss left. But a power loss leaves a file that ends early, or zeros in
sectors that were not written yet. A record that is wrong in another way was damaged later, and it
may have been acknowledged, like those behind it.

A log consists of blocks of 32 KiB, a block of records, little-endian:

    checksum(4): CRC-32C of the rest, masked    length(2)    kind(1)    content

Less than a header at the end of a block is left empty.
"""

from __future__ import annotations

import os
from itertools import pairwise
from struct import Struct
from typing import BinaryIO, Final

from crc32c import crc32c

from loomlog.errors import Corrupt

_BLOCK_BYTES: Final = 32 * 1024
_SECTOR_BYTES: Final = 512
_HEADER: Final = Struct("<IHB")
_KIND_AT: Final = 6
_KINDS: Final = range(1, 5)  # of records: whole ones, and the parts of those that cross blocks


def check(path: str) -> None:
    """Raise Corrupt if a log of the database at `path` is damaged."""
    for name in sorted(os.listdir(path)):
        if name.endswith(".log"):
            with open(os.path.join(path, name), "rb") as file:
                place = _find_damage(file)
            if place is not None:
                raise Corrupt(f"{path}/{name} is damaged at byte {place}: check the disk")


def _find_damage(file: BinaryIO) -> int | None:
    start = 0
    while block := memoryview(file.read(_BLOCK_BYTES)):
        at = _end_of_records(block)
        if at + _HEADER.size <= _BLOCK_BYTES:
            return None if _is_torn(block, at) else start + at
        start += _BLOCK_BYTES
    return None


def _end_of_records(block: memoryview) -> int:
    """Return where the block has no whole record any more."""
    at = 0
    while (end := _end_of_record(block, at)) is not None:
        at = end
    return at


def _end_of_record(block: memoryview, at: int) -> int | None:
    """Return the end of the record there, or None if there is no whole one."""
    if at + _HEADER.size > len(block):
        return None
    checksum, length, _ = _HEADER.unpack_from(block, at)
    end = at + _HEADER.size + length
    is_whole = end <= len(block) and checksum == _masked(crc32c(block[at + _KIND_AT : end]))
    return end if is_whole else None


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _is_torn(block: memoryview, at: int) -> bool:
    """Return whether the record there was not written to its end."""
    if at + _HEADER.size > len(block):
        return True
    end = at + _HEADER.size + _HEADER.unpack_from(block, at)[1]
    if len(block) < end <= _BLOCK_BYTES and not _has_records(block, at + 1):
        return True
    end = min(end, len(block))
    cuts = [at, *range(at - at % _SECTOR_BYTES + _SECTOR_BYTES, end, _SECTOR_BYTES), end]
    return any(not any(block[a:b]) for a, b in pairwise(cuts))


def _has_records(block: memoryview, start: int) -> bool:
    """Return whether there is a whole record, wherever it begins."""
    places = range(start, len(block) - _HEADER.size + 1)
    candidates = (at for at in places if block[at + _KIND_AT] in _KINDS)
    return any(_end_of_record(block, at) is not None for at in candidates)
