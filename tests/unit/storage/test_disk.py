"""The real disk behind the ports."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from loomlog.errors import InvalidArgument
from loomlog.node.workers import off_loop
from loomlog.storage.disk import (
    ALONE_S,
    QUICK_S,
    EagerWorker,
    RealFiles,
    ThreadWorker,
    lock_directory,
)
from loomlog.storage.files import Finished, Step

QUICKLY_S = QUICK_S / 10
LATER_S = 10 * ALONE_S


def test_many_buffers_are_written_whole(tmp_path: Path) -> None:
    file = RealFiles().open(f"{tmp_path}/file", create=True)
    buffers = [b"%05d" % number for number in range(5000)]  # more than one pwritev takes
    file.write(buffers, 100)
    assert file.read(1 << 20, 100) == b"".join(buffers)
    assert file.read(5, 100 + 5 * 1234) == b"01234"


def test_partial_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev

    def seven_bytes(fd: int, buffers: list[memoryview], offset: int) -> int:
        return whole(fd, [b"".join(buffers)[:7]], offset)

    monkeypatch.setattr(os, "pwritev", seven_bytes)
    file = RealFiles().open(f"{tmp_path}/file", create=True)
    file.write([b"abc", b"", b"defghijk", b"l" * 20], 3)
    assert file.read(100, 3) == b"abcdefghijk" + b"l" * 20


def test_reads_end_with_the_file(tmp_path: Path) -> None:
    file = RealFiles().open(f"{tmp_path}/file", create=True)
    file.write([b"0123456789"], 0)
    assert file.read(100, 4) == b"456789"
    assert file.read(100, 50) == b""
    assert file.read_cached(100, 4) in (b"456789", None)


def test_what_is_not_in_memory_is_not_waited_for(tmp_path: Path) -> None:
    file = RealFiles().open(f"{tmp_path}/file", create=True)
    file.write([bytes(1 << 20)], 0)
    file.sync()
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    found = file.read_cached(1 << 20, 0)
    assert found is None or found == bytes(1 << 20)  # the kernel may keep what it likes
    assert file.read(1 << 20, 0) == bytes(1 << 20)


def test_allocated_bytes_are_zero_and_what_is_there_stays(tmp_path: Path) -> None:
    file = RealFiles().open(f"{tmp_path}/file", create=True)
    file.write([b"abc"], 0)
    file.allocate(100)
    assert file.size() == 100
    assert file.read(200, 0) == b"abc" + bytes(97)
    file.allocate(50)
    assert file.size() == 100
    file.truncate(2)
    file.allocate(5)
    assert file.read(9, 0) == b"ab\0\0\0"


def test_a_missing_file_is_an_error_unless_created(tmp_path: Path) -> None:
    files = RealFiles()
    with pytest.raises(FileNotFoundError):
        files.open(f"{tmp_path}/nothing")
    with pytest.raises(FileNotFoundError):
        files.list(f"{tmp_path}/nothing")
    files.make_directory(f"{tmp_path}/a/b")
    files.open(f"{tmp_path}/a/b/c", create=True).close()
    files.rename(f"{tmp_path}/a/b/c", f"{tmp_path}/a/d")
    files.sync_directory(f"{tmp_path}/a")
    assert files.list(f"{tmp_path}/a") == ["b", "d"]
    files.remove(f"{tmp_path}/a/d")
    files.remove_tree(f"{tmp_path}/a")
    assert not files.exists(f"{tmp_path}/a")


def test_a_path_that_cannot_be_examined_does_not_count_as_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert not RealFiles().exists(str(tmp_path / "missing"))
    assert not RealFiles().exists(str(tmp_path / "file" / "inside"))
    with pytest.raises(OSError, match="symbolic links"):
        RealFiles().exists(str(tmp_path / "loop"))


def test_a_file_is_closed_with_its_last_user(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    file = RealFiles().open(f"{tmp_path}/file", create=True)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del file
    assert len(os.listdir("/proc/self/fd")) == before


async def test_the_worker_runs_jobs_in_order_off_the_loop() -> None:
    worker = ThreadWorker(asyncio.get_running_loop())
    story: list[object] = []
    finished = asyncio.Event()

    def fail() -> None:
        raise OSError("no disk")

    def note(error: BaseException | None) -> None:
        assert threading.current_thread() is threading.main_thread()
        story.append(str(error))

    worker.run([lambda: story.append(1), lambda: story.append(2)], note)
    worker.run([fail, lambda: story.append("never")], note)
    worker.run([], lambda error: finished.set())
    await finished.wait()
    worker.close()
    assert [entry for entry in story if entry not in (1, 2)] == ["None", "no disk"]
    assert story.index(1) < story.index(2)


def test_one_process_per_directory(tmp_path: Path) -> None:
    lock = lock_directory(str(tmp_path))
    with pytest.raises(InvalidArgument, match="in use by another process"):
        lock_directory(str(tmp_path))
    lock.close()
    lock_directory(str(tmp_path)).close()


# ---- which jobs an EagerWorker runs on the loop, and which in the thread


class Thread:
    """A thread that runs its jobs when the test lets it."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Sequence[Step], Finished]] = []

    def run(self, steps: Sequence[Step], finished: Finished) -> None:
        self.jobs.append((steps, finished))

    run_short = run

    def close(self) -> None:
        pass

    def work(self) -> None:
        steps, finished = self.jobs.pop(0)
        for step in steps:
            step()
        finished(None)


class WorkerRig:
    def __init__(self) -> None:
        self.now_s = 1.0
        self.thread = Thread()
        self.turn: list[Callable[[], None]] = []
        self.ends: list[BaseException | None] = []
        self.worker = EagerWorker(self.thread, self.turn.append, lambda: self.now_s)

    def run(self, takes_s: float) -> bool:
        """Run a short job that takes this long; return whether it was done in the next turn of the
        loop."""
        done = []

        def step() -> None:
            self.now_s += takes_s
            done.append(True)

        self.worker.run_short([step], self.ends.append)
        assert not done
        self.next_turn()
        return bool(done)

    def next_turn(self) -> None:
        for callback in [self.turn.pop(0) for _ in self.turn[:]]:
            callback()

    def known_to_be_quick(self) -> WorkerRig:
        assert not self.run(QUICKLY_S)  # the first one: nobody knows yet
        self.thread.work()
        self.now_s += LATER_S
        return self


@pytest.fixture
def rig() -> WorkerRig:
    return WorkerRig().known_to_be_quick()


def test_a_short_job_that_comes_alone_is_done_on_the_loop(rig: WorkerRig) -> None:
    assert rig.ends == [None]  # of the first one
    assert rig.run(QUICKLY_S)
    assert rig.ends == [None, None]


def test_jobs_close_upon_each_other_go_to_the_thread(rig: WorkerRig) -> None:
    assert rig.run(QUICKLY_S)
    assert not rig.run(QUICKLY_S)
    rig.now_s += LATER_S
    assert not rig.run(QUICKLY_S)  # none overtakes another
    rig.thread.work()
    rig.thread.work()
    rig.now_s += LATER_S
    assert rig.run(QUICKLY_S)


def test_after_a_slow_one_the_loop_is_spared_until_they_are_quick_again(rig: WorkerRig) -> None:
    assert rig.run(5 * QUICK_S)
    for takes_s in (5 * QUICK_S, QUICKLY_S):
        rig.now_s += LATER_S
        assert not rig.run(takes_s)
        rig.thread.work()
    rig.now_s += LATER_S
    assert rig.run(QUICKLY_S)


def test_a_failure_is_told_like_that_of_a_thread(rig: WorkerRig) -> None:
    failure = OSError("no disk")

    def fail() -> None:
        raise failure

    rig.worker.run_short([fail], rig.ends.append)
    rig.next_turn()
    assert rig.ends[-1] is failure


class Held:
    """Something like an open database, which a job that failed had in its frames."""

    def fail(self) -> None:
        raise OSError("no disk")


def test_a_failure_that_was_told_keeps_nothing_open(rig: WorkerRig) -> None:
    """Not even until the next garbage collection: a volume may be unmounted before."""
    gc.disable()
    try:
        held = Held()
        ref = weakref.ref(held)
        rig.worker.run_short([held.fail], lambda error: None)
        del held
        rig.next_turn()
        assert ref() is None
    finally:
        gc.enable()


async def test_a_failure_that_was_raised_keeps_nothing_open() -> None:
    worker = ThreadWorker(asyncio.get_running_loop())
    gc.disable()
    try:
        held = Held()
        ref = weakref.ref(held)
        with suppress(OSError):
            await off_loop(worker, held.fail)
        del held
        worker.close()
        await asyncio.sleep(0)  # until then the loop refers to the future with the error
        assert ref() is None
    finally:
        gc.enable()


def test_other_jobs_go_to_the_thread_behind_a_short_one(rig: WorkerRig) -> None:
    story: list[str] = []
    rig.worker.run_short([partial(story.append, "short")], lambda _: story.append("told"))
    rig.worker.run([partial(story.append, "long")], lambda _: story.append("told, too"))
    assert story == ["short"]  # before the thread begins
    rig.next_turn()
    assert story == ["short", "told"]
    rig.now_s += LATER_S
    assert not rig.run(QUICKLY_S)  # not beside the thread
    rig.thread.work()
    assert story == ["short", "told", "long", "told, too"]


def test_a_short_job_is_done_before_the_worker_closes(rig: WorkerRig) -> None:
    story: list[str] = []
    rig.worker.run_short([partial(story.append, "short")], lambda _: story.append("told"))
    rig.worker.close()
    assert story == ["short"]
    rig.next_turn()
    assert story == ["short", "told"]
