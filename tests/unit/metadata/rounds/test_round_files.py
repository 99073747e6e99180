"""The file of rounds: group commit, torn tails, corruption, rolling over a crash."""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from pathlib import Path

import pytest
from hand_worker import HandWorker

from loomlog.errors import Corrupt, LoomError
from loomlog.metadata.rounds.round_files import FileRoundLog
from loomlog.storage.disk import RealFiles
from loomlog.testing.sim.disk import SimDisk
from loomlog.testing.sim.world import World

FILE_BYTES = 4096


def open_log(directory: Path, worker: HandWorker, file_bytes: int = FILE_BYTES) -> FileRoundLog:
    return FileRoundLog.open(
        RealFiles(), str(directory), worker, create=True, file_bytes=file_bytes
    )


def the_file(directory: Path) -> Path:
    (path,) = directory.iterdir()
    return path


def write(directory: Path, *jobs: list[bytes]) -> list[int]:
    """Append the records of each job together; where each job ends in the file."""
    worker = HandWorker()
    log = open_log(directory, worker)
    log.begin(list)
    ends = []
    for job in jobs:
        for record in job:
            log.append(log.epoch, record, lambda error: None)
        while worker.jobs:
            worker.work()
        content = the_file(directory).read_bytes()
        ends.append(len(content.rstrip(b"\0")))
    log.close()
    return ends


def read(directory: Path) -> list[bytes]:
    log = open_log(directory, HandWorker())
    found = log.read()
    log.close()
    return found


async def test_one_job_is_under_way_and_the_next_takes_all_that_came_meanwhile(
    tmp_path: Path,
) -> None:
    worker = HandWorker()
    log = open_log(tmp_path, worker)
    log.begin(list)
    done: list[int] = []
    for number in range(5):
        log.append(1, b"%d" % number, lambda error, number=number: done.append(number))  # type: ignore[misc]
    assert len(worker.jobs) == 1
    worker.work()
    assert done == [0]
    assert len(worker.jobs) == 1
    worker.work()
    assert done == [0, 1, 2, 3, 4]
    assert not worker.jobs
    log.close()


async def test_nothing_is_done_before_it_is_synced(tmp_path: Path) -> None:
    worker = HandWorker()
    log = open_log(tmp_path, worker)
    log.begin(list)
    done: list[BaseException | None] = []
    log.append(1, b"x", done.append)
    worker.crash_after(1)  # written, not synced
    assert done == []
    log.close()


async def test_a_file_that_was_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """Files have their full size from the start: no crash makes one shorter."""
    write(tmp_path, [b"one"], [b"two" * 30], [b"three" * 30])
    path = the_file(tmp_path)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 13):
        path.write_bytes(whole[:cut])
        with pytest.raises(Corrupt, match=rf"{path.name}.*loom metadata rebuild"):
            read(tmp_path)
        assert path.read_bytes() == whole[:cut], "nothing is changed"


@pytest.mark.parametrize("filling", [b"\0", b"\xa5"])
async def test_a_tail_torn_at_every_byte_is_cut_and_written_again(
    tmp_path: Path, filling: bytes
) -> None:
    before, end = write(tmp_path, [b"one"], [b"two" * 30])
    path = the_file(tmp_path)
    whole = path.read_bytes()
    begin = -(-before // 64) * 64
    for torn in range(begin, end):
        path.write_bytes(whole[:torn] + filling * (end - torn) + whole[end:])
        assert read(tmp_path) == [b"one"], torn
        write(tmp_path, [b"new"])
        assert read(tmp_path) == [b"one", b"new"], torn


async def test_a_torn_tail_stays_doubtful_until_nodes_have_confirmed_it(tmp_path: Path) -> None:
    """The next start found zeros, and showed a tail that nodes might know to be higher."""
    directory = tmp_path / "rounds"
    write(directory, [b"one"], [b"two" * 30])
    path = the_file(directory)
    path.write_bytes(path.read_bytes().replace(b"two", b"tow", 1))
    worker = HandWorker()
    for _ in range(2):
        log = open_log(directory, worker)
        assert log.is_doubtful
        assert log.read() == [b"one"]
        log.close()
    log = open_log(directory, worker)
    log.trust()
    worker.work()
    assert not log.is_doubtful
    log.close()
    log = open_log(directory, worker)
    assert not log.is_doubtful
    log.close()


async def test_remains_of_a_torn_job_never_come_back(tmp_path: Path) -> None:
    """The first record of a job is lost, the second reached the disk: neither is durable, and the
    second must not follow on another first one later."""
    worker = HandWorker()
    log = open_log(tmp_path, worker)
    log.begin(list)
    log.append(1, b"zero", lambda error: None)
    log.append(1, b"a" * 20, lambda error: None)
    log.append(1, b"b" * 20, lambda error: None)
    worker.work()
    worker.crash_after(1)
    log.close()
    path = the_file(tmp_path)
    content = bytearray(path.read_bytes())
    at = content.index(b"a" * 20)
    content[at] ^= 1
    path.write_bytes(content)
    assert read(tmp_path) == [b"zero"]
    write(tmp_path, [b"c" * 20])
    assert read(tmp_path) == [b"zero", b"c" * 20]


async def test_a_broken_record_before_later_ones_is_corruption_that_is_named(
    tmp_path: Path,
) -> None:
    write(tmp_path, [b"one"], [b"two"], [b"three"], [b"four"])
    path = the_file(tmp_path)
    whole = path.read_bytes()
    for text, named in (
        (b"two", "record 2 is damaged .from byte 128 on"),
        (b"three", "record 3 is damaged .from byte 192 on"),
    ):
        damaged = bytearray(whole)
        damaged[damaged.index(text)] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(Corrupt, match=f"{path.name}: {named}"):
            read(tmp_path)
        assert path.read_bytes() == damaged, "nothing is changed"


@pytest.mark.parametrize("records", [1, 20])
async def test_a_flipped_bit_costs_at_most_the_last_job(tmp_path: Path, records: int) -> None:
    """Damage of the last job alone looks like a torn write; reports of nodes reveal it then."""
    jobs = [[b"%d" % number] for number in range(records)] + [[b"last", b"job"]]
    write(tmp_path, *jobs)
    path = the_file(tmp_path)
    whole = path.read_bytes()
    expected = [record for job in jobs for record in job]
    for bit in range(0, len(whole.rstrip(b"\0")) * 8, 11):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            found = read(tmp_path)
        except LoomError:
            continue
        assert found in (expected, expected[:-1], expected[:-2]), bit


async def test_a_file_of_rounds_under_another_name_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [b"one"])
    the_file(tmp_path).rename(tmp_path / "rounds-00000009.log")
    with pytest.raises(Corrupt, match="is file 1 of the rounds"):
        read(tmp_path)


async def test_a_damaged_file_header_is_corruption(tmp_path: Path) -> None:
    write(tmp_path, [b"one"])
    path = the_file(tmp_path)
    whole = path.read_bytes()
    for at in (0, 9, 20, 30):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(Corrupt, match=path.name):
            read(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(Corrupt, match=path.name):
        read(tmp_path)


async def test_a_lost_round_log_of_a_known_cluster_is_not_begun_anew(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="no round log"):
        FileRoundLog.open(RealFiles(), str(tmp_path / "rounds"), HandWorker(), create=False)


async def test_a_full_file_gives_way_to_a_new_one(tmp_path: Path) -> None:
    worker = HandWorker()
    log = open_log(tmp_path, worker, file_bytes=256)
    log.begin(lambda: [b"snapshot"])
    for number in range(4):
        log.append(1, b"%d" % number, lambda error: None)
        worker.work()
    log.close()
    assert the_file(tmp_path).name == "rounds-00000002.log"
    assert read(tmp_path) == [b"snapshot", b"3"]


@pytest.mark.parametrize("steps", range(6))
async def test_a_crash_at_any_step_of_a_roll_keeps_what_was_done(
    tmp_path: Path, steps: int
) -> None:
    worker = HandWorker()
    log = open_log(tmp_path, worker, file_bytes=256)
    log.begin(lambda: [b"0", b"1", b"2"])
    for number in range(3):
        log.append(1, b"%d" % number, lambda error: None)
        worker.work()
    log.append(1, b"3", lambda error: None)
    assert len(worker.jobs[0][0]) == 5
    worker.crash_after(steps)
    found = read(tmp_path)
    assert found[:3] == [b"0", b"1", b"2"]
    assert len(list(tmp_path.iterdir())) == 1
    log.close()


class Killed(Exception):  # noqa: N818 - an event, not an error
    pass


@pytest.mark.parametrize("change", range(1, 40))
async def test_what_a_killed_process_left_unsynced_is_relied_on_only_once_it_holds(
    change: int,
) -> None:
    """The process is killed at any change, another one continues, and then the power fails, too."""
    disk = SimDisk(World(change), "host")

    def opened() -> tuple[FileRoundLog, HandWorker]:
        worker = HandWorker()
        log = FileRoundLog.open(disk.mount(), "/v/rounds", worker, create=True, file_bytes=256)
        return log, worker

    def append(log: FileRoundLog, worker: HandWorker, *records: bytes) -> None:
        for record in records:
            log.append(log.epoch, record, done.append)
            worker.work()

    def kill() -> None:
        raise Killed

    done: list[BaseException | None] = []
    disk.strike_after(change, kill)
    try:
        log, worker = opened()
        log.begin(lambda: [b"snapshot"])
        append(log, worker, b"0", b"1", b"2", b"3")
    except Killed:
        pass
    disk.strike_after(0, None)
    log, worker = opened()
    found = log.read()
    log.begin(lambda: found)
    append(log, worker, b"acknowledged")
    assert set(done) == {None}
    disk.crash()
    assert opened()[0].read()[-1] == b"acknowledged"


async def test_after_a_failed_write_all_goes_to_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed sync says nothing about what reached the disk, and a second one does not either."""
    monkeypatch.setattr("loomlog.metadata.rounds.round_files.RETRY_S", 0.01)
    worker = HandWorker()
    log = open_log(tmp_path, worker)
    log.begin(lambda: [b"snapshot"])
    done: list[BaseException | None] = []
    log.append(1, b"one", done.append)
    log.append(1, b"two", done.append)
    before = the_file(tmp_path)
    for _ in range(2):
        worker.fail_next(OSError(28, "No space left on device"))
        assert done == []
        assert "No space left" in log.trouble
        async with asyncio.timeout(10):
            while not worker.jobs:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    log.append(1, b"three", done.append)
    while worker.jobs:
        worker.work()
    assert (done, log.trouble) == ([None, None, None], "")
    assert the_file(tmp_path) != before
    log.close()
    assert read(tmp_path) == [b"snapshot", b"one", b"two", b"three"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_whatever_change_of_the_disk_fails_nothing_is_lost(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log goes on by itself, and a restart and a power loss find all that was done."""
    monkeypatch.setattr("loomlog.metadata.rounds.round_files.RETRY_S", 0.0)
    for change in range(1, 45):
        disk = SimDisk(World(change), "host")
        worker = HandWorker()
        log = FileRoundLog.open(disk.mount(), "/data/rounds", worker, create=True, file_bytes=256)
        done: list[bytes] = []
        log.begin(lambda done=done: done[-2:])  # type: ignore[misc]
        disk.fail_after(change, number)
        for record in (b"%d" % index for index in range(12)):
            log.append(log.epoch, record, partial(note, done, record))
            while record not in done:
                await finished(worker)
        disk.strike_after(0, None)
        assert not log.trouble
        if change % 2:
            log.close()
            log = FileRoundLog.open(disk.mount(), "/data/rounds", worker, create=False)
            assert log.read()[-2:] == [b"10", b"11"]
        disk.crash()
        again = FileRoundLog.open(disk.mount(), "/data/rounds", worker, create=False)
        assert again.read()[-2:] == [b"10", b"11"]


def note(done: list[bytes], record: bytes, error: BaseException | None) -> None:
    assert error is None
    done.append(record)


async def finished(worker: HandWorker) -> None:
    """Do the next job, as a thread would."""
    await worker.arrived.wait()
    steps, told = worker.jobs[0]
    try:
        for step in steps:
            step()
    except OSError as error:
        worker.fail_next(error)
    else:
        worker.jobs.popleft()
        told(None)
    if not worker.jobs:
        worker.arrived.clear()
