"""RocksDB as rocksdict offers it, and how to avoid two of its traps:

synced writes   stop all threads of the process, for rocksdict keeps the interpreter to itself
                until the disk is done. So the sync is a call of its own, and who looks must
                wait for its end: what is not synced yet is there already
snapshots       do not hold for the cursors that are made of them. A cursor sees what was there
                when it was made: so whatever must be of one state is read through one cursor
"""

from __future__ import annotations

import os
from typing import Final

from rocksdict import DBCompressionType, Options, Rdict, WriteBatch

from loomlog.errors import Corrupt
from loomlog.limits import KIB, MIB
from loomlog.storage import rocks_log
from loomlog.storage.disk import DIRECTORY_MODE

_MEMTABLE_BYTES: Final = 32 * MIB
_LOG_BYTES_MAX: Final = 128 * MIB  # what a start has to read
_BLOB_BYTES_MIN: Final = 4 * KIB  # smaller values are not worth a second look-up
_LOG_FILES_KEPT: Final = 2  # of what RocksDB tells about itself ...
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
    rocks_log.check(path)


def _is_made_first(name: str) -> bool:
    """Whether the file may be there before CURRENT, in a database that is just being made."""
    return name in _MADE_FIRST or name.startswith(("LOG", "MANIFEST-")) or name.endswith(".dbtmp")


def write(db: Rdict, batch: WriteBatch, *, sync: bool) -> None:
    """Write a batch; no reader may use it before this returns."""
    db.write(batch)
    if sync:
        db.flush_wal(True)


class Cursor:
    """A table as of when this was made. Raises `Corrupt` where the disk cannot be read."""

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

    def _arrive(self) -> bytes | None:
        if self._rows.valid():
            self.key = self._rows.key()
            return self.key
        self.key = None
        try:
            self._rows.status()  # whether it came to the end, or to what cannot be read
        except Exception as error:  # RocksDB's have no type of their own
            raise Corrupt(f"{error}: check the disk") from error
        return None
