"""A MetaStore in one SQLite file: the embedded default.

It uses WAL with synchronous=FULL, so a swap that returned survives a power loss. The file is locked
exclusively, so that two metadata repositories never run on one directory. SQLite blocks, so every
call runs in the given worker.

SQLite has no checksums. Every value carries one (checked_value.py), and the table `last` has one of
all items together. Opening verifies everything: a file that is damaged anywhere is refused, because
a missing item would be mistaken for a deleted one.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import sqlite3
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from crc32c import crc32c

from loomlog.errors import Corrupt, NotFound, Unavailable, VersionMismatch
from loomlog.metadata.store.checked_value import checksum_in, is_whole, pack, versioned
from loomlog.metadata.store.contract import (
    Changed,
    Fence,
    ItemChange,
    StoredItem,
    StoreFailed,
    Unwatch,
    Watchers,
    conflict,
    fence_fell,
)
from loomlog.metadata.store.sqlite_wal import damage_in
from loomlog.storage.disk import FILE_MODE
from loomlog.storage.files import Worker

logger = logging.getLogger(__name__)

T = TypeVar("T")

FORMAT: Final = 3  # SQLite's user_version
_SCHEMA: Final = (
    "CREATE TABLE items"
    " (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE last"
    " (version INTEGER NOT NULL, digest INTEGER NOT NULL, checksum INTEGER NOT NULL)",
    f"PRAGMA user_version = {FORMAT}",
)
_LAST: Final = struct.Struct("<QI")
_SQLITE_LOCK: Final = (
    510,
    0x40000002,
)  # size and first byte of the range that SQLite locks in a file


class _Last(NamedTuple):
    """The row of the table `last`, about all items."""

    version: int  # the last one that was assigned
    digest: int  # XOR of the checksums of all items, which detects missing and old ones

    @property
    def checksum(self) -> int:
        return int(crc32c(_LAST.pack(*self)))


class SqliteStore:
    """A MetaStore in an SQLite file. Created by `open`."""

    def __init__(self, path: str, worker: Worker, connection: sqlite3.Connection) -> None:
        self._path = path
        self._worker = worker
        self._connection = connection
        self._watchers = Watchers()
        self.trouble = ""  # why the last writes failed

    @classmethod
    async def open(
        cls, path: str, worker: Worker, *, create: bool = True, lenient: bool = False
    ) -> SqliteStore:
        """Open the file, or create it (only if `create`, otherwise NotFound). Raise Corrupt if it
        is damaged (unless `lenient` and only single records are), Unavailable if it is in use."""
        connection = await _off_loop(
            worker, path, lambda: _connect(path, create=create, lenient=lenient)
        )
        return cls(path, worker, connection)

    async def get(self, key: str) -> StoredItem | None:
        return await self._run(lambda: _get(self._connection, key))

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        version = await self._run(
            lambda: _swap(self._connection, self._path, key, expected, value, fences)
        )
        if self.trouble:
            logger.warning("%s can be written again", self._path)
            self.trouble = ""
        item = None if value is None else StoredItem(value, version)
        self._watchers.tell(ItemChange(key, item))
        return version

    async def list(self, prefix: str) -> dict[str, StoredItem]:
        return await self._run(lambda: _list(self._connection, prefix))

    def watch(self, prefix: str, changed: Changed) -> Unwatch:
        return self._watchers.add(prefix, changed)

    async def last_version(self) -> int:
        return await self._run(lambda: _last(self._connection, self._path).version)

    async def raise_versions(self, version: int) -> None:
        """Start all later versions above this one."""
        await self._run(lambda: _raise_versions(self._connection, self._path, version))

    async def close(self) -> None:
        self._watchers.clear()
        await self._run(self._connection.close)

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await _off_loop(self._worker, self._path, work)
        except StoreFailed as error:
            if not self.trouble:
                logger.error("%s", error)
            self.trouble = str(error)
            raise


async def _off_loop(worker: Worker, path: str, work: Callable[[], T]) -> T:
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    results: list[T] = []

    def finished(error: BaseException | None) -> None:
        if done.done():  # the caller was cancelled
            return
        if error is None:
            done.set_result(results[0])
        else:
            done.set_exception(_explained(error, path))

    worker.run([lambda: results.append(work())], finished)
    return await done


def _explained(error: BaseException, path: str) -> BaseException:
    if isinstance(error, UnicodeDecodeError):  # SQLite quotes a schema that is no longer text
        return _damaged(path, "its schema cannot be read")
    if not isinstance(error, sqlite3.Error):
        return error
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable(
            f"{path} is in use by another process: stop that one or choose another directory"
        )
    if code == sqlite3.SQLITE_READONLY:
        return StoreFailed(
            f"{path} cannot be written: check its permissions and its file system; if those are "
            "right, its header is damaged, and it must be restored from a copy"
        )
    if code in _NOT_DAMAGE:
        return StoreFailed(f"{path} cannot be written: {error}; free space, or repair its disk")
    return _damaged(path, f"SQLite says: {error}")


_NOT_DAMAGE: Final = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
)


def _damaged(path: str, what: str) -> Corrupt:
    return Corrupt(
        f"{path} is damaged ({what}): restore the file from a copy, or a directory from an export "
        "with `loom metadata import`"
    )


# ---- opening


def _connect(path: str, *, create: bool, lenient: bool) -> sqlite3.Connection:
    if not create and not Path(path).exists():
        raise _nothing_in(path)
    had_wal = _check_wal(path)
    with suppress(OSError):  # SQLite's message is better
        Path(path).touch(mode=FILE_MODE)  # it has secrets
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    # A key that is no longer text must not prevent listing the others; its checksum is wrong.
    connection.text_factory = lambda text: text.decode(errors="replace")
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cell_size_check = ON")
        _prepare(connection, path, create=create)
        _check(connection, path, lenient=lenient)
        if had_wal:
            _clear_wal(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_wal(path: str) -> bool:
    """Return whether there is a log; raise Corrupt if SQLite would silently lose transactions."""
    try:
        data = Path(f"{path}-wal").read_bytes()
    except OSError:
        return False
    if (what := damage_in(data)) and not _is_in_use(path):
        raise _damaged(path, what)
    return True


def _clear_wal(connection: sqlite3.Connection) -> None:
    """Remove torn frames, which `_check_wal` could not distinguish from damage."""
    with suppress(sqlite3.OperationalError):  # such as a full disk
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _is_in_use(path: str) -> bool:
    """Return whether another process has SQLite's lock; then its log is changing."""
    with suppress(OSError), open(path, "rb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, *_SQLITE_LOCK)
        except OSError:
            return True
    return False


def _prepare(connection: sqlite3.Connection, path: str, *, create: bool) -> None:
    connection.execute("BEGIN EXCLUSIVE")
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found == 0 and not connection.execute("SELECT 1 FROM sqlite_master").fetchall():
        if not create:
            raise _nothing_in(path)
        _create(connection)
    elif found != FORMAT:
        if _is_sound(connection, path):
            raise _damaged(path, f"its header says format {found}, but its content has {FORMAT}")
        raise VersionMismatch(
            f"{path} has format {found}, this release reads {FORMAT}: use the release that wrote it"
        )
    connection.execute("COMMIT")


def _is_sound(connection: sqlite3.Connection, path: str) -> bool:
    """Return whether the content is in the format of this release."""
    try:
        _check(connection, path, lenient=False)
    except Exception:  # any effect of another format
        return False
    return True


def _nothing_in(path: str) -> NotFound:
    return NotFound(f"{path} holds no metadata: give the --data of a vmr")


def _create(connection: sqlite3.Connection) -> None:
    for statement in _SCHEMA:
        connection.execute(statement)
    last = _Last(0, 0)
    connection.execute("INSERT INTO last VALUES (?, ?, ?)", (*last, last.checksum))


def _check(connection: sqlite3.Connection, path: str, *, lenient: bool) -> None:
    """Raise Corrupt unless the whole file is intact. If `lenient`, single records may be damaged,
    but none may be missing."""
    for (found,) in connection.execute("PRAGMA integrity_check(1)"):
        if found != "ok":
            raise _damaged(path, f"SQLite says: {' '.join(found.split())}")
    digest, damaged = 0, []
    for key, stored, version in connection.execute("SELECT key, value, version FROM items"):
        digest ^= checksum_in(stored)
        if not is_whole(key, stored, version):
            damaged.append(repr(key))
    if damaged and not lenient:
        raise _damaged(path, f"its records {', '.join(damaged[:5])} have wrong checksums")
    if digest != _last(connection, path).digest:
        raise _damaged(path, "records are missing, or older than others")


# ---- items


def _last(connection: sqlite3.Connection, path: str) -> _Last:
    for *fields, checksum in connection.execute("SELECT version, digest, checksum FROM last"):
        try:
            last = _Last(*fields)
            if last.checksum == checksum:
                return last
        except (TypeError, struct.error):
            pass
    raise _damaged(path, "its table `last` has a wrong checksum")


def _write_last(connection: sqlite3.Connection, last: _Last) -> None:
    connection.execute(
        "UPDATE last SET version = ?, digest = ?, checksum = ?", (*last, last.checksum)
    )


def _raise_versions(connection: sqlite3.Connection, path: str, version: int) -> None:
    last = _last(connection, path)
    _write_last(connection, last._replace(version=max(last.version, version)))


def _get(connection: sqlite3.Connection, key: str) -> StoredItem | None:
    row = _row(connection, key)
    return versioned(key, *row, covered=row[1]) if row else None


def _row(connection: sqlite3.Connection, key: str) -> tuple[Any, int] | None:
    query = "SELECT value, version FROM items WHERE key = ?"
    found: tuple[Any, int] | None = connection.execute(query, (key,)).fetchone()
    return found


def _list(connection: sqlite3.Connection, prefix: str) -> dict[str, StoredItem]:
    rows = connection.execute(
        "SELECT key, value, version FROM items WHERE substr(key, 1, ?) = ? ORDER BY key",
        (len(prefix), prefix),
    )
    return {key: versioned(key, stored, version, covered=version) for key, stored, version in rows}


def _version_of(connection: sqlite3.Connection, key: str) -> int:
    row = _row(connection, key)
    return row[1] if row else 0


def _swap(
    connection: sqlite3.Connection,
    path: str,
    key: str,
    expected: int,
    value: bytes | None,
    fences: tuple[Fence, ...],
) -> int:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for fence in fences:
            if _version_of(connection, fence.key) != fence.version:
                raise fence_fell(fence, _version_of(connection, fence.key))
        version = _swap_inside(connection, path, key, expected, value)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return version


def _swap_inside(
    connection: sqlite3.Connection, path: str, key: str, expected: int, value: bytes | None
) -> int:
    row = _row(connection, key)
    stored, found = row or (None, 0)
    if found != expected:
        raise conflict(key, expected, found)
    last = _last(connection, path)
    version, digest = last.version + 1, last.digest
    if stored is not None:
        digest ^= checksum_in(stored)
    if value is None:
        connection.execute("DELETE FROM items WHERE key = ?", (key,))
    else:
        written = pack(key, value, version)
        digest ^= checksum_in(written)
        connection.execute("REPLACE INTO items VALUES (?, ?, ?)", (key, written, version))
    _write_last(connection, _Last(version, digest))
    return version
