"""A file of round records: its bytes, how it comes to be, how it is read back.

    rounds-00000007.log:  file header (64 bytes) | record | record | … | zeros

Records start at multiples of 64 bytes and are numbered from 1 in each file. Whoever writes has one
job under way at a time (write, then fdatasync). So records of one job may be torn in any way by a
crash, but if one of a LATER job is there, all before it had been durable: a broken record before
such a one is corruption, not a torn tail.

A file is made whole: its first records are in it when it appears under its name.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from loomlog.errors import Corrupt, VersionMismatch
from loomlog.limits import ALIGNMENT, MIB
from loomlog.storage.files import File, Files, Step

FILE_BYTES: Final = 4 * MIB  # some 30,000 rounds; reading it takes milliseconds
FORMAT: Final = 1

_FILE_MAGIC: Final = b"loomrnds"
_FILE: Final = struct.Struct("<8sIIQQ")  # magic, CRC of the rest, format, number, epoch
_RECORD_MAGIC: Final = b"LMRR"
_RECORD: Final = struct.Struct("<4sIIIQQ")  # magic, CRC of the rest, size, place in job, number, …
_CRC_FROM: Final = 8  # in a record


class Record(NamedTuple):
    epoch: int
    content: bytes


class _Found(NamedTuple):
    number: int
    place: int  # in the job that wrote it, from 0
    record: Record
    end: int


class RoundFile:
    """A file of rounds and how far it is written."""

    def __init__(self, number: int, epoch: int, capacity: int) -> None:
        self.number = number
        self.epoch = epoch
        self.capacity = capacity
        self.end = ALIGNMENT
        self.next_number = 1
        self.records: list[Record] = []
        self.file: File | None = None

    @classmethod
    def fresh(cls, number: int, epoch: int, capacity: int) -> RoundFile:
        return cls(number, epoch, _aligned(max(capacity, 2 * ALIGNMENT)))

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


# ---- files


def _name(number: int) -> str:
    return f"rounds-{number:08d}.log"


def _path(directory: str, number: int) -> str:
    return f"{directory}/{_name(number)}"


def clean(files: Files, directory: str) -> list[int]:
    """The numbers of the files there, oldest first; what was never finished is removed."""
    numbers = []
    for name in files.list(directory):
        if name.endswith(".tmp"):
            files.remove(f"{directory}/{name}")
        elif name.startswith("rounds-") and name.endswith(".log"):
            numbers.append(int(name[len("rounds-") : -len(".log")]))
    return sorted(numbers)


def remove(files: Files, directory: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        files.remove(_path(directory, number))


def creation(files: Files, directory: str, new: RoundFile, data: bytes) -> list[Step]:
    """The steps that make a file durable under its name. It is filled with zeros: syncing a write
    into blocks that were written before takes half the time."""
    path = _path(directory, new.number)
    new.end = ALIGNMENT + len(data)

    def write() -> None:
        new.file = files.open(f"{path}.tmp", create=True)
        new.file.truncate(0)
        rest = bytes(new.capacity - new.end)
        new.file.write([_file_header(new.number, new.epoch), data, rest], 0)

    def sync() -> None:
        assert new.file is not None
        new.file.sync()

    def publish() -> None:
        files.rename(f"{path}.tmp", path)
        files.sync_directory(directory)

    return [write, sync, publish]


def sync_way_to(files: Files, directory: str) -> None:
    """What is found may be the unsynced work of a process that was killed, and directories on the
    way may be new as well: a power loss must not take the way to the file."""
    files.sync_directory(directory)
    while "/" in directory.rstrip("/"):
        directory = directory.rstrip("/").rpartition("/")[0] or "/"
        try:
            files.sync_directory(directory)
        except PermissionError:
            return  # not ours, so it was there before


def read_file(files: Files, directory: str, number: int) -> list[Record]:
    """The records in a file that somebody writes to, up to the first that is broken."""
    path = _path(directory, number)
    file = files.open(path)
    try:
        data = bytes(file.read(file.size(), 0))
    finally:
        file.close()
    found = RoundFile(number, _read_file_header(data, path), len(data))
    _scan(found, data, path)
    return found.records


def open_file(files: Files, directory: str, number: int, file_bytes: int) -> RoundFile:
    path = _path(directory, number)
    file = files.open(path)
    try:
        data = bytes(file.read(file.size(), 0))
        opened = RoundFile(
            number, _read_file_header(data, path), _aligned(max(file_bytes, len(data)))
        )
        opened.file = file
        _scan(opened, data, path)
        _cut(opened, data)
        file.sync()  # what was read may have been written and not synced: now it holds
    except BaseException:
        file.close()
        raise
    return opened


def _scan(opened: RoundFile, data: bytes, path: str) -> None:
    while (found := _record_at(data, opened.end)) is not None:
        if found.number != opened.next_number:
            break
        opened.records.append(found.record)
        opened.epoch = max(opened.epoch, found.record.epoch)
        opened.next_number += 1
        opened.end = found.end
    _check_torn(opened, data, path)


def _check_torn(opened: RoundFile, data: bytes, path: str) -> None:
    """The rest must be the remains of one job that was never durable."""
    at = data.find(_RECORD_MAGIC, opened.end)
    while at >= 0:
        found = _record_at(data, at) if at % ALIGNMENT == 0 else None
        if found is not None and found.number - found.place > opened.next_number:
            raise Corrupt(
                f"{path}: the record at byte {opened.end} is broken, but later ones are not: "
                "the disk damaged a durable round; restore the file from a copy"
            )
        at = data.find(_RECORD_MAGIC, at + 1)


def _cut(opened: RoundFile, data: bytes) -> None:
    """Zeros after the last whole record: remains of a torn job must never be read as records."""
    assert opened.file is not None
    rest = data[opened.end :]
    if rest.count(0) != len(rest):
        opened.file.truncate(opened.end)
        rest = b""
    missing = opened.capacity - opened.end - len(rest)
    if missing > 0:
        opened.file.write([bytes(missing)], opened.capacity - missing)


# ---- bytes


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _file_header(number: int, epoch: int) -> bytes:
    checked = _FILE.pack(_FILE_MAGIC, 0, FORMAT, number, epoch)[12:]
    crc = int(crc32c(checked))
    return _FILE.pack(_FILE_MAGIC, crc, FORMAT, number, epoch).ljust(ALIGNMENT, b"\0")


def _read_file_header(data: bytes, path: str) -> int:
    if len(data) < ALIGNMENT or not data.startswith(_FILE_MAGIC):
        raise Corrupt(f"{path} is no file of rounds: restore it from a copy")
    _, crc, version, _, epoch = _FILE.unpack_from(data)
    if int(crc32c(data[12 : _FILE.size])) != crc:
        raise Corrupt(f"{path}: the file header is damaged: restore it from a copy")
    if version != FORMAT:
        raise VersionMismatch(f"{path} has format {version}, this release reads {FORMAT}")
    return int(epoch)


def encode(records: Sequence[Record], first_number: int) -> bytes:
    parts = []
    for place, (epoch, content) in enumerate(records):
        head = _RECORD.pack(_RECORD_MAGIC, 0, len(content), place, first_number + place, epoch)
        crc = int(crc32c(head[_CRC_FROM:] + content))
        record = b"".join((head[:4], crc.to_bytes(4, "little"), head[_CRC_FROM:], content))
        parts.append(record.ljust(_aligned(len(record)), b"\0"))
    return b"".join(parts)


def _record_at(data: bytes, at: int) -> _Found | None:
    if at + _RECORD.size > len(data):
        return None
    magic, crc, size, place, number, epoch = _RECORD.unpack_from(data, at)
    end = at + _RECORD.size + size
    if magic != _RECORD_MAGIC or end > len(data):
        return None
    if int(crc32c(data[at + _CRC_FROM : end])) != crc:
        return None
    content = data[at + _RECORD.size : end]
    return _Found(number, place, Record(epoch, content), at + _aligned(end - at))
