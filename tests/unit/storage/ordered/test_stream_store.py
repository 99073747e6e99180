"""A replica's files: append, commit, read and roll, on the real disk."""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path

import pytest
from storage_rig import SMALL, STREAM, StorageRig, WatchedFiles, batch, with_sync

from loomlog.batch import assign_position, split
from loomlog.config import StorageSettings
from loomlog.core.ordered.recovery import Place
from loomlog.errors import AlreadyExists, Corrupt, InvalidArgument, NotYetWritten
from loomlog.limits import APPENDS_IN_FLIGHT_MAX
from loomlog.storage.disk import RealFile, RealFiles
from loomlog.storage.files import File, NotCached, from_cache
from loomlog.storage.ordered.replica_paths import StreamMeta
from loomlog.storage.ordered.stream_store import StreamStore
from loomlog.types import CommitContext, SyncMode


@pytest.fixture
def rig(tmp_path: Path) -> StorageRig:
    return StorageRig(str(tmp_path / "lsid=7"))


def test_a_new_replica_is_empty(rig: StorageRig) -> None:
    context = rig.store.context
    assert (context.high_watermark, context.uncommitted_begin, context.uncommitted_end) == (0, 1, 1)
    assert rig.store.stored_bytes == 0
    with pytest.raises(NotYetWritten):
        rig.store.read(1, 1, 100)


def test_a_replica_is_not_created_twice(rig: StorageRig) -> None:
    with pytest.raises(AlreadyExists):
        StreamStore.create(rig.files, rig.path, StreamMeta(1, STREAM), rig.journal, rig.settings)


def test_what_is_committed_reads_back_with_positions(rig: StorageRig) -> None:
    batches = rig.append(100, 200, 300, count=2)
    rig.commit(glsn=11, length=4)
    rig.commit(glsn=21, length=2)
    rig.settle()
    assert rig.answers == [None, None, None]

    chunk = rig.store.read(1, 6, 1 << 20)
    assert (chunk.first_llsn, chunk.last_llsn, chunk.first_glsn, chunk.last_glsn) == (1, 6, 11, 22)
    for stored, first_glsn in zip(batches, (11, 13, 21), strict=True):
        assign_position(stored, first_glsn)
    assert chunk.buffer == b"".join(batches)
    assert not chunk.buffer.readonly


def test_a_read_starts_with_the_batch_that_holds_the_entry(rig: StorageRig) -> None:
    rig.append(100, 200, 300, count=10)
    rig.commit(glsn=1, length=30)
    rig.settle()
    chunk = rig.store.read(15, 15, 1 << 20)
    assert (chunk.first_llsn, chunk.last_llsn) == (11, 20)


def test_a_read_takes_whole_batches_up_to_its_size_but_one_at_least(rig: StorageRig) -> None:
    rig.fill(5, size=200)
    size = len(batch(1, 200))
    assert rig.store.read(1, 5, 1).last_llsn == 1
    assert rig.store.read(1, 5, 2 * size).last_llsn == 2
    assert rig.store.read(1, 5, 3 * size - 1).last_llsn == 2
    assert rig.store.read(2, 4, 1 << 20).last_llsn == 4


def test_uncommitted_entries_are_not_read(rig: StorageRig) -> None:
    rig.fill(2)
    rig.append(100)
    rig.settle()
    with pytest.raises(NotYetWritten):
        rig.store.read(3, 3, 100)
    with pytest.raises(Corrupt, match="no commit holds"):
        rig.store.read(1, 3, 1 << 20)


def test_what_is_still_on_its_way_to_the_disk_does_not_disturb_a_read(rig: StorageRig) -> None:
    rig.fill(2)
    rig.append(100)  # not settled: its place in the file holds zeros
    assert rig.read_all(1, 2) == [1, 2]
    assert rig.store.read(1, 2, 1 << 20).last_llsn == 2
    rig.settle()


def test_a_commit_that_splits_a_batch_is_corrupt(rig: StorageRig) -> None:
    rig.append(100, count=10)
    rig.commit(glsn=1, length=5)
    rig.settle()
    with pytest.raises(Corrupt, match="LLSN 1 to 10"):
        rig.store.read(1, 5, 100)


def test_entries_that_do_not_go_on_are_refused(rig: StorageRig) -> None:
    rig.fill(1)
    for wrong in (batch(1), batch(3), batch(2, stream=8)):
        with pytest.raises(InvalidArgument):
            rig.store.append([memoryview(wrong)], 2, 2, rig.done)
    with pytest.raises(InvalidArgument):
        rig.store.append([memoryview(batch(2))], 2, 3, rig.done)
    with pytest.raises(InvalidArgument):
        rig.store.append([], 2, 1, rig.done)
    rig.append(100)
    rig.settle()
    assert rig.reopen().store.last_llsn == 2


def test_commits_that_do_not_follow_are_refused(rig: StorageRig) -> None:
    rig.fill(2)
    for wrong in (CommitContext(2, 1, 2, 2, 1, 1), CommitContext(9, 2, 5, 4, 1, 1)):
        with pytest.raises(InvalidArgument, match="does not follow"):
            rig.store.commit(wrong, rig.done)


def test_find_gives_the_commit_of_a_position_or_the_next(rig: StorageRig) -> None:
    rig.append(*[100] * 40)
    for number in range(40):  # five files; GLSNs 1, 11, 21, … and 5 empty ones in between
        rig.commit(glsn=10 * number + 1, length=1, high_watermark=10 * number + 4)
        rig.commit(glsn=0, length=0, high_watermark=10 * number + 9)
    rig.settle()
    for store in rig.twice():
        for glsn in range(1, 392):
            found = store.find(glsn)
            assert found is not None
            assert found.glsn == -(-(glsn - 1) // 10) * 10 + 1
            assert store.find(glsn, from_cache) == found
        assert store.find(392) is None
        assert store.find(392, from_cache) is None


def test_the_commit_of_an_entry_is_found_also_where_a_reader_waits(rig: StorageRig) -> None:
    rig.append(100, 100, count=2)
    rig.commit(glsn=11, length=2)
    rig.settle()
    rig.store.read(1, 2, 1 << 20)  # the reader goes on at LLSN 3
    assert rig.store.find_llsn(3) is None
    rig.commit(glsn=21, length=2)
    for llsn, glsn in ((1, 11), (2, 11), (3, 21), (4, 21)):
        found = rig.store.find_llsn(llsn)
        assert found is not None
        assert found.glsn == glsn


def test_old_commits_are_found_in_the_files_not_in_memory(tmp_path: Path) -> None:
    rig = StorageRig(str(tmp_path / "lsid=7"), StorageSettings(data_file_bytes=1 << 20))
    rig.append(*[1] * 3000)
    for number in range(3000):
        rig.commit(glsn=2 * number + 2, length=1)
    rig.settle()
    assert len(rig.store._commits._recent[1]) < 2048
    for store in rig.twice():
        for glsn in (1, 2, 3, 1000, 1001, 3999, 4000, 6000):
            found = store.find(glsn)
            assert found is not None
            assert found.glsn == glsn + glsn % 2
        assert store.read(1500, 1500, 1).first_glsn == 3000


def test_commits_are_listed_from_any_high_watermark_on(tmp_path: Path) -> None:
    settings = StorageSettings(data_file_bytes=1 << 20, commit_file_bytes=8192)
    rig = StorageRig(str(tmp_path / "lsid=7"), settings)
    rig.append(*[1] * 3000)
    for number in range(3000):  # each round reaches further than its own entry
        rig.commit(glsn=10 * number + 1, length=1, high_watermark=10 * number + 5)
    rig.settle()
    for store in rig.twice():
        for after, first in ((0, 0), (4, 0), (5, 1), (9, 1), (15_004, 1500), (15_005, 1501)):
            listed = store.commits_after(after, 5000)
            assert [commit.llsn for commit in listed] == list(range(first + 1, 3001))
        assert [commit.llsn for commit in store.commits_after(5, 3)] == [2, 3, 4]
        assert store.commits_after(29_995, 10) == []


def test_commits_are_found_before_they_are_stored(rig: StorageRig) -> None:
    rig.fill(1)
    rig.append(100)
    rig.worker.close()
    rig.commit(glsn=3, length=1)
    assert not rig.worker.jobs
    assert rig.store.find(2) == CommitContext(3, 1, 3, 2, 1, 1)
    assert rig.read_all(1, 2) == [1, 3]


def test_an_empty_commit_survives_in_place_of_the_one_before(rig: StorageRig) -> None:
    rig.fill(3)
    size = rig.store.stored_bytes
    for high_watermark in range(10, 200):
        rig.commit(glsn=0, length=0, high_watermark=high_watermark)
        if high_watermark % 7 == 0:
            rig.settle()
    rig.settle()
    assert rig.answers.count(None) == len(rig.answers) == 6 + 190
    assert rig.store.stored_bytes == size
    rig = rig.reopen()
    assert rig.store.context.high_watermark == 199
    assert rig.store.context.local_high == Place(3, 3)
    rig.append(10)
    rig.commit(glsn=300, length=1)
    rig.settle()
    assert rig.reopen().store.context.high_watermark == 300


def test_empty_commits_before_the_first_entry(rig: StorageRig) -> None:
    rig.commit(glsn=0, length=0, high_watermark=5)
    rig.settle()
    rig = rig.reopen()
    assert rig.store.context.high_watermark == 5
    assert rig.store.context.uncommitted_begin == 1
    rig.append(10)
    rig.commit(glsn=6, length=1)
    rig.settle()
    assert rig.reopen().read_all(1, 1) == [6]


def test_many_data_files_read_back_also_after_a_restart(rig: StorageRig) -> None:
    rig.fill(200)
    assert len(rig.data_files()) > 8
    assert rig.read_all(1, 200) == list(range(1, 201))
    rig = rig.reopen()
    assert rig.read_all(1, 200) == list(range(1, 201))
    for llsn in range(200, 0, -7):
        assert rig.store.read(llsn, llsn, 1).first_llsn == llsn
    rig.fill(50)
    assert rig.read_all(1, 250) == list(range(1, 251))


def test_one_append_over_several_data_files(rig: StorageRig) -> None:
    rig.append(*[3000] * 20)
    rig.commit(glsn=1, length=20)
    rig.settle()
    assert rig.answers == [None, None]
    assert len(rig.data_files()) == 10
    assert rig.reopen().read_all(1, 20) == list(range(1, 21))


def test_a_batch_larger_than_a_data_file_gets_one_of_its_own(rig: StorageRig) -> None:
    rig.fill(1)
    rig.fill(2, size=20_000)
    rig.fill(1)
    assert len(rig.data_files()) == 4
    rig = rig.reopen()
    assert rig.read_all(1, 4) == [1, 2, 3, 4]
    assert len(split(rig.store.read(3, 3, 1).buffer)) == 1


def test_cached_reads_answer_or_say_that_they_would_wait(rig: StorageRig) -> None:
    rig.fill(60)
    chunk = rig.store.read(30, 40, 2000)
    try:
        assert rig.store.read(30, 40, 2000, from_cache) == chunk
    except NotCached:
        pass  # the page cache may have lost it

    class ColdFile(RealFile):
        """A file that is not in the page cache."""

        def read_cached(self, size: int, offset: int) -> bytearray | None:
            return None

    class ColdFiles(RealFiles):
        def open(self, path: str, *, create: bool = False) -> File:
            return ColdFile(path, os.open(path, os.O_RDWR | (os.O_CREAT if create else 0)))

    rig = rig.reopen(ColdFiles())
    with pytest.raises(NotCached):
        rig.store.read(30, 40, 2000, from_cache)
    with pytest.raises(NotCached):
        rig.store.find(3, from_cache)
    assert rig.store.find(60, from_cache) is not None, "the tail is in memory"


def test_reading_on_does_not_search_again(tmp_path: Path) -> None:
    files = WatchedFiles()
    rig = StorageRig(str(tmp_path / "lsid=7"), files=files)
    rig.fill(12, size=300)
    first = rig.store.read(1, 12, 1000)
    files.log.calls.clear()
    rig.store.read(first.last_llsn + 1, 12, 1000)
    assert files.log.count("read", ".seg") == 1


def test_opening_reads_only_the_indexes_and_the_last_data_file(rig: StorageRig) -> None:
    rig.fill(300)
    full, last = rig.data_files()[:-1], rig.data_files()[-1]
    assert len(full) > 10
    files = WatchedFiles()
    rig = rig.reopen(files)
    read = files.log.bytes_read
    assert not [name for name in full if read[f"{rig.path}/data/{name}"]]
    assert read[f"{rig.path}/data/{last}"] <= SMALL.data_file_bytes
    assert all(read[f"{rig.path}/data/{name[:-4]}.idx"] for name in full)
    assert rig.read_all(1, 300) == list(range(1, 301))


@pytest.mark.parametrize("damage", ["missing", "flipped", "empty"])
def test_a_lost_index_is_rebuilt_from_its_data_file(rig: StorageRig, damage: str) -> None:
    rig.fill(100)
    index = Path(rig.path, "data", rig.data_files()[2][:-4] + ".idx")
    whole = index.read_bytes()
    if damage == "missing":
        index.unlink()
    else:
        index.write_bytes(b"" if damage == "empty" else whole[:20] + b"?" + whole[21:])
    rig = rig.reopen()
    assert not rig.store.context.damaged
    assert index.read_bytes() == whole
    assert rig.read_all(1, 100) == list(range(1, 101))


def test_the_next_file_is_made_before_it_is_needed(tmp_path: Path) -> None:
    files = WatchedFiles()
    rig = StorageRig(str(tmp_path / "lsid=7"), files=files)
    while len(rig.files.list(f"{rig.path}/spare")) == 0:
        rig.fill(1)
    assert len(rig.data_files()) == 1
    files.log.calls.clear()
    while len(rig.data_files()) == 1:
        rig.fill(1)
    assert files.log.count("allocate", "/spare/") == 0


# ---- what it knows of itself


def test_meta_survives(rig: StorageRig) -> None:
    rig.store.set_meta(epoch=4, done=rig.done)
    rig.store.set_meta(trimmed_glsn=9, done=rig.done)
    rig.settle()
    assert rig.answers == [None, None]
    assert rig.reopen().store.meta == StreamMeta(1, STREAM, epoch=4, trimmed_glsn=9)


def test_broken_meta_is_refused(rig: StorageRig) -> None:
    meta = Path(rig.path, "meta")
    meta.write_bytes(meta.read_bytes().replace(b'"epoch": 0', b'"epoch": 1'))
    with pytest.raises(Corrupt, match="meta"):
        rig.reopen()


def test_producers_are_known_after_a_restart(rig: StorageRig) -> None:
    rig.fill(120)
    for store in rig.twice():
        marks = store.producers()[5]
        assert [(mark.sequence, mark.first_llsn, mark.count) for mark in marks] == [
            (llsn, llsn, 1) for llsn in range(121 - APPENDS_IN_FLIGHT_MAX, 121)
        ]
    rig = rig.reopen()
    rig.append(10, 10)
    rig.settle()
    rig.store.truncate(121, rig.done)
    rig.settle()
    assert rig.store.producers()[5][-1].sequence == 121


# ---- sync modes and failures


@pytest.mark.parametrize("mode", list(SyncMode))
def test_every_sync_mode_stores(tmp_path: Path, mode: SyncMode) -> None:
    files = WatchedFiles()
    rig = StorageRig(str(tmp_path / "lsid=7"), with_sync(mode), files)
    rig.fill(3)
    files.log.calls.clear()
    rig.append(100)
    rig.worker.close()
    assert rig.answers[-1] is None
    assert files.log.count("sync", ".seg") == (1 if mode is SyncMode.ALWAYS else 0)
    rig.fill(100)
    rig.close()
    rig = StorageRig(rig.path, with_sync(mode))
    assert rig.store.last_llsn == 104


def test_after_a_failed_sync_nothing_is_acknowledged(tmp_path: Path) -> None:
    files = WatchedFiles()
    rig = StorageRig(str(tmp_path / "lsid=7"), files=files)
    rig.fill(3)
    failure = OSError(errno.EIO, "the disk is dying")
    files.log.broken[("sync", ".seg")] = failure
    rig.answers.clear()
    rig.append(100)
    rig.settle()
    files.log.broken.clear()
    rig.append(100)
    rig.store.set_meta(epoch=9, done=rig.done)
    rig.settle()
    assert rig.answers == [failure, failure, failure]
    assert rig.store.error is failure
    assert rig.read_all(1, 3) == [1, 2, 3], "what is stored can still be read"


def test_no_room_for_the_next_data_file(tmp_path: Path) -> None:
    files = WatchedFiles()
    rig = StorageRig(str(tmp_path / "lsid=7"), files=files)
    full = OSError(errno.ENOSPC, "no space left on device")
    rig.fill(1)
    files.log.broken[("allocate", "/spare/")] = full
    rig.answers.clear()
    acknowledged = 1
    while rig.store.error is None:
        rig.append(300)
        rig.settle()
        acknowledged += rig.answers[-1] is None
    assert rig.answers[-1] is full
    assert rig.answers.count(None) == acknowledged - 1
    files.log.broken.clear()
    rig = rig.reopen()
    assert rig.store.last_llsn == acknowledged
    rig.fill(40)


def test_a_file_size_limit_is_an_error_not_an_acknowledgement(rig: StorageRig) -> None:
    rig.fill(1)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL.data_file_bytes, hard))
        rig.append(20_000)  # needs a larger file
        rig.settle()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert isinstance(rig.answers[-1], OSError)
    rig = rig.reopen()
    assert rig.store.last_llsn == 1
    rig.fill(3, size=20_000)
    assert rig.reopen().read_all(1, 4) == [1, 2, 3, 4]
