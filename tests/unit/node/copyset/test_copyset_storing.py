"""What a storage node does with its logs besides answering."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from loomlog.core.copyset.lsn import Lsn, make
from loomlog.core.copyset.messages import (
    Delivered,
    Done,
    EpochEnd,
    NodeAnswer,
    NodeRequest,
    Purge,
    Read,
    Refused,
    Release,
    Store,
    Stored,
    Trim,
)
from loomlog.core.copyset.record import Kind, Record
from loomlog.limits import MIB
from loomlog.node.copyset.storing import Storing
from loomlog.storage.disk import ThreadWorker
from loomlog.storage.logsdb.memory_logs import MemoryLogs
from loomlog.storage.logsdb.store import LogsStore

LOG = 1
ME = 2
FOR_EVER_S = 100.0


def record(offset: int, epoch: int = 1) -> Record:
    return Record(make(epoch, offset), 1, Kind.DATA, 0, (ME, 3), 1, 0, 0, b"batch")


class TendedLogs(MemoryLogs):
    def __init__(self) -> None:
        super().__init__()
        self.tended: list[int] = []

    def tend(self, now_us: int) -> bool:
        self.tended.append(now_us)
        return False


class Rig:
    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.table = TendedLogs()
        self.purges: list[tuple[int, Lsn]] = []
        self._workers = [ThreadWorker(loop, name) for name in ("commits", "look-ups", "upkeep")]
        commits, look_ups, upkeep = self._workers
        store = LogsStore(ME, self.table, commits, look_ups, upkeep, lambda: 1 << 40)
        self.storing = Storing(store, lambda log, lsn: self.purges.append((log, lsn)), lambda: 7)
        self.storing.start()

    async def ask(self, request: NodeRequest) -> NodeAnswer:
        answer: asyncio.Future[NodeAnswer] = asyncio.get_running_loop().create_future()
        self.storing.ask(request, answer.set_result)
        return await answer

    def wait(
        self, first: Lsn, wait_s: float = FOR_EVER_S
    ) -> tuple[asyncio.Future[NodeAnswer], Callable[[], None]]:
        answer: asyncio.Future[NodeAnswer] = asyncio.get_running_loop().create_future()
        read = Read(LOG, first, make(9, 9), MIB, everything=True)
        return answer, self.storing.wait(read, wait_s, answer.set_result)

    def close(self) -> None:
        self.storing.stop()
        for worker in self._workers:
            worker.close()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    made.close()


async def delivered(answer: asyncio.Future[NodeAnswer]) -> Delivered:
    found = await asyncio.wait_for(answer, 10)
    assert isinstance(found, Delivered)
    return found


async def test_a_read_that_has_something_to_tell_does_not_wait(rig: Rig) -> None:
    assert await rig.ask(Store(LOG, record(1))) == Stored()
    await rig.ask(Release(LOG, make(1, 1)))
    answer, _ = rig.wait(make(1, 1))
    assert (await delivered(answer)).records == [record(1)]


async def test_a_read_waits_for_the_release(rig: Rig) -> None:
    answer, _ = rig.wait(make(1, 1))
    await rig.ask(Store(LOG, record(1)))
    await rig.ask(Store(LOG, record(2)))
    assert not answer.done()
    await rig.ask(Release(LOG, make(1, 1)))
    assert (await delivered(answer)).records == [record(1)]


async def test_a_read_is_answered_with_nothing_when_its_time_is_over(rig: Rig) -> None:
    answer, _ = rig.wait(make(1, 1), wait_s=0.01)
    found = await delivered(answer)
    assert not found.records
    assert found.next_lsn == make(1, 1)


async def test_a_read_learns_of_a_trim(rig: Rig) -> None:
    answer, _ = rig.wait(make(1, 1))
    await rig.ask(Trim(LOG, make(1, 5)))
    found = await delivered(answer)
    assert found.trimmed == make(1, 5)
    assert found.next_lsn == make(1, 6)


async def test_a_read_that_was_ended_is_not_answered(rig: Rig) -> None:
    answer, end = rig.wait(make(1, 1))
    other, _ = rig.wait(make(1, 1))
    end()
    await rig.ask(Store(LOG, record(1)))
    await rig.ask(Release(LOG, make(1, 1)))
    await delivered(other)
    assert not answer.done()


async def test_a_node_that_was_away_is_told_to_learn_what_it_missed(rig: Rig) -> None:
    await rig.ask(Store(LOG, record(1)))
    await rig.ask(Store(LOG, record(1, epoch=2)))
    answer, _ = rig.wait(make(1, 1))
    await rig.ask(Release(LOG, make(2, 1)))
    assert rig.purges == [(LOG, make(2, 1))]
    assert await rig.ask(Purge(LOG, EpochEnd(1, 0, 1, 1, 1))) == Done()
    await rig.ask(Release(LOG, make(2, 1)))
    assert len(rig.purges) == 1
    found = await delivered(answer)
    assert record(1) not in found.records


async def test_a_refused_request_is_answered_like_any_other(rig: Rig) -> None:
    assert isinstance(await rig.ask(Store(LOG, record(0))), Refused)


async def test_the_store_is_tended(rig: Rig) -> None:
    await rig.ask(Release(LOG, make(1, 1)))  # comes behind it
    assert rig.table.tended == [7]
