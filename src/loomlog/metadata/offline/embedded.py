"""The embedded form of metadata, offline: a directory with an SQLite file and a round log.

It is used only while no metadata repository runs on it: SQLite's lock ensures that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count

from loomlog.errors import AlreadyExists
from loomlog.metadata.data_directory import database_in, has_rounds, rounds_in
from loomlog.metadata.offline import transfer
from loomlog.metadata.offline.transfer import Dump
from loomlog.metadata.rounds.round_files import (
    FILE_BYTES,
    FileRoundLog,
    RoundFile,
    StoredRound,
    creation,
    encode,
    sync_way_to,
)
from loomlog.metadata.store.sqlite import SqliteStore
from loomlog.storage.disk import RealFiles, ThreadWorker

_UNFINISHED = ".importing"


async def export(directory: str, *, skip_damaged: bool = False) -> Dump:
    """Return all metadata of a directory."""
    async with _store(directory, create=False, lenient=skip_damaged) as store:
        worker = ThreadWorker(asyncio.get_running_loop())
        round_log = FileRoundLog.open(RealFiles(), rounds_in(directory), worker, create=False)
        try:
            rounds = tuple(round_log.read())
        finally:
            worker.close()
            round_log.close()
        return await transfer.dump(
            store, rounds, round_log.epoch - 1, directory, skip_damaged=skip_damaged
        )


async def fill(directory: str, dump: Dump) -> None:
    """Create the directory of an embedded metadata repository atomically."""
    files, directory = RealFiles(), directory.rstrip("/")
    if files.exists(directory) and files.list(directory):
        raise AlreadyExists(f"{directory} is not empty: import into a new directory")
    unfinished = directory + _UNFINISHED
    if files.exists(unfinished):
        files.remove_tree(unfinished)
    files.make_directory(unfinished)
    write_rounds(unfinished, dump.rounds, dump.epoch)
    async with _store(unfinished, create=True) as store:
        await transfer.fill(store, dump)
    files.rename(unfinished, directory)
    sync_way_to(files, directory)


def write_rounds(directory: str, records: Sequence[bytes], epoch: int) -> None:
    """Create the round log atomically. Opening it begins a later epoch. Blocks."""
    files, rounds = RealFiles(), rounds_in(directory)
    files.make_directory(rounds)
    data = encode([StoredRound(epoch, record) for record in records], 1)
    file = RoundFile.fresh(1, epoch, max(FILE_BYTES, 2 * len(data)))
    try:
        for step in creation(files, rounds, file, data):
            step()
    finally:
        file.close()
    sync_way_to(files, rounds)


def replace_rounds(directory: str, records: Sequence[bytes], epoch: int) -> None:
    """Create a new round log, and keep the existing one under another name. Blocks."""
    files, rounds = RealFiles(), rounds_in(directory)
    if has_rounds(files, directory):
        names = (f"{rounds}.old-{number}" for number in count(1))
        files.rename(rounds, next(name for name in names if not files.exists(name)))
    write_rounds(directory, records, epoch)


@asynccontextmanager
async def opened(directory: str) -> AsyncIterator[SqliteStore]:
    """Open the metadata of a directory."""
    async with _store(directory, create=False) as store:
        yield store


@asynccontextmanager
async def _store(
    directory: str, *, create: bool, lenient: bool = False
) -> AsyncIterator[SqliteStore]:
    worker = ThreadWorker(asyncio.get_running_loop())
    try:
        store = await SqliteStore.open(
            database_in(directory), worker, create=create, lenient=lenient
        )
        try:
            yield store
        finally:
            await store.close()
    finally:
        worker.close()
