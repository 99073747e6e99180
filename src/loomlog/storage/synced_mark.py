"""A file that records how much of a RocksDB was synced, to notice a log that was cut off.

    <path>/synced    CRC32C(4) size(4), then: version(4) logs(4) sequence number of the last
                     write(8), number(8) and size(8) of each log, and the name of the MANIFEST

RocksDB takes the end of a write-ahead log for the place where a crash interrupted it, wherever that
is. So the mark is written after each sync. It needs no sync itself: if the process is killed, the
kernel has it; after a power loss it may be an older one, which is true as well, and less exact. It
is synced when the database is opened and closed.

When the database was closed, the mark also names its MANIFEST, which RocksDB replaces whenever it
opens the database. While it is the same, no log can have been removed since.

Every append waits for a mark on each node, so it is plain numbers rather than JSON.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from struct import Struct
from time import perf_counter
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from loomlog.errors import Corrupt
from loomlog.meters import note_sync
from loomlog.storage.disk import FILE_MODE

logger = logging.getLogger(__name__)

MARK: Final = "synced"
_BYTES: Final = 512  # a sector, which is replaced as a whole
_LOGS_MAX: Final = 12  # the newest ones
_LOG: Final = ".log"
_VERSION: Final = 1
_CHECK: Final = Struct("<II")
_HEAD: Final = Struct("<IIQ")
_SIZE_OF_LOG: Final = Struct("<QQ")
_NAME_MAX: Final = 64  # of a MANIFEST


class Numbered(Protocol):
    """A database that numbers its writes."""

    def latest_sequence_number(self) -> int: ...

    def flush_wal(self, sync: bool) -> None: ...


class Reached(NamedTuple):
    """The extent of a database."""

    sequence: int = 0  # of its last write
    logs: Mapping[int, int] = {}  # sizes by number
    manifest: str = ""  # the database is closed, and this is its MANIFEST


def check_logs(path: str) -> None:
    """Raise Corrupt if logs of the database at `path` are shorter than they were, or missing. To be
    called before it is opened, because RocksDB removes logs that it has read."""
    noted = _load(path)
    if noted is None:
        return
    found = _sizes(path)
    is_closed = noted.manifest != "" and noted.manifest == _manifest(path)
    for number, size in noted.logs.items():
        name = _name(path, number)
        if number not in found and is_closed:
            raise Corrupt(f"{name} is missing: bring it back")
        if found.get(number, size) < size:
            raise Corrupt(f"{name} was cut off: it had {size} bytes, and has {found[number]}")


class SyncedMark:
    """The mark of an open database. Used by the thread that writes."""

    def __init__(self, path: str, db: Numbered) -> None:
        """Raise Corrupt if the database lacks writes that were synced."""
        self._path = path
        self._db = db
        self._logs = _sizes(path)
        noted, sequence = _load(path), db.latest_sequence_number()
        if noted is not None and sequence < noted.sequence:
            raise Corrupt(
                f"{path} lost its last {noted.sequence - sequence} changes, which were synced: "
                "check the disk"
            )
        self._file: int | None = None
        with suppress(OSError):  # the disk is full: without a mark, less is noticed
            self._file = os.open(f"{path}/{MARK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            self._save(Reached(sequence, self._logs), sync=True)

    def sync(self) -> None:
        """Sync everything that was written, and record it."""
        begun_s, reached = perf_counter(), self._reached()
        self._db.flush_wal(True)
        note_sync(begun_s)
        with suppress(OSError):  # an older mark is true as well
            self._save(reached)

    def _reached(self) -> Reached:
        """Return what the database has now."""
        with suppress(OSError):  # the directory is gone
            newest = max(self._logs, default=0)
            size = os.stat(_name(self._path, newest)).st_size
            if size != self._logs.get(newest):
                self._logs[newest] = size
            else:  # the last write went to another log
                self._logs = _sizes(self._path)
        return Reached(self._db.latest_sequence_number(), self._logs)

    def close(self, sequence: int | None = None) -> None:
        """Called when the database was closed. `sequence` is that of its last write, which was
        synced before that; None: unknown."""
        if self._file is None:
            return
        with suppress(OSError):
            if sequence is not None:
                self._save(Reached(sequence, _sizes(self._path), _manifest(self._path)), sync=True)
        os.close(self._file)
        self._file = None

    def _save(self, reached: Reached, *, sync: bool = False) -> None:
        if self._file is None:
            return
        newest = sorted(reached.logs.items())[-_LOGS_MAX:]
        head = _HEAD.pack(_VERSION, len(newest), reached.sequence)
        logs = (_SIZE_OF_LOG.pack(*log) for log in newest)
        body = b"".join((head, *logs, reached.manifest.encode()))
        check = _CHECK.pack(crc32c(body), len(body))
        os.pwrite(self._file, (check + body).ljust(_BYTES, b"\0"), 0)
        if sync:
            os.fsync(self._file)


def _load(path: str) -> Reached | None:
    """Return what was noted; None if nothing was, or it cannot be read."""
    try:
        with open(f"{path}/{MARK}", "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    try:
        return _decode(data)
    except (struct.error, ValueError):
        logger.error("%s/%s is damaged: a log that was cut off may go unnoticed", path, MARK)
        return None


def _decode(data: bytes) -> Reached:
    crc, size = _CHECK.unpack_from(data)
    body = data[_CHECK.size : _CHECK.size + size]
    version, count, sequence = _HEAD.unpack_from(body)
    if version != _VERSION or crc != crc32c(body):
        raise ValueError("it does not match its checksum")
    names_at = _HEAD.size + count * _SIZE_OF_LOG.size
    logs = dict(_SIZE_OF_LOG.iter_unpack(body[_HEAD.size : names_at]))
    return Reached(sequence, logs, body[names_at:].decode())


def _sizes(path: str) -> dict[int, int]:
    """Return the sizes of the logs by number."""
    sizes = {}
    for name in os.listdir(path):
        if name.endswith(_LOG):
            with suppress(FileNotFoundError):  # removed meanwhile
                sizes[int(name.removesuffix(_LOG))] = os.stat(f"{path}/{name}").st_size
    return sizes


def _name(path: str, number: int) -> str:
    return f"{path}/{number:06d}{_LOG}"


def _manifest(path: str) -> str:
    """Return the name of the MANIFEST in use."""
    try:
        with open(f"{path}/CURRENT", encoding="ascii", errors="replace") as file:
            return file.read(_NAME_MAX).strip()
    except FileNotFoundError:
        return ""
