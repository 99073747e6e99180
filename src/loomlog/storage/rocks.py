"""RocksDB as rocksdict offers it, and how to avoid its traps:

synced writes   stop all threads of the process, because rocksdict holds the GIL until the disk is
                done. So the sync is a call of its own. Readers must wait for its end: they would
                see what is not synced yet
snapshots       do not hold for the cursors that are made of them. A cursor sees what was there
                when it was made, so whatever must be of one state is read through one cursor
damaged logs    are cut at the first record that RocksDB cannot read, silently. That is right for
                what a power loss left, which is a file that ends early, or zeros in sectors
                that were not written yet. A record that is wrong in another way was damaged later.
                It may have been acknowledged, like those behind it: `prepare` refuses it
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from struct import Struct
from time import perf_counter
from typing import BinaryIO, Final

from crc32c import crc32c
from rocksdict import DBCompressionType, Options, Rdict, WriteBatch

from loomlog.errors import Corrupt
from loomlog.limits import KIB, MIB
from loomlog.storage.disk import DIRECTORY_MODE
from loomlog.storage.sync_times import note_sync

_MEMTABLE_BYTES: Final = 32 * MIB
_LOG_BYTES_MAX: Final = 128 * MIB  # what a start has to read
_BLOB_BYTES_MIN: Final = 4 * KIB  # smaller values are not worth a second look-up
_LOG_FILES_KEPT: Final = 2  # of RocksDB's own log ...
_LOG_FILE_BYTES: Final = MIB  # ... and how much of that is in one
_MADE_FIRST: Final = frozenset(("IDENTITY", "LOCK", "rocksdict-config.json"))


def options() -> Options:
    made = Options(raw_mode=True)
    made.create_if_missing(True)
    made.set_write_buffer_size(_MEMTABLE_BYTES)
    made.set_max_total_wal_size(_LOG_BYTES_MAX)
    made.set_compression_type(DBCompressionType.none())  # clients compress batches
    made.set_enable_blob_files(True)
    made.set_min_blob_size(_BLOB_BYTES_MIN)
    made.set_enable_blob_gc(True)
    made.set_keep_log_file_num(_LOG_FILES_KEPT)
    made.set_max_log_file_size(_LOG_FILE_BYTES)
    made.set_stats_dump_period_sec(0)
    made.set_stats_persist_period_sec(0)
    return made


def prepare(path: str, *, was_used: bool = False) -> None:
    """Make the directory of a database, for this user alone. Raise Corrupt if one is there without
    its CURRENT file: RocksDB would take it for a new one, and delete what is there; or with a
    damaged log, which RocksDB would cut. `was_used`: also if nothing is left of it."""
    if not was_used and not os.path.exists(path):
        os.makedirs(path, DIRECTORY_MODE)
    names = os.listdir(path) if os.path.exists(path) else []
    if "CURRENT" not in names and (was_used or not all(map(_is_made_first, names))):
        raise Corrupt(f"{path}/CURRENT is missing, and without it RocksDB would delete the rest")
    check_log(path)


def _is_made_first(name: str) -> bool:
    """Return whether a file may be there before CURRENT, while a database is being made."""
    return name in _MADE_FIRST or name.startswith(("LOG", "MANIFEST-")) or name.endswith(".dbtmp")


def write(db: Rdict, batch: WriteBatch, *, sync: bool) -> None:
    """Write a batch; no reader may use it before this returns."""
    db.write(batch)
    if sync:
        begun_s = perf_counter()
        db.flush_wal(True)
        note_sync(begun_s)


class Cursor:
    """A table as of when this was made. Raises Corrupt where it is damaged, and OSError where the
    disk cannot be read."""

    def __init__(self, table: Rdict) -> None:
        self._rows = table.iter()
        self.key: bytes | None = None  # of the row where it stands; None: behind the last one

    @property
    def value(self) -> bytes:
        value: bytes = self._rows.value()
        return value

    def seek(self, key: bytes) -> bytes | None:
        """Move to the first row at or after `key`; like the others, return the key reached."""
        self._rows.seek(key)
        return self._arrive()

    def seek_back(self, key: bytes) -> bytes | None:
        """Move to the last row at or before `key`."""
        self._rows.seek_for_prev(key)
        return self._arrive()

    def next(self) -> bytes | None:
        self._rows.next()
        return self._arrive()

    def previous(self) -> bytes | None:
        self._rows.prev()
        return self._arrive()

    def get(self, key: bytes) -> bytes | None:
        return self.value if self.seek(key) == key else None

    def rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows whose keys begin with `prefix`, in order."""
        key = self.seek(prefix)
        while key is not None and key.startswith(prefix):
            yield key, self.value
            key = self.next()

    def _arrive(self) -> bytes | None:
        if self._rows.valid():
            self.key = self._rows.key()
            return self.key
        self.key = None
        try:
            self._rows.status()  # whether it came to the end, or to what cannot be read
        except Exception as error:  # RocksDB's have no type of their own
            is_damaged = not str(error).startswith("IO error")
            raise (Corrupt if is_damaged else OSError)(f"{error}: check the disk") from error
        return None


# ---- the write-ahead log
#
# A log consists of blocks of 32 KiB, a block of records, little-endian:
#
#     checksum(4): CRC-32C of the rest, masked    length(2)    kind(1)    content
#
# Less than a header at the end of a block is left empty.

_BLOCK_BYTES: Final = 32 * KIB
_SECTOR_BYTES: Final = 512
_HEADER: Final = Struct("<IHB")
_KIND_AT: Final = 6
_KINDS: Final = range(1, 5)  # of records: whole ones, and the parts of those that cross blocks


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
