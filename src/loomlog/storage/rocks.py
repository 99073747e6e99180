"""RocksDB through rocksdict, and workarounds for its pitfalls:

synced writes   block all threads of the process, because rocksdict holds the GIL until the disk is
                done. So the sync is a separate call (`SyncedMark.sync`). Readers must wait until
                it returns, or they would see unsynced changes
snapshots       do not apply to the cursors created from them. A cursor sees the state at its own
                creation, so reads that must be consistent use a single cursor
damaged logs    are silently cut at the first record that RocksDB cannot read. That is right after
                a power loss, which leaves a file that ends early, or zeros in sectors that were
                not written yet. A record that is wrong in another way was damaged later, and may
                have been acknowledged, as may those after it: `prepare` refuses such a log, and
                one that lacks what was synced (synced_mark.py)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from rocksdict import DBCompressionType, Options, Rdict

from loomlog.errors import Corrupt
from loomlog.limits import KIB, MIB
from loomlog.storage.disk import DIRECTORY_MODE
from loomlog.storage.files import DamagedRowsError, is_of_disk
from loomlog.storage.synced_mark import SyncedMark, check_logs
from loomlog.storage.write_ahead_log import check_log

_MEMTABLE_BYTES: Final = 32 * MIB
_LOG_BYTES_MAX: Final = 128 * MIB  # write-ahead logs, which a start has to read
_BLOB_BYTES_MIN: Final = 4 * KIB  # smaller values are not worth a second look-up
_LOG_FILES_KEPT: Final = 2  # of RocksDB's messages
_LOG_FILE_BYTES: Final = MIB
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
    """Create the directory of a database, accessible to this user only.

    Raise Corrupt if a database exists without its CURRENT file, because RocksDB would create a new
    one and delete the rest; or if a log is damaged, because RocksDB would cut it; or lacks
    something that was synced; or if there is nothing, or no log, although it `was_used`."""
    if not was_used and not os.path.exists(path):
        os.makedirs(path, DIRECTORY_MODE)
    names = os.listdir(path) if os.path.exists(path) else []
    if "CURRENT" not in names and (was_used or not all(map(_is_made_first, names))):
        raise Corrupt(f"{path}/CURRENT is missing, and without it RocksDB would delete the rest")
    was_used |= any(name.endswith(".sst") for name in names)
    if was_used and not any(name.endswith(".log") for name in names):  # RocksDB always keeps one
        raise Corrupt(f"{path} has no write-ahead log, and RocksDB would make a new, empty one")
    check_log(path)
    check_logs(path)


def _is_made_first(name: str) -> bool:
    """Return whether RocksDB may create a file of this name before CURRENT."""
    return name in _MADE_FIRST or name.startswith(("LOG", "MANIFEST-")) or name.endswith(".dbtmp")


def families(path: str, made: Options) -> list[str]:
    """Return the names of all column families except the default one."""
    if not os.path.exists(os.path.join(path, "CURRENT")):
        return []
    with _errors(path):
        return [name for name in Rdict.list_cf(path, made) if name != "default"]


def open_database(path: str, made: Callable[[], Options], names: Iterable[str] = ()) -> Rdict:
    """Open or create a database with these column families. Raise Corrupt if it is damaged, OSError
    for other failures."""
    with _errors(path):
        return Rdict(path, made(), {name: made() for name in names})


@contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # RocksDB's have no type of their own
        if "Corruption" not in str(error):
            raise OSError(f"{path} cannot be opened: {error}") from error
        raise Corrupt(f"{path} is damaged: {error}") from error


def close(db: Rdict, mark: SyncedMark) -> None:
    """Sync and close a database."""
    sequence: int | None = None
    with suppress(Exception):  # what it fails to flush is in its log
        last = db.latest_sequence_number()
        db.flush_wal(True)
        sequence = last
    with suppress(Exception):
        db.close()
    mark.close(sequence)


class Cursor:
    """The state of a table at the creation of the cursor. Methods raise DamagedRowsError where it
    is damaged, and OSError where the disk cannot be read."""

    def __init__(self, table: Rdict) -> None:
        self._rows = table.iter()
        self.key: bytes | None = None  # of the current row; None: there is none

    @property
    def value(self) -> bytes:
        value: bytes = self._rows.value()
        return value

    def seek(self, key: bytes) -> bytes | None:
        """Move to the first row at or after `key`. Return its key, or None at the end."""
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

    def get_content(self, key: bytes) -> bytes | None:
        """Return the value of a row on which no other rows depend. Raise plain Corrupt if it is
        damaged, since nothing else is affected."""
        try:
            return self.get(key)
        except DamagedRowsError as error:
            raise Corrupt(str(error)) from None

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
            self._rows.status()  # raises unless this is the end
        except Exception as error:  # RocksDB's have no type of their own
            kind = OSError if is_of_disk(error) else DamagedRowsError
            raise kind(f"{error}: check the disk") from error
        return None
