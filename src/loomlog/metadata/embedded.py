"""The embedded form of metadata, offline: a directory with an SQLite file and a round log.

Only while no metadata repository runs on it: SQLite's lock sees to that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from loomlog.errors import AlreadyExists, NotFound
from loomlog.metadata import transfer
from loomlog.metadata.file_round_log import FileRoundLog
from loomlog.metadata.round_file import (
    FILE_BYTES,
    Record,
    RoundFile,
    creation,
    encode,
    sync_way_to,
)
from loomlog.metadata.sqlite import SqliteStore
from loomlog.metadata.transfer import Dump
from loomlog.storage.disk import RealFiles, ThreadWorker

_UNFINISHED = ".importing"


async def export(directory: str) -> Dump:
    """All that is there."""
    async with opened(directory) as store:
        worker = ThreadWorker(asyncio.get_running_loop())
        round_log = FileRoundLog.open(RealFiles(), rounds_in(directory), worker, create=False)
        try:
            rounds = tuple(round_log.read())
        finally:
            worker.close()
            round_log.close()
        return await transfer.dump(store, rounds, round_log.epoch - 1, directory)


async def fill(directory: str, dump: Dump) -> None:
    """Make the directory of an embedded metadata repository. It appears whole or not at all."""
    files, directory = RealFiles(), directory.rstrip("/")
    if files.exists(directory) and files.list(directory):
        raise AlreadyExists(f"{directory} is not empty: import into a new directory")
    unfinished = directory + _UNFINISHED
    if files.exists(unfinished):
        files.remove_tree(unfinished)
    files.make_directory(unfinished)
    write_rounds(unfinished, dump.rounds, dump.epoch)
    async with _store(unfinished) as store:
        await transfer.fill(store, dump)
    files.rename(unfinished, directory)
    sync_way_to(files, directory)


def has_rounds(directory: str) -> bool:
    rounds = rounds_in(directory)
    return RealFiles().exists(rounds) and bool(RealFiles().list(rounds))


def write_rounds(directory: str, records: Sequence[bytes], epoch: int) -> None:
    """Make the round log, which appears whole or not at all. Whoever opens it leads in a later
    epoch. Blocks."""
    files, rounds = RealFiles(), rounds_in(directory)
    files.make_directory(rounds)
    data = encode([Record(epoch, record) for record in records], 1)
    file = RoundFile.fresh(1, epoch, max(FILE_BYTES, 2 * len(data)))
    try:
        for step in creation(files, rounds, file, data):
            step()
    finally:
        file.close()
    sync_way_to(files, rounds)


def rounds_in(directory: str) -> str:
    return f"{directory}/rounds"


@asynccontextmanager
async def opened(directory: str) -> AsyncIterator[SqliteStore]:
    """The metadata that is there."""
    if not RealFiles().exists(_database_in(directory)):
        raise NotFound(f"there is no metadata in {directory}: give the --data of a vmr")
    async with _store(directory) as store:
        yield store


@asynccontextmanager
async def _store(directory: str) -> AsyncIterator[SqliteStore]:
    worker = ThreadWorker(asyncio.get_running_loop())
    try:
        store = await SqliteStore.open(_database_in(directory), worker)
        try:
            yield store
        finally:
            await store.close()
    finally:
        worker.close()


def _database_in(directory: str) -> str:
    return f"{directory}/metadata.sqlite"
