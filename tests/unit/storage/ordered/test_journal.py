"""Group commit, lazy writes, sync modes and failures, with a worker and a clock driven by hand."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from hand_worker import HandWorker
from storage_rig import HandClock, WatchedFiles

from loomlog.config import StorageSettings
from loomlog.storage.disk import ThreadWorker
from loomlog.storage.files import File, Finished
from loomlog.storage.ordered.journal import SHORT_BYTES_MAX, Channel, ChannelFile, Journal
from loomlog.types import SyncMode


def opened(channel: Channel, file: File) -> ChannelFile:
    target = ChannelFile(channel.name, channel)
    target.opened = file
    return target


class Volume:
    """A journal on the real disk, with two replicas' files."""

    def __init__(self, path: Path, settings: StorageSettings) -> None:
        self.files = WatchedFiles()
        self.worker = HandWorker()
        self.clock = HandClock()
        self.journal = Journal(self.worker, self.clock.call_later, settings)
        self.path = path
        self.data = self.target("data")
        self.commit = opened(self.data.channel, self.files.open(f"{path}/commit", create=True))
        self.other = self.target("other")
        self.answers: list[tuple[str, BaseException | None]] = []

    def target(self, name: str) -> ChannelFile:
        return opened(Channel(name), self.files.open(f"{self.path}/{name}", create=True))

    def done(self, name: str) -> Finished:
        return lambda error: self.answers.append((name, error))

    @property
    def answered(self) -> list[str]:
        return [name for name, _ in self.answers]

    def syncs(self, name: str = "") -> int:
        return self.files.log.count("sync", name and f"/{name}")


def volume(path: Path, sync: SyncMode = SyncMode.ALWAYS) -> Volume:
    return Volume(path, StorageSettings(sync=sync))


def test_writes_that_arrive_during_a_job_share_the_next_sync(tmp_path: Path) -> None:
    v = volume(tmp_path)
    v.journal.write(v.data, 0, [b"first"], v.done("first"))
    for number in range(100):
        v.journal.write(v.data, 5 + number, [b"x"], v.done(str(number)))
    assert v.worker.count == 1, "one job under way, the rest waits"

    v.worker.work()
    assert v.answered == ["first"]
    v.worker.work()
    assert v.answered == ["first", *map(str, range(100))]
    assert v.worker.count == 2
    assert v.syncs() == 2
    assert v.files.log.count("write") == 2, "side by side, so written at once"
    assert (tmp_path / "data").read_bytes() == b"first" + 100 * b"x"


def test_only_small_writes_may_be_made_on_the_loop(tmp_path: Path) -> None:
    v = volume(tmp_path)
    v.journal.write(v.data, 0, [b"small"], v.done("-"))
    v.worker.work()
    assert v.worker.short == 1
    v.journal.write(v.data, 5, [bytes(SHORT_BYTES_MAX), b"large"], v.done("-"))
    v.worker.work()
    v.journal.call(v.data.channel, [lambda: None], v.done("-"))  # may take any time
    v.worker.work()
    v.journal.write_lazy(v.commit, 0, [b"commit"], v.done("-"))
    v.clock.ring()  # then all that is dirty is synced
    v.worker.work()
    assert (v.worker.short, v.worker.count) == (1, 4)


def test_each_file_is_synced_once_for_all_its_writes(tmp_path: Path) -> None:
    v = volume(tmp_path)
    v.journal.write(v.data, 0, [b"a"], v.done("-"))
    for number in range(10):
        v.journal.write(v.data, 10 * number, [b"ab", b"cd"], v.done("-"))
        v.journal.write(v.other, 4 * number, [b"ab", b"cd"], v.done("-"))
    v.worker.work()
    v.worker.work()
    assert (v.syncs("data"), v.syncs("other")) == (2, 1)
    assert (tmp_path / "other").read_bytes() == 10 * b"abcd"


def test_nothing_is_answered_before_its_sync(tmp_path: Path) -> None:
    v = volume(tmp_path)
    v.journal.write(v.data, 0, [b"a"], v.done("a"))
    steps, finished = v.worker.jobs.popleft()
    for step in steps:
        assert v.answered == []
        step()
    assert v.syncs("data") == 1
    finished(None)
    assert v.answered == ["a"]


def test_an_idle_journal_has_neither_job_nor_timer(tmp_path: Path) -> None:
    v = volume(tmp_path)
    v.journal.write(v.data, 0, [b"a"], v.done("a"))
    v.journal.write_lazy(v.commit, 0, [b"c"], v.done("c"))
    v.worker.close()
    v.clock.ring()
    v.worker.close()
    assert v.answered == ["a", "c"]
    assert not v.worker.jobs
    assert not v.clock.timers


def test_lazy_writes_ride_along_and_are_synced_together(tmp_path: Path) -> None:
    v = volume(tmp_path)
    for number in range(5):
        v.journal.write_lazy(v.commit, number, [b"c"], v.done(f"c{number}"))
    assert not v.worker.jobs, "nobody waits for them"
    v.journal.write(v.data, 0, [b"a"], v.done("a"))
    v.worker.work()
    assert v.answered == ["a"]
    assert (tmp_path / "commit").read_bytes() == b"ccccc"
    assert v.syncs("commit") == 0

    v.clock.ring()
    v.worker.work()
    assert v.answered == ["a", "c0", "c1", "c2", "c3", "c4"]
    assert v.syncs("commit") == 1
    assert v.syncs("data") == 1


def test_a_lazy_write_alone_is_stored_after_a_while(tmp_path: Path) -> None:
    v = volume(tmp_path)
    v.journal.write_lazy(v.commit, 0, [b"c"], v.done("c"))
    assert [timer.delay for timer in v.clock.timers] == [0.05]
    v.clock.ring()
    v.worker.work()
    assert v.answered == ["c"]
    assert v.syncs("commit") == 1


def test_lazy_writes_behind_a_call_get_their_turn(tmp_path: Path) -> None:
    v = volume(tmp_path)
    v.journal.write_lazy(v.commit, 0, [b"1"], v.done("c1"))
    v.journal.call(v.data.channel, [], v.done("call"))
    v.journal.write_lazy(v.commit, 1, [b"2"], v.done("c2"))
    while v.worker.jobs or v.clock.timers:
        v.worker.close()
        v.clock.ring()
    assert sorted(v.answered) == ["c1", "c2", "call"]
    assert (tmp_path / "commit").read_bytes() == b"12"


def test_calls_run_in_order_with_the_writes(tmp_path: Path) -> None:
    v = volume(tmp_path)
    seen: list[bytes] = []
    v.journal.write(v.data, 0, [b"a"], v.done("a"))
    v.journal.call(
        v.data.channel, [lambda: seen.append((tmp_path / "data").read_bytes())], v.done("call")
    )
    v.journal.write(v.data, 1, [b"b"], v.done("b"))
    v.worker.close()
    assert seen == [b"a"]
    assert v.answered == ["a", "call", "b"]


def test_interval_answers_after_the_write_and_syncs_while_dirty(tmp_path: Path) -> None:
    v = volume(tmp_path, SyncMode.INTERVAL)
    v.journal.write(v.data, 0, [b"a"], v.done("a"))
    v.journal.write(v.data, 1, [b"b"], v.done("b"))
    v.worker.close()
    assert v.answered == ["a", "b"]
    assert v.syncs() == 0
    assert [timer.delay for timer in v.clock.timers] == [0.2]
    v.clock.ring()
    v.worker.close()
    assert v.syncs("data") == 1
    assert not v.clock.timers, "clean: nothing to wait for"


def test_none_syncs_only_at_the_end(tmp_path: Path) -> None:
    v = volume(tmp_path, SyncMode.NONE)
    v.journal.write(v.data, 0, [b"a"], v.done("a"))
    v.journal.write_lazy(v.commit, 0, [b"c"], v.done("c"))
    v.worker.close()
    v.clock.ring()
    v.worker.close()
    assert v.answered == ["a", "c"]
    assert v.syncs() == 0
    assert not v.clock.timers
    v.journal.close()
    v.worker.close()
    assert (v.syncs("data"), v.syncs("commit")) == (1, 1)


def test_after_a_failed_sync_nothing_of_that_replica_is_acknowledged(tmp_path: Path) -> None:
    v = volume(tmp_path)
    failure = OSError(errno.EIO, "the disk is dying")
    v.files.log.broken[("sync", "/data")] = failure
    v.journal.write(v.data, 0, [b"a"], v.done("a"))
    v.journal.write(v.data, 1, [b"b"], v.done("queued"))
    v.journal.write(v.other, 0, [b"o"], v.done("other"))
    v.worker.work()
    v.files.log.broken.clear()  # the next fsync would "succeed"
    v.worker.close()
    v.journal.write(v.data, 2, [b"c"], v.done("later"))
    v.journal.write_lazy(v.commit, 0, [b"c"], v.done("commit"))
    v.journal.call(v.data.channel, [], v.done("call"))
    v.clock.ring()
    v.worker.close()
    assert dict(v.answers) == {
        "a": failure,
        "queued": failure,
        "other": None,
        "later": failure,
        "commit": failure,
        "call": failure,
    }


def test_a_full_disk_of_one_replica_does_not_stop_the_other(tmp_path: Path) -> None:
    v = volume(tmp_path)
    full = OSError(errno.ENOSPC, "no space left")
    v.files.log.broken[("write", "/data")] = full
    v.journal.call(Channel("somebody"), [], v.done("-"))
    v.journal.write(v.data, 0, [b"a"], v.done("data"))
    v.journal.write(v.other, 0, [b"o"], v.done("other"))
    v.worker.close()
    assert dict(v.answers) == {"-": None, "data": full, "other": None}
    assert v.syncs("data") == 0


def test_a_failed_lazy_sync_reaches_all_who_wait_for_it(tmp_path: Path) -> None:
    v = volume(tmp_path)
    failure = OSError(errno.EIO, "the disk is dying")
    v.files.log.broken[("sync", "/commit")] = failure
    v.journal.write_lazy(v.commit, 0, [b"1"], v.done("c1"))
    v.journal.write(v.data, 0, [b"a"], v.done("a"))
    v.worker.close()
    v.journal.write_lazy(v.commit, 1, [b"2"], v.done("c2"))
    v.clock.ring()
    v.worker.close()
    assert dict(v.answers) == {"a": None, "c1": failure, "c2": failure}


def test_a_broken_answer_does_not_keep_others_from_theirs(tmp_path: Path) -> None:
    def broken(error: BaseException | None) -> None:
        raise ValueError("a bug")

    v = volume(tmp_path)
    v.journal.call(v.data.channel, [], v.done("-"))
    v.journal.write(v.data, 0, [b"a"], broken)
    v.journal.write(v.data, 1, [b"b"], v.done("b"))
    v.worker.work()
    with pytest.raises(ValueError, match="a bug"):
        v.worker.work()
    assert v.answered == ["-", "b"]


def test_close_stores_what_is_left(tmp_path: Path) -> None:
    v = volume(tmp_path)
    v.journal.write(v.data, 0, [b"a"], v.done("a"))
    v.journal.write(v.data, 1, [b"b"], v.done("b"))
    v.journal.write_lazy(v.commit, 0, [b"c"], v.done("c"))
    v.journal.call(v.data.channel, [], v.done("call"))
    v.journal.write(v.data, 2, [b"d"], v.done("d"))
    v.journal.close()
    v.worker.close()
    assert sorted(v.answered) == ["a", "b", "c", "call", "d"]
    assert all(error is None for _, error in v.answers)
    assert (tmp_path / "data").read_bytes() == b"abd"
    assert v.syncs("commit") == 1
    assert not v.clock.timers
    v.journal.write(v.data, 3, [b"e"], v.done("too late"))
    v.clock.ring()
    assert "shutting down" in str(dict(v.answers)["too late"])


async def test_on_a_thread_and_an_event_loop(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    worker = ThreadWorker(loop)
    files = WatchedFiles()
    journal = Journal(worker, loop.call_later, StorageSettings())
    target = opened(Channel("data"), files.open(f"{tmp_path}/data", create=True))
    stored: asyncio.Future[None] = loop.create_future()
    answers: list[int] = []

    def done(number: int) -> Finished:
        def finished(error: BaseException | None) -> None:
            assert error is None
            answers.append(number)
            if number == 999:
                stored.set_result(None)

        return finished

    for number in range(1000):
        journal.write(target, 2 * number, [b"ab"], done(number))
    await stored
    journal.close()
    worker.close()
    assert answers == list(range(1000))
    assert files.log.count("sync") == 2
    assert (tmp_path / "data").read_bytes() == 1000 * b"ab"
