"""The copies on a storage node, besides their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from copyset_rig import a_batch
from memory_tables import MemoryLogs

from loomlog.config import NodeSettings
from loomlog.core.copyset.messages import (
    Delivered,
    Done,
    EpochEnd,
    FindBatch,
    FoundBatch,
    NodeAnswer,
    NodeRequest,
    Purge,
    Read,
    Refused,
    Release,
    Restore,
    Store,
    Stored,
    Trim,
)
from loomlog.core.copyset.record import Kind, Lsn, Record, make
from loomlog.core.copyset.storage import LogStanding
from loomlog.core.usage import UNKNOWN
from loomlog.errors import Unavailable
from loomlog.limits import MIB
from loomlog.net.turns import Turns
from loomlog.node.copyset.copies import SHARED_BYTES_MAX, Copies, LogCatchUp, bounded
from loomlog.node.copyset.epoch_store import EpochStoreClient
from loomlog.node.disks import Disks
from loomlog.node.workers import called_back
from loomlog.storage.disk import RealFiles
from loomlog.wire.link import Connection, Frame

LOG = 1
ME = 2
FOR_EVER_S = 100.0


def record(offset: int, epoch: int = 1) -> Record:
    return Record(make(epoch, offset), 1, Kind.DATA, 0, (ME, 3), 1, 0, 0, bytes(a_batch()))


class Attentive:
    """A connection whose peer reads everything at once."""

    congested = False
    reads_max = 8
    usage = UNKNOWN

    def __init__(self) -> None:
        self.turns = Turns(self)

    def when_writable(self, callback: Callable[[], None]) -> None:
        callback()


def test_an_answer_is_smaller_while_others_of_its_connection_are_looked_up() -> None:
    connection = Attentive()
    sizes: list[int] = []

    def look() -> None:
        read = bounded(cast(Connection, connection), Read(LOG, 1, 9, 4 * MIB))
        sizes.append(read.bytes_max)

    for _ in range(3):
        connection.turns.take(look)
    assert sizes == [4 * MIB, SHARED_BYTES_MAX, SHARED_BYTES_MAX]
    for _ in range(3):
        connection.turns.end()
    connection.turns.take(look)
    assert sizes[-1] == 4 * MIB


class TendedLogs(MemoryLogs):
    def __init__(self) -> None:
        super().__init__()
        self.tended: list[int] = []

    def tend(self, now_us: int) -> bool:
        self.tended.append(now_us)
        return False


class RecordedCatchUp(LogCatchUp):
    def __init__(self, copies: Copies) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        super().__init__(ME, copies, EpochStoreClient(nobody, lambda known: None), self._spawn_task)
        self.purges: list[tuple[int, Lsn]] = []

    def missed(self, log: int, lsn: Lsn) -> None:
        self.purges.append((log, lsn))

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.add(asyncio.ensure_future(work))


async def nobody(frame: Frame) -> Frame:
    raise Unavailable("there is no metadata repository")


class CopiesRig:
    def __init__(self, directory: Path, *, is_registered: bool = True) -> None:
        self.table = TendedLogs()
        settings = NodeSettings(
            node_id=ME, cluster_id="test", volumes=(str(directory),), metadata=(), listen=""
        )
        self._disks = Disks(settings, RealFiles(), open_store={"copyset": self._open_table})
        self._disks.open()
        epochs = EpochStoreClient(nobody, lambda known: None)
        [path] = self._disks.paths
        self.copies = Copies(ME, path, self._disks, epochs, lambda: 7, lambda _: None, lambda: None)
        if is_registered:
            self.copies.joined({})
        self.catch_up = RecordedCatchUp(self.copies)

    def _open_table(self, path: str) -> TendedLogs:
        Path(path).mkdir()
        return self.table

    async def ask(self, request: NodeRequest) -> NodeAnswer:
        answer: NodeAnswer = await called_back(partial(self.copies.ask, request, 1))
        if isinstance(request, Release):
            self.catch_up.released(request, 1, answer)
        return answer

    def wait(
        self, first: Lsn, wait_s: float = FOR_EVER_S
    ) -> tuple[asyncio.Future[NodeAnswer], Callable[[], None]]:
        answer: asyncio.Future[NodeAnswer] = asyncio.get_running_loop().create_future()
        read = Read(LOG, first, make(9, 9), MIB, everything=True)
        connection: Connection = Attentive()  # type: ignore[assignment]
        self.copies.wait(connection, read, 1, wait_s, answer.set_result)
        return answer, partial(self.copies.connection_closed, connection)

    def close(self) -> None:
        for task in self.catch_up.tasks:
            task.cancel()
        self.copies.stop()
        self._disks.close()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[CopiesRig]:
    made = CopiesRig(tmp_path)
    yield made
    made.close()


@pytest.fixture
async def new_rig(tmp_path: Path) -> AsyncIterator[CopiesRig]:
    """The node has not registered yet."""
    made = CopiesRig(tmp_path, is_registered=False)
    yield made
    made.close()


async def delivered(answer: asyncio.Future[NodeAnswer]) -> Delivered:
    found = await asyncio.wait_for(answer, 10)
    assert isinstance(found, Delivered)
    return found


async def test_a_read_that_has_something_to_tell_does_not_wait(rig: CopiesRig) -> None:
    assert await rig.ask(Store(LOG, record(1))) == Stored()
    await rig.ask(Release(LOG, make(1, 1)))
    answer, _ = rig.wait(make(1, 1))
    assert (await delivered(answer)).records == [record(1)]


async def test_a_read_waits_for_the_release(rig: CopiesRig) -> None:
    answer, _ = rig.wait(make(1, 1))
    await rig.ask(Store(LOG, record(1)))
    await rig.ask(Store(LOG, record(2)))
    assert not answer.done()
    await rig.ask(Release(LOG, make(1, 1)))
    assert (await delivered(answer)).records == [record(1)]


async def test_a_read_is_answered_with_nothing_when_its_time_is_over(rig: CopiesRig) -> None:
    answer, _ = rig.wait(make(1, 1), wait_s=0.01)
    found = await delivered(answer)
    assert not found.records
    assert found.next_lsn == make(1, 1)


async def test_a_read_learns_of_a_trim(rig: CopiesRig) -> None:
    answer, _ = rig.wait(make(1, 1))
    await rig.ask(Trim(LOG, make(1, 5)))
    found = await delivered(answer)
    assert found.trimmed == make(1, 5)
    assert found.next_lsn == make(1, 6)


async def test_a_read_that_was_ended_is_not_answered(rig: CopiesRig) -> None:
    answer, end = rig.wait(make(1, 1))
    other, _ = rig.wait(make(1, 1))
    end()
    await rig.ask(Store(LOG, record(1)))
    await rig.ask(Release(LOG, make(1, 1)))
    await delivered(other)
    assert not answer.done()


async def test_a_repeated_append_is_found_in_a_restored_copy(rig: CopiesRig) -> None:
    """The nodes that stored the record first may be away, or have left the nodeset."""
    restored = record(1)._replace(batch=bytes(a_batch(1, producer_id=5, sequence=3)))
    end = EpochEnd(1, lng=1, last=1, seal=1, wave=1)
    assert await rig.ask(Restore(LOG, restored, end, version=1)) == Stored()
    found = await rig.ask(FindBatch(LOG, producer_id=5, sequence=3))
    assert found == FoundBatch((restored.first,), certain=True)


async def test_a_node_that_was_away_is_told_to_learn_what_it_missed(rig: CopiesRig) -> None:
    await rig.ask(Store(LOG, record(1)))
    await rig.ask(Store(LOG, record(1, epoch=2)))
    answer, _ = rig.wait(make(1, 1))
    await rig.ask(Release(LOG, make(2, 1)))
    assert rig.catch_up.purges == [(LOG, make(2, 1))]
    assert await rig.ask(Purge(LOG, EpochEnd(1, 0, 1, 1, 1))) == Done()
    await rig.ask(Release(LOG, make(2, 1)))
    assert len(rig.catch_up.purges) == 1
    found = await delivered(answer)
    assert record(1) not in found.records


async def test_a_release_that_comes_before_the_node_registers_is_taken_later(
    new_rig: CopiesRig,
) -> None:
    """A sequencer sends it once."""
    for offset in (1, 2):
        new_rig.catch_up.release(Release(LOG, make(1, offset)), 1)
    new_rig.copies.joined({})
    for offset in (1, 2):
        await new_rig.ask(Store(LOG, record(offset)))
    answer, _ = new_rig.wait(make(1, 1))
    assert (await delivered(answer)).records == [record(1), record(2)]


async def test_a_release_of_another_log_is_not_tried_again(rig: CopiesRig) -> None:
    await rig.ask(Store(LOG, record(1)))
    rig.catch_up.release(Release(LOG, make(1, 1)), 2)
    [repeated] = rig.catch_up.tasks
    await asyncio.wait_for(repeated, 10)
    assert not rig.copies.standing(LOG).released


async def test_a_release_that_came_too_early_is_forgotten_with_its_log(new_rig: CopiesRig) -> None:
    new_rig.catch_up.release(Release(LOG, make(1, 1)), 1)
    new_rig.catch_up.forget(LOG)
    new_rig.copies.joined({})
    [repeated] = new_rig.catch_up.tasks
    await asyncio.wait_for(repeated, 10)
    assert new_rig.copies.standing(LOG) == LogStanding()


async def test_a_refused_request_is_answered_like_any_other(rig: CopiesRig) -> None:
    assert isinstance(await rig.ask(Store(LOG, record(0))), Refused)


async def test_the_store_is_tended(rig: CopiesRig) -> None:
    await rig.ask(Store(LOG, record(1)))  # comes behind it
    assert rig.table.tended == [7]


async def test_a_read_that_waits_is_answered_when_the_store_fails(rig: CopiesRig) -> None:
    await rig.ask(Store(LOG, record(1)))
    answer, _ = rig.wait(make(1, 2))
    store = rig.copies.volume.store
    assert store is not None
    store.fail(OSError("broken"))
    rig.copies.volume.volume_changed()
    assert isinstance(await asyncio.wait_for(answer, 10), Refused)
