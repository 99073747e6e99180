"""A MetaStore in one SQLite file: the embedded default.

WAL with synchronous=FULL: a swap that returned survives a power loss. The file is locked for
this process alone, so that two metadata repositories never run on one directory. SQLite blocks;
every call runs in the worker handed in.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Final, TypeVar

from loomlog.errors import Corrupt, LoomError, Unavailable, VersionMismatch
from loomlog.metadata.store import (
    Change,
    Changed,
    Fence,
    FencedStore,
    MetaStore,
    Unwatch,
    Versioned,
    Watchers,
    conflict,
    fence_fell,
)
from loomlog.storage.files import Worker

T = TypeVar("T")

FORMAT: Final = 1  # SQLite's user_version
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS items"
    " (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS last (version INTEGER NOT NULL)",
    "INSERT INTO last SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM last)",
    f"PRAGMA user_version = {FORMAT}",
)


class SqliteStore:
    """Made by `open`."""

    def __init__(self, path: str, worker: Worker, connection: sqlite3.Connection) -> None:
        self._path = path
        self._worker = worker
        self._connection = connection
        self._watchers = Watchers()

    @classmethod
    async def open(cls, path: str, worker: Worker) -> SqliteStore:
        """Open or create. Corrupt if it is no database, Unavailable if another process has it."""
        connection = await _off_loop(worker, path, lambda: _connect(path))
        return cls(path, worker, connection)

    async def get(self, key: str) -> Versioned | None:
        return await self._run(lambda: _get(self._connection, key))

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        version = await self._run(lambda: _swap(self._connection, key, expected, value, fences))
        item = None if value is None else Versioned(value, version)
        self._watchers.tell(Change(key, item))
        return version

    async def list(self, prefix: str) -> dict[str, Versioned]:
        return await self._run(lambda: _list(self._connection, prefix))

    def watch(self, prefix: str, changed: Changed) -> Unwatch:
        return self._watchers.add(prefix, changed)

    def fenced(self, key: str, version: int) -> MetaStore:
        return FencedStore(self, Fence(key, version))

    async def last_version(self) -> int:
        return await self._run(lambda: _last_version(self._connection))

    async def raise_versions(self, version: int) -> None:
        """Every version given from now on is above this one."""
        await self._run(lambda: _raise_versions(self._connection, version))

    async def close(self) -> None:
        self._watchers.clear()
        await self._run(self._connection.close)

    async def _run(self, work: Callable[[], T]) -> T:
        return await _off_loop(self._worker, self._path, work)


async def _off_loop(worker: Worker, path: str, work: Callable[[], T]) -> T:
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    results: list[T] = []

    def finished(error: BaseException | None) -> None:
        if done.done():  # whoever waited was cancelled
            return
        if error is None:
            done.set_result(results[0])
        else:
            done.set_exception(_explained(error, path))

    worker.run([lambda: results.append(work())], finished)
    return await done


def _explained(error: BaseException, path: str) -> BaseException:
    if isinstance(error, LoomError) or not isinstance(error, sqlite3.Error):
        return error
    text = str(error)
    if "locked" in text:
        return Unavailable(
            f"{path} is in use by another process: stop that one or choose another directory"
        )
    if "not a database" in text or "malformed" in text:
        return Corrupt(f"{path} is not a usable SQLite database ({text}): restore it from a copy")
    return Unavailable(f"{path}: {text}")


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("BEGIN EXCLUSIVE")
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found not in (0, FORMAT):
        raise VersionMismatch(
            f"{path} has format {found}, this release reads {FORMAT}: use the release that wrote it"
        )
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute("COMMIT")


def _last_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT version FROM last").fetchone()[0])


def _raise_versions(connection: sqlite3.Connection, version: int) -> None:
    connection.execute("UPDATE last SET version = max(version, ?)", (version,))


def _get(connection: sqlite3.Connection, key: str) -> Versioned | None:
    row = connection.execute("SELECT value, version FROM items WHERE key = ?", (key,)).fetchone()
    return Versioned(*row) if row else None


def _list(connection: sqlite3.Connection, prefix: str) -> dict[str, Versioned]:
    rows = connection.execute(
        "SELECT key, value, version FROM items WHERE substr(key, 1, ?) = ? ORDER BY key",
        (len(prefix), prefix),
    )
    return {key: Versioned(value, version) for key, value, version in rows}


def _version_of(connection: sqlite3.Connection, key: str) -> int:
    item = _get(connection, key)
    return item.version if item else 0


def _swap(
    connection: sqlite3.Connection,
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
        version = _swap_inside(connection, key, expected, value)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return version


def _swap_inside(
    connection: sqlite3.Connection, key: str, expected: int, value: bytes | None
) -> int:
    found = _version_of(connection, key)
    if found != expected:
        raise conflict(key, expected, found)
    query = "UPDATE last SET version = version + 1 RETURNING version"
    version = int(connection.execute(query).fetchall()[0][0])
    if value is None:
        connection.execute("DELETE FROM items WHERE key = ?", (key,))
    else:
        connection.execute("REPLACE INTO items VALUES (?, ?, ?)", (key, value, version))
    return version
