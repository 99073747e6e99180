"""The file of rounds: group commit, torn tails, corruption, rolling over a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from hand_worker import HandWorker

from loomlog.errors import Corrupt, LoomError
from loomlog.metadata.file_round_log import FileRoundLog
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
            worker.do_next()
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
    worker.do_next()
    assert done == [0]
    assert len(worker.jobs) == 1
    worker.do_next()
    assert done == [0, 1, 2, 3, 4]
    assert not worker.jobs
    log.close()


async def test_nothing_is_done_before_it_is_synced(tmp_path: Path) -> None:
    worker = HandWorker()
    log = open_log(tmp_path, worker)
    log.begin(list)
    done: list[BaseException | None] = []
    log.append(1, b"x", done.append)
    worker.do_next(steps_before_crash=1)  # written, not synced
    assert done == []
    log.close()


async def test_a_cut_at_every_byte_of_the_last_record_loses_only_that(tmp_path: Path) -> None:
    _, before, end = write(tmp_path, [b"one"], [b"two" * 30], [b"three" * 30])
    path = the_file(tmp_path)
    whole = path.read_bytes()
    begin = -(-before // 64) * 64
    for cut in range(begin, end):
        path.write_bytes(whole[:cut])
        assert read(tmp_path) == [b"one", b"two" * 30], cut
    path.write_bytes(whole[:end])  # the padding alone is no loss
    assert read(tmp_path) == [b"one", b"two" * 30, b"three" * 30]


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


async def test_remains_of_a_torn_job_never_come_back(tmp_path: Path) -> None:
    """The first record of a job is lost, the second reached the disk: neither is durable, and the
    second must not follow on another first one later."""
    worker = HandWorker()
    log = open_log(tmp_path, worker)
    log.begin(list)
    log.append(1, b"zero", lambda error: None)
    log.append(1, b"a" * 20, lambda error: None)
    log.append(1, b"b" * 20, lambda error: None)
    worker.do_next()
    worker.do_next(steps_before_crash=1)
    log.close()
    path = the_file(tmp_path)
    content = bytearray(path.read_bytes())
    at = content.index(b"a" * 20)
    content[at] ^= 1
    path.write_bytes(content)
    assert read(tmp_path) == [b"zero"]
    write(tmp_path, [b"c" * 20])
    assert read(tmp_path) == [b"zero", b"c" * 20]


async def test_a_broken_record_before_later_ones_is_corruption_that_names_the_file(
    tmp_path: Path,
) -> None:
    write(tmp_path, [b"one"], [b"two"], [b"three"])
    path = the_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[content.index(b"two")] ^= 1
    path.write_bytes(content)
    with pytest.raises(Corrupt, match=path.name):
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
        worker.do_next()
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
        worker.do_next()
    log.append(1, b"3", lambda error: None)
    assert len(worker.jobs[0][0]) == 5
    worker.do_next(steps_before_crash=steps)
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
    """Killed at any change; another process goes on; then the power goes, too."""
    disk = SimDisk(World(change), "host")

    def opened() -> tuple[FileRoundLog, HandWorker]:
        worker = HandWorker()
        log = FileRoundLog.open(disk.mount(), "/v/rounds", worker, create=True, file_bytes=256)
        return log, worker

    def append(log: FileRoundLog, worker: HandWorker, *records: bytes) -> None:
        for record in records:
            log.append(log.epoch, record, done.append)
            worker.do_next()

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


async def test_after_a_failed_write_nothing_is_done_any_more(tmp_path: Path) -> None:
    worker = HandWorker()
    log = open_log(tmp_path, worker)
    log.begin(list)
    done: list[BaseException | None] = []
    log.append(1, b"one", done.append)
    log.append(1, b"two", done.append)
    full = OSError(28, "No space left on device")
    worker.fail_next(full)
    assert done == [full, full]
    with pytest.raises(LoomError, match="No space left"):
        log.append(1, b"three", done.append)
    assert not worker.jobs
    log.close()
