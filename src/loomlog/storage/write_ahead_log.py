"""Check the write-ahead logs of a RocksDB for damage, and rewrite them without it.

A log consists of blocks of 32 KiB, and a block of records, little-endian:

    checksum(4): CRC-32C of the rest, masked    length(2)    kind(1)    content

If less than a header is left at the end of a block, it stays empty. A write that does not fit into
the rest of a block is split into records of kinds FIRST, MIDDLE and LAST.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import pairwise
from struct import Struct
from typing import BinaryIO, Final, NamedTuple

from crc32c import crc32c

from loomlog.errors import Corrupt
from loomlog.limits import KIB

_BLOCK_BYTES: Final = 32 * KIB
_SECTOR_BYTES: Final = 512
_HEADER: Final = Struct("<IHB")
_KIND_AT: Final = 6


class _Kind(IntEnum):
    """The kind of a record: a whole write, or a part of one."""

    WHOLE = 1
    FIRST = 2
    MIDDLE = 3
    LAST = 4


_KINDS: Final = frozenset(_Kind)


def check_log(path: str) -> None:
    """Raise Corrupt if a write-ahead log of the database at `path` is damaged."""
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
    """Return the end of the last sound record before the first damaged one, or of all records."""
    at = 0
    while (end := _end_of_record(block, at)) is not None:
        at = end
    return at


def _end_of_record(block: memoryview, at: int) -> int | None:
    """Return the end of the record at `at`, or None if there is no sound one."""
    if at + _HEADER.size > len(block):
        return None
    checksum, length, _ = _HEADER.unpack_from(block, at)
    end = at + _HEADER.size + length
    is_whole = end <= len(block) and checksum == _masked(crc32c(block[at + _KIND_AT : end]))
    return end if is_whole else None


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _is_torn(block: memoryview, at: int) -> bool:
    """Return whether the record at `at` was not written completely."""
    if at + _HEADER.size > len(block):
        return True
    end = at + _HEADER.size + _HEADER.unpack_from(block, at)[1]
    if len(block) < end <= _BLOCK_BYTES and not _has_records(block, at + 1):
        return True
    end = min(end, len(block))
    cuts = [at, *range(at - at % _SECTOR_BYTES + _SECTOR_BYTES, end, _SECTOR_BYTES), end]
    return any(not any(block[a:b]) for a, b in pairwise(cuts))


def _has_records(block: memoryview, start: int) -> bool:
    """Return whether a sound record begins anywhere at or after `start`."""
    places = range(start, len(block) - _HEADER.size + 1)
    candidates = (at for at in places if block[at + _KIND_AT] in _KINDS)
    return any(_end_of_record(block, at) is not None for at in candidates)


# ---- salvaging a damaged log


def whole_writes(file: BinaryIO) -> Iterator[bytes]:
    """Yield the undamaged writes of a log, in order."""
    parts: list[bytes] = []
    for kind, content in _records(file):
        if kind in (_Kind.WHOLE, _Kind.FIRST):
            parts = [content]
        elif kind in (_Kind.MIDDLE, _Kind.LAST) and parts:
            parts.append(content)
        else:
            parts = []  # a part of the write is damaged
        if parts and kind in (_Kind.WHOLE, _Kind.LAST):
            yield b"".join(parts)
            parts = []


def _records(file: BinaryIO) -> Iterator[tuple[int | None, bytes]]:
    """Yield the kinds and contents of records; kind None where records are damaged."""
    while block := memoryview(file.read(_BLOCK_BYTES)):
        at: int | None = 0
        while at is not None and at + _HEADER.size <= len(block):
            end = _end_of_record(block, at)
            if end is not None:
                yield block[at + _KIND_AT], bytes(block[at + _HEADER.size : end])
                at = end
            else:
                yield None, b""
                at = _after_damage(block, at)


def _after_damage(block: memoryview, at: int) -> int | None:
    """Return where the next sound record begins, if the lengths of the damaged ones lead there,
    which proves these lengths right. Other places are not tried: the contents of an entry may look
    like a record."""
    while at + _HEADER.size <= len(block):
        at += _HEADER.size + _HEADER.unpack_from(block, at)[1]
        if _end_of_record(block, at) is not None:
            return at
    return None


def write_log(file: BinaryIO, writes: Iterable[bytes]) -> None:
    """Write a log with these writes."""
    room = _BLOCK_BYTES
    for write in writes:
        rest, is_first = memoryview(write), True
        while rest or is_first:
            if room < _HEADER.size:
                file.write(bytes(room))
                room = _BLOCK_BYTES
            part = rest[: room - _HEADER.size]
            rest = rest[len(part) :]
            kind = _kind_of(is_first=is_first, is_last=not rest)
            checksum = _masked(crc32c(part, crc32c(bytes([kind]))))
            file.write(_HEADER.pack(checksum, len(part), kind))
            file.write(part)
            room -= _HEADER.size + len(part)
            is_first = False


def _kind_of(*, is_first: bool, is_last: bool) -> _Kind:
    if is_first:
        return _Kind.WHOLE if is_last else _Kind.FIRST
    return _Kind.LAST if is_last else _Kind.MIDDLE


# ---- the contents of a write


class Change(NamedTuple):
    """A change of the row `key`, or of the rows in [key, end). Without a value it is a deletion."""

    family: int  # number of the column family, in order of creation; 0: the default one
    key: bytes
    value: bytes | None = None
    end: bytes | None = None


class _Tag(IntEnum):
    """The kind of a change, in the default column family."""

    DELETE = 0
    PUT = 1
    DELETE_RANGE = 15


_OF_FAMILY: Final = {4: _Tag.DELETE, 5: _Tag.PUT, 14: _Tag.DELETE_RANGE}  # a family number follows
_WRITE_HEADER_BYTES: Final = 12  # a sequence number and a count


def changes_in(write: bytes) -> list[Change]:
    """Return the changes of a write, in order. Raise Corrupt if there are any that we never make.

    A change is a tag, the number of its column family unless that is the default one, a key, and
    the value or the end. Numbers and lengths are encoded with seven bits per byte, lowest first."""
    parts = _Parts(write, _WRITE_HEADER_BYTES)
    changes = []
    while parts.at < len(write):
        tag = parts.byte()
        family = parts.number() if tag in _OF_FAMILY else 0
        match _OF_FAMILY.get(tag, tag):
            case _Tag.DELETE:
                changes.append(Change(family, parts.text()))
            case _Tag.PUT:
                changes.append(Change(family, parts.text(), parts.text()))
            case _Tag.DELETE_RANGE:
                changes.append(Change(family, parts.text(), end=parts.text()))
            case _:
                raise Corrupt(f"no change of kind {tag} is known")
    return changes


class _Parts:
    """Reads the parts of a write, beginning at `at`."""

    def __init__(self, write: bytes, at: int) -> None:
        self._write = write
        self.at = at

    def byte(self) -> int:
        self.at += 1
        if self.at > len(self._write):
            raise Corrupt("a write ends early")
        return self._write[self.at - 1]

    def number(self) -> int:
        number, shift = 0, 0
        while (byte := self.byte()) & 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
        return number | byte << shift

    def text(self) -> bytes:
        length = self.number()
        self.at += length
        if self.at > len(self._write):
            raise Corrupt("a write ends early")
        return self._write[self.at - length : self.at]
