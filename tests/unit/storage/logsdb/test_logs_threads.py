"""The store of logs with threads of its own: commits, look-ups and upkeep side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from logsdb_rig import LOG, ME, SECOND, SMALL, record

from loomlog.core.copyset.messages import (
    Delivered,
    NodeAnswer,
    NodeRequest,
    Read,
    Release,
    Store,
    Stored,
    Trim,
)
from loomlog.core.copyset.record import make, offset_of
from loomlog.limits import MIB
from loomlog.storage.disk import ThreadWorker
from loomlog.storage.logsdb.rocks_logs import RocksLogs
from loomlog.storage.logsdb.store import LogsStore


class ThreadedStore:
    """A store whose workers are threads."""

    def __init__(self, path: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._table = RocksLogs(path, 0, SMALL)
        names = ("commits", "look-ups", "upkeep")
        self._workers = [ThreadWorker(self._loop, name) for name in names]
        commits, look_ups, upkeep = self._workers
        self.store = LogsStore(ME, self._table, commits, look_ups, upkeep)

    async def ask(self, request: NodeRequest) -> NodeAnswer:
        answer: asyncio.Future[NodeAnswer] = self._loop.create_future()
        self.store.ask(request, answer.set_result)
        return await answer

    async def read(self, first: int, last: int) -> Delivered:
        request = Read(LOG, make(1, first), make(1, last), MIB, everything=True)
        found = await self.ask(request)
        assert isinstance(found, Delivered)
        return found

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._table.close()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[ThreadedStore]:
    opened = ThreadedStore(str(tmp_path / "db"))
    yield opened
    opened.close()


async def test_what_was_stored_at_once_is_read_in_order(running: ThreadedStore) -> None:
    stored = [record(offset, at_s=offset / 10, batch=bytes(500)) for offset in range(1, 400)]
    shuffled = Random(1).sample(stored, len(stored))
    for part in range(4):
        asked = [running.ask(Store(LOG, each)) for each in shuffled[part::4]]
        assert await asyncio.gather(*asked) == [Stored()] * len(asked)
        running.store.tend((part + 1) * 10 * SECOND)
    await running.ask(Release(LOG, make(1, 400)))
    found = await running.read(1, 400)
    assert list(found.records) == stored


async def test_readers_miss_nothing_while_partitions_come_and_go(running: ThreadedStore) -> None:
    """An answer without a trim has every record, which is how readers detect a loss."""
    last = 300

    async def write() -> None:
        for offset in range(1, last + 1):
            await running.ask(Store(LOG, record(offset, at_s=offset, batch=bytes(100))))
            await running.ask(Release(LOG, make(1, offset)))
            if offset % 10 == 0:
                running.store.tend(offset * SECOND)
                await running.ask(Trim(LOG, make(1, max(1, offset - 15))))

    writing = asyncio.create_task(write())
    reads = 0
    while not writing.done():
        found = await running.read(1, last)
        offsets = [each.offset for each in found.records]
        assert offsets == list(range(offset_of(found.trimmed) + 1, offset_of(found.released) + 1))
        reads += 1
    await writing
    assert reads > 10
