"""The promises of every RoundLog, whether it is a file or a quorum."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from quorum_rig import QuorumRig

from loomlog.errors import NotLeader
from loomlog.metadata.rounds import RoundLog
from loomlog.metadata.rounds.round_files import FileRoundLog
from loomlog.storage.disk import RealFiles, ThreadWorker

Open = Callable[[], Awaitable[RoundLog]]


class FileRig:
    """Opens the same file again and again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._opened: tuple[FileRoundLog, ThreadWorker] | None = None

    async def open(self) -> RoundLog:
        await self.close()
        worker = ThreadWorker(asyncio.get_running_loop())
        log = FileRoundLog.open(
            RealFiles(), str(self._directory), worker, create=True, file_bytes=1024
        )
        self._opened = log, worker
        return log

    async def close(self) -> None:
        if self._opened is not None:
            log, worker = self._opened
            worker.close()
            log.close()


@pytest.fixture(params=[FileRig, QuorumRig])
async def open_log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the same round log again and again; small enough to roll soon."""
    rig = request.param(tmp_path / "rounds")
    yield rig.open
    await rig.close()


async def append(
    log: RoundLog,
    record: bytes,
    when_done: Callable[[], object] = lambda: None,
    epoch: int | None = None,
) -> None:
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if error is None:
            when_done()
            durable.set_result(None)
        else:
            durable.set_exception(error)

    log.append(log.epoch if epoch is None else epoch, record, done)
    await durable


def begin(log: RoundLog) -> Callable[[bytes], Awaitable[None]]:
    """Begin with snapshots of all that is done, and return how to append: members that connect late
    are sent a snapshot."""
    records = list(log.read())
    log.begin(lambda: records)
    return lambda record: append(log, record, lambda: records.append(record))


async def test_a_new_one_is_empty(open_log: Open) -> None:
    log = await open_log()
    assert log.read() == []
    assert log.epoch == 1


async def test_records_come_back_in_order_after_a_restart(open_log: Open) -> None:
    store = begin(await open_log())
    for record in (b"one", b"", b"x" * 200):
        await store(record)
    assert (await open_log()).read() == [b"one", b"", b"x" * 200]


async def test_a_restart_goes_on_after_the_last_record(open_log: Open) -> None:
    for number in range(3):
        await begin(await open_log())(b"%d" % number)
    assert (await open_log()).read() == [b"0", b"1", b"2"]


async def test_records_are_done_in_the_order_of_their_appends(open_log: Open) -> None:
    log = await open_log()
    log.begin(list)
    order: list[int] = []
    all_done = asyncio.Event()

    def done(number: int, error: BaseException | None) -> None:
        assert error is None
        order.append(number)
        if number == 9:
            all_done.set()

    for number in range(10):
        log.append(log.epoch, b"r", lambda error, number=number: done(number, error))  # type: ignore[misc]
    await all_done.wait()
    assert order == list(range(10))


async def test_the_snapshot_and_what_follows_outlive_any_number_of_records(open_log: Open) -> None:
    log = await open_log()
    last = [b"none"]
    log.begin(lambda: [b"snapshot", *last])
    for number in range(200):
        record = b"%d" % number * 20
        await append(log, record, lambda record=record: last.__setitem__(0, record))  # type: ignore[misc]
    found = (await open_log()).read()
    assert found[0] == b"snapshot"
    numbers = [int(record[: len(record) // 20]) for record in found[1:]]
    assert numbers == list(range(numbers[0], 200))


async def test_a_record_and_a_snapshot_larger_than_a_file_fit(open_log: Open) -> None:
    log = await open_log()
    records = [b"small", b"L" * 5000, b"small again", b"M" * 5000, b"small as ever"]
    done: list[bytes] = []
    log.begin(lambda: done)
    for record in records:
        await append(log, record, lambda record=record: done.append(record))  # type: ignore[misc]
    assert (await open_log()).read() == records


async def test_an_older_epoch_is_refused_also_after_a_restart(open_log: Open) -> None:
    log = await open_log()
    await begin(log)(b"of the first")
    first = log.epoch
    log = await open_log()
    begin(log)
    assert log.epoch > first
    with pytest.raises(NotLeader, match=f"epoch {first} is over"):
        await append(log, b"too late", epoch=first)
    assert (await open_log()).read() == [b"of the first"]


async def test_the_epoch_outlives_a_snapshot_of_nothing(open_log: Open) -> None:
    log = await open_log()
    log.begin(list)
    for _ in range(50):
        await append(log, b"x" * 100)
    assert (await open_log()).epoch > log.epoch
