"""A replica's files: append, commit, read, roll, cut and trim, on the real disk."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from storage_rig import SMALL, STREAM, StorageRig, WatchedFiles, batch, with_sync

from loomlog.batch import assign_position, split
from loomlog.config import StorageSettings
from loomlog.core.ordered.recovery import NOWHERE, Place
from loomlog.errors import AlreadyExists, Corrupt, InvalidArgument, NotYetWritten, Trimmed
from loomlog.limits import APPENDS_IN_FLIGHT_MAX
from loomlog.storage.disk import RealFile, RealFiles
from loomlog.storage.files import File, NotCached, from_cache
from loomlog.storage.ordered.replica_paths import StreamMeta
from loomlog.storage.ordered.stream_store import StreamStore
from loomlog.types import CommitContext, SyncMode


@pytest.fixture
def rig(tmp_path: Path) -> StorageRig:
    return StorageRig(str(tmp_path / "lsid=7"))


def data_files(rig: StorageRig) -> list[str]:
    return [name for name in rig.files.list(f"{rig.path}/data") if name.endswith(".seg")]


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
    assert len(data_files(rig)) > 8
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
    assert len(data_files(rig)) == 10
    assert rig.reopen().read_all(1, 20) == list(range(1, 21))


def test_a_batch_larger_than_a_data_file_gets_one_of_its_own(rig: StorageRig) -> None:
    rig.fill(1)
    rig.fill(2, size=20_000)
    rig.fill(1)
    assert len(data_files(rig)) == 4
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
        """Nothing of it is in the page cache."""

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
    full, last = data_files(rig)[:-1], data_files(rig)[-1]
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
    index = Path(rig.path, "data", data_files(rig)[2][:-4] + ".idx")
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
    assert len(data_files(rig)) == 1
    files.log.calls.clear()
    while len(data_files(rig)) == 1:
        rig.fill(1)
    assert files.log.count("allocate", "/spare/") == 0


# ---- cutting


@pytest.mark.parametrize("keep", [0, 1, 20, 21, 24, 25, 99, 100])
def test_truncated_entries_never_come_back(rig: StorageRig, keep: int) -> None:
    rig.append(*[300] * 100, epoch=3)
    rig.settle()
    rig.store.truncate(keep, rig.done)
    rig.settle()
    assert rig.answers == [None, None]
    assert rig.store.last_llsn == keep
    again = rig.reopen()
    assert again.store.last_llsn == keep

    again.append(300, epoch=3)  # the same size: what was behind it would fit on
    again.settle()
    again = again.reopen()
    assert again.store.last_llsn == keep + 1
    again.commit(glsn=1, length=keep + 1)
    again.settle()
    assert len(again.read_all(1, keep + 1)) == keep + 1


def test_a_large_batch_after_everything_was_cut(rig: StorageRig) -> None:
    rig.append(100)
    rig.settle()
    rig.store.truncate(0, rig.done)
    rig.settle()
    rig.fill(3, size=20_000)
    assert len(data_files(rig)) == 3
    assert rig.reopen().read_all(1, 3) == [1, 2, 3]


def test_two_trims_at_once_leave_no_hole(rig: StorageRig) -> None:
    rig.fill(200)
    rig.store.trim(60, rig.done)
    rig.store.trim(120, rig.done)
    while rig.worker.jobs:
        rig.worker.work()
        firsts = [int(name[:-4]) for name in data_files(rig)]
        known = [data_file.first_llsn for data_file in rig.store._data._data_files]
        assert firsts[-len(known) :] == known
        assert firsts == sorted(firsts)
        lengths = {firsts[i + 1] - firsts[i] for i in range(len(firsts) - 1)}
        assert len(lengths) <= 2, "no data file between two others is missing"
    assert rig.read_all(121, 200) == list(range(121, 201))


def test_a_trim_while_the_tail_is_cut(rig: StorageRig) -> None:
    rig.fill(100)
    rig.append(*[300] * 30)
    rig.store.trim(90, rig.done)
    rig.store.truncate(100, rig.done)
    rig.settle()
    assert set(rig.answers) == {None}
    rig.fill(20)
    assert rig.reopen().read_all(91, 120) == list(range(91, 121))


def test_what_is_committed_is_not_cut(rig: StorageRig) -> None:
    rig.fill(3)
    with pytest.raises(InvalidArgument, match="committed"):
        rig.store.truncate(2, rig.done)


def test_a_batch_is_not_cut_in_two(rig: StorageRig) -> None:
    rig.append(100, count=10)
    rig.settle()
    rig.store.truncate(5, rig.done)
    rig.settle()
    assert isinstance(rig.answers[-1], InvalidArgument)


def test_no_append_while_it_is_cut(rig: StorageRig) -> None:
    rig.append(100, 100)
    rig.settle()
    rig.store.truncate(1, rig.done)
    with pytest.raises(InvalidArgument, match="being cut"):
        rig.append(100)
    rig.settle()
    rig.append(100)
    rig.settle()
    assert rig.reopen().store.last_llsn == 2


# ---- trimming


def test_trim_drops_whole_data_files_and_survives_a_restart(rig: StorageRig) -> None:
    rig.fill(200)
    before, size = data_files(rig), rig.store.stored_bytes
    rig.store.trim(120, rig.done)
    rig.settle()
    assert rig.answers[-1] is None
    assert rig.store.local_low == Place(121, 121)
    kept = data_files(rig)
    assert kept == before[-len(kept) :]
    assert int(kept[0][:-4]) <= 121 < int(kept[1][:-4])
    assert rig.store.stored_bytes < size / 2
    for store in rig.twice():
        assert store.meta.trimmed_glsn == 120
        with pytest.raises(Trimmed):
            store.read(120, 120, 100)
        with pytest.raises(Trimmed):
            store.read(1, 120, 100)
        assert store.read(121, 121, 100).first_glsn == 121
    rig = rig.reopen()
    assert rig.store.context.local_low == Place(121, 121)
    assert rig.read_all(121, 200) == list(range(121, 201))
    assert not rig.store.context.damaged


@pytest.mark.parametrize("trimmed", range(90, 100))
def test_a_reader_goes_on_where_a_trim_has_just_ended(rig: StorageRig, trimmed: int) -> None:
    """It does so even if the commit that it read last was dropped with its file."""
    rig.fill(200)
    rig = rig.reopen()  # so that old commits are on disk only
    assert rig.read_all(1, trimmed) == list(range(1, trimmed + 1))
    rig.store.trim(trimmed, rig.done)
    rig.settle()
    assert rig.read_all(trimmed + 1, 200) == list(range(trimmed + 1, 201))


def test_everything_can_be_trimmed(rig: StorageRig) -> None:
    rig.fill(100)
    rig.store.trim(100, rig.done)
    rig.settle()
    assert rig.store.local_low == NOWHERE
    rig = rig.reopen()
    context = rig.store.context
    assert (context.high_watermark, context.uncommitted_begin) == (100, 101)
    assert (context.local_low, context.local_high) == (NOWHERE, Place(100, 100))
    rig.fill(1)
    assert rig.store.local_low == Place(101, 101)
    assert rig.read_all(101, 101) == [101]


def test_a_trim_between_two_commits(rig: StorageRig) -> None:
    rig.append(10, 10, count=5)
    rig.commit(glsn=11, length=5)
    rig.commit(glsn=31, length=5)
    rig.store.trim(20, rig.done)
    rig.settle()
    assert rig.store.local_low == Place(31, 6)
    rig.store.trim(32, rig.done)
    rig.store.trim(12, rig.done)  # late: changes nothing
    rig.settle()
    assert rig.store.local_low == Place(33, 8)
    assert rig.reopen().store.local_low == Place(33, 8)


def test_commits_that_come_during_a_trim_count(rig: StorageRig) -> None:
    rig.fill(3)
    rig.store.trim(3, rig.done)
    rig.worker.work()
    rig.append(10)
    rig.commit(glsn=4, length=1)
    rig.settle()
    assert rig.store.local_low == Place(4, 4)


def test_a_trim_that_was_interrupted_is_finished_at_the_next_start(rig: StorageRig) -> None:
    rig.fill(200)
    before = len(data_files(rig))
    rig.store.trim(120, rig.done)
    rig.worker.work()  # it is recorded; no file is gone
    assert len(data_files(rig)) == before
    rig = rig.reopen()
    assert len(data_files(rig)) < before
    assert rig.read_all(121, 200) == list(range(121, 201))


def test_trimmed_files_are_written_again(tmp_path: Path) -> None:
    files = WatchedFiles()
    rig = StorageRig(str(tmp_path / "lsid=7"), files=files)
    rig.fill(100)
    rig.store.trim(90, rig.done)
    rig.settle()
    assert len(files.list(f"{rig.path}/spare")) == SMALL.spare_files_max
    files.log.calls.clear()
    rig.fill(24)
    assert files.log.count("rename", "/data/") >= 1
    assert files.log.count("allocate", ".seg") == 0
    assert rig.read_all(91, 124) == list(range(91, 125))


def test_stale_batches_in_a_recycled_file_are_not_data(rig: StorageRig) -> None:
    """The worst case: the next batch stands right behind, of the same stream, sound."""
    for _ in range(30):
        rig.append(300)
    rig.commit(glsn=1, length=30)
    rig.settle()
    rig.store.trim(30, rig.done)
    rig.settle()
    spare = Path(rig.path, "spare", rig.files.list(f"{rig.path}/spare")[0])
    size = len(batch(1, 300))
    assert spare.stat().st_size == SMALL.data_file_bytes
    rig.fill(1)
    while len(data_files(rig)) == 1:
        rig.append(300, epoch=2)
        rig.settle()
    first = rig.store.last_llsn
    active = Path(rig.path, "data", data_files(rig)[-1])
    content = bytearray(active.read_bytes())
    assert any(content[size:]), "there are stale bytes in it"
    for llsn in range(first + 1, first + 15):  # an older life of the very same LLSNs
        at = (llsn - first) * size
        content[at : at + size] = batch(llsn, 300, epoch=1)
    active.write_bytes(content)
    rig = rig.reopen()
    assert rig.store.last_llsn == first
    assert not any(active.read_bytes()[size:])


def test_a_reader_of_a_file_that_is_written_again_hears_trimmed(rig: StorageRig) -> None:
    rig.fill(100)
    data_file = rig.store._data._data_files[0]
    rig.store.trim(90, rig.done)
    rig.settle()
    rig.fill(60)
    with pytest.raises(Trimmed):
        data_file.read(1, 5, 1 << 20, lambda file, size, offset: file.read(size, offset))


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


# ---- corruption


def test_a_corrupt_batch_is_named_and_never_served(rig: StorageRig) -> None:
    rig.fill(100)
    name = data_files(rig)[1]
    path = Path(rig.path, "data", name)
    first, size = int(name[:-4]), len(batch(1, 300))
    content = bytearray(path.read_bytes())
    content[3 * size + 200] ^= 1
    path.write_bytes(content)
    rig = rig.reopen()  # it is not in the last data file: found when it is read
    assert not rig.store.context.damaged
    assert rig.read_all(1, first + 2) == list(range(1, first + 3))
    with pytest.raises(Corrupt) as caught:
        rig.store.read(first + 3, 100, 10)
    for part in (str(path), f"at {3 * size}", f"stream {STREAM}", f"LLSN {first + 3}"):
        assert part in str(caught.value)
    with pytest.raises(Corrupt):
        rig.store.read(first, 100, 1 << 20)
    assert rig.store.read(first + 4, 100, 10).first_llsn == first + 4


def test_a_corrupt_commit_record_is_never_served(rig: StorageRig) -> None:
    rig.fill(40)
    path = sorted(Path(rig.path, "commit").iterdir())[1]
    content = bytearray(path.read_bytes())
    content[1024 + 3 * 64 + 30] ^= 1
    path.write_bytes(content)
    rig = rig.reopen()
    with pytest.raises(Corrupt, match=r"no sound commit record 11"):
        rig.store.find(12)
    with pytest.raises(Corrupt, match=path.name):
        rig.store.read(12, 12, 10)
    assert rig.read_all(17, 40) == list(range(17, 41))


def change(rig: StorageRig, llsns: range, at: int, new: Callable[[int], bytes | None]) -> bytes:
    """Flip a byte of these batches in the first data file, or replace them; return it as it was."""
    path, size = Path(rig.path, "data", data_files(rig)[0]), len(batch(1, 300))
    before = path.read_bytes()
    content = bytearray(before)
    for llsn in llsns:
        begin = (llsn - 1) * size
        content[begin + at] ^= 1
        if (other := new(llsn)) is not None:
            content[begin : begin + size] = other
    path.write_bytes(content)
    return before


def damage(rig: StorageRig, llsns: range, at: int) -> bytes:
    return change(rig, llsns, at, lambda llsn: None)


@pytest.mark.parametrize("at", [10, 200], ids=["header", "body"])
@pytest.mark.parametrize(("first", "last"), [(1, 1), (5, 5), (4, 7), (9, 9)])
def test_batches_broken_in_the_middle_cut_nothing_off(
    rig: StorageRig, at: int, first: int, last: int
) -> None:
    rig.fill(10)
    whole = damage(rig, range(first, last + 1), at)
    path = Path(rig.path, "data", data_files(rig)[0])
    broken = path.read_bytes()
    rig = rig.reopen()
    context = rig.store.context
    assert (context.damaged, context.readable) == (False, True)
    assert (context.high_watermark, context.uncommitted_end) == (10, 11)
    known = [llsn for b in rig.store.broken for llsn in range(b.llsn, b.next_llsn)]
    assert known == list(range(first, last + 1))
    for llsn in range(1, 11):
        if first <= llsn <= last:
            with pytest.raises(Corrupt):
                rig.store.read(llsn, llsn, 1)
        else:
            assert rig.store.read(llsn, llsn, 1).first_llsn == llsn
    assert path.read_bytes()[: len(broken)].rstrip(b"\0") == broken.rstrip(b"\0")

    size = len(batch(1, 300))
    for llsn in range(first, last + 1):  # with the copies of a peer
        found = rig.store.examine(llsn, 10, 1 << 20).broken
        assert found is not None
        assert found.llsn == llsn
        sound = memoryview(whole)[(llsn - 1) * size : llsn * size]
        rig.store.overwrite(found, sound, rig.done)
        rig.settle()
    rig.append(300)
    rig.settle()
    rig = rig.reopen()
    assert rig.store.broken == []
    assert rig.read_all(1, 10) == list(range(1, 11))
    assert rig.store.last_llsn == 11


@pytest.mark.parametrize("at", [10, 200], ids=["header", "body"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_broken_end_of_a_data_file_does_not_hide_the_next_ones(
    rig: StorageRig, at: int, count: int
) -> None:
    """Though its index is lost, too."""
    rig.fill(60)
    names = data_files(rig)
    assert len(names) > 2
    following = int(names[1][:-4])
    broken = range(following - count, following)
    whole = damage(rig, broken, at)
    for index in Path(rig.path, "data").glob("*.idx"):
        index.unlink()
    rig = rig.reopen()
    assert not rig.store.context.damaged
    assert data_files(rig) == names
    known = [llsn for b in rig.store.broken for llsn in range(b.llsn, b.next_llsn)]
    assert known == list(broken)
    assert rig.read_all(following, 60) == list(range(following, 61))

    size = len(batch(1, 300))
    for llsn in broken:  # with the copies of a peer
        found = rig.store.examine(llsn, 60, 1 << 20).broken
        assert found is not None
        assert found.llsn == llsn
        sound = memoryview(whole)[(llsn - 1) * size : llsn * size]
        rig.store.overwrite(found, sound, rig.done)
        rig.settle()
    for known_one in rig.store.broken:
        rig.store.set_sound(known_one.llsn)
    assert rig.read_all(1, 60) == list(range(1, 61))
    rig = rig.reopen()
    assert rig.store.broken == []
    assert rig.read_all(1, 60) == list(range(1, 61))


def test_a_broken_batch_that_is_not_committed_is_cut_off(rig: StorageRig) -> None:
    rig.append(300, 300, 300, 300)
    rig.commit(glsn=1, length=1)
    rig.settle()
    damage(rig, range(2, 3), 200)  # a torn write, and a later one that is whole
    rig = rig.reopen()
    assert (rig.store.last_llsn, rig.store.broken) == (1, [])


@pytest.mark.parametrize(
    "stale",
    [
        lambda llsn: batch(llsn, 300, epoch=1),  # an epoch that was sealed
        lambda llsn: batch(llsn + 100, 300, epoch=2),  # what was never committed here
        lambda llsn: batch(llsn - 3, 300, epoch=2),  # what was trimmed
    ],
)
def test_stale_batches_behind_a_broken_one_do_not_come_back(
    rig: StorageRig, stale: Callable[[int], bytes]
) -> None:
    rig.append(300, 300, epoch=2)
    rig.commit(glsn=1, length=2, epoch=2)
    rig.append(300, 300, 300, epoch=2)
    rig.commit(glsn=3, length=1, epoch=2)
    rig.settle()
    change(rig, range(4, 6), 0, stale)
    damage(rig, range(3, 4), 10)
    rig = rig.reopen()
    assert (rig.store.last_llsn, rig.store.broken) == (2, [])


def test_committed_bytes_that_cannot_be_told_apart_are_set_aside(rig: StorageRig) -> None:
    rig.fill(10)
    damage(rig, range(5, 11), 10)
    path = Path(rig.path, "data", data_files(rig)[0])
    rest = path.read_bytes()[4 * len(batch(1, 300)) :]
    rig = rig.reopen()
    context = rig.store.context
    assert (context.damaged, context.readable) == (True, True)
    assert (context.high_watermark, context.uncommitted_begin, context.uncommitted_end) == (4, 5, 5)
    assert rig.read_all(1, 4) == [1, 2, 3, 4]
    assert rest.startswith(Path(f"{path}.damaged").read_bytes())
    assert list(Path(rig.path, "commit").glob("*.cc.damaged"))


def test_batches_with_broken_headers_leave_producers_uncertain(rig: StorageRig) -> None:
    rig.fill(10)
    damage(rig, range(5, 6), 10)
    rig = rig.reopen()
    assert rig.store.producers_from == 6


@pytest.mark.parametrize("at", [4, 10, 20, 200], ids=["length", "header", "stream", "body"])
@pytest.mark.parametrize("llsns", [range(10, 11), range(9, 11), range(9, 10)])
def test_what_was_whole_when_it_was_closed_is_damaged_not_torn(
    rig: StorageRig, at: int, llsns: range
) -> None:
    """Nothing is cut off, also not by a crash after the next start, and peers can repair it."""
    rig.fill(10)
    rig.close()
    whole = damage(rig, llsns, at)
    path = Path(rig.path, "data", data_files(rig)[0])
    broken = path.read_bytes().rstrip(b"\0")
    for _ in range(2):
        rig = rig.reopen()
        context = rig.store.context
        assert (context.damaged, context.uncommitted_end) == (False, 11)
        known = [llsn for b in rig.store.broken for llsn in range(b.llsn, b.next_llsn)]
        assert known == list(llsns)
        assert path.read_bytes().rstrip(b"\0") == broken
        assert rig.read_all(1, 8) == list(range(1, 9))
    size = len(batch(1, 300))
    for llsn in llsns:  # with the copies of a peer
        found = rig.store.examine(llsn, 10, 1 << 20).broken
        assert found is not None
        rig.store.overwrite(found, memoryview(whole)[(llsn - 1) * size : llsn * size], rig.done)
        rig.settle()
    for known_one in rig.store.broken:
        rig.store.set_sound(known_one.llsn)
    rig.fill(40)
    assert rig.read_all(1, 50) == list(range(1, 51))
    rig = rig.reopen()
    assert rig.store.broken == []
    assert rig.read_all(1, 50) == list(range(1, 51))


def test_what_was_not_committed_when_it_was_closed_is_kept_and_does_not_count(
    rig: StorageRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.fill(9)
    rig.append(300)
    rig.settle()
    rig.close()
    damage(rig, range(10, 11), 200)
    path = Path(rig.path, "data", data_files(rig)[0])
    rig = rig.reopen()
    assert (rig.store.last_llsn, rig.store.broken) == (9, [])
    assert f"LLSN 10 to 10 are damaged, kept in {path}.damaged" in caplog.text
    assert Path(f"{path}.damaged").exists()


def test_a_mark_of_the_end_does_not_outlive_a_cut(rig: StorageRig) -> None:
    rig.fill(5)
    rig.append(300, 300)
    rig.settle()
    rig.close()
    rig = rig.reopen()
    rig.store.truncate(5, rig.done)
    rig.settle()
    rig = rig.reopen()
    assert (rig.store.last_llsn, rig.store.broken) == (5, [])


def test_a_write_that_may_be_unfinished_is_kept(
    rig: StorageRig, caplog: pytest.LogCaptureFixture
) -> None:
    """After a crash, damage of the last batches cannot be told from it."""
    rig.fill(3)
    rig.append(300, 300)
    rig.settle()
    damage(rig, range(4, 5), 200)
    path = Path(rig.path, "data", data_files(rig)[0])
    rest = path.read_bytes()[3 * len(batch(1, 300)) :]
    rig = rig.reopen()
    assert (rig.store.last_llsn, rig.store.broken, rig.store.lost_llsns) == (3, [], range(0))
    assert rest.startswith(Path(f"{path}.damaged").read_bytes())
    assert f"an unfinished write, or damage, kept in {path}.damaged" in caplog.text
    rig = rig.reopen()
    assert len(list(path.parent.glob("*.damaged*"))) == 1


def test_the_last_commit_is_damaged_after_a_crash(rig: StorageRig) -> None:
    rig.fill(3)
    damage(rig, range(3, 4), 200)
    path = Path(rig.path, "data", data_files(rig)[0])
    rig = rig.reopen()
    assert (rig.store.last_llsn, rig.store.lost_llsns) == (2, range(3, 4))
    assert rig.store.kept == f"{path}.damaged"
    rig.fill(1)
    assert not rig.store.lost_llsns
    rig.store.restart(7, 20, 0, rig.done)
    rig.settle()
    assert Path(f"{path}.damaged").exists(), "also when the replica is filled again"


def test_a_missing_data_file_is_damage(rig: StorageRig) -> None:
    rig.fill(100)
    missing = data_files(rig)[2]
    Path(rig.path, "data", missing).unlink()
    rig = rig.reopen()
    context = rig.store.context
    assert context.damaged
    assert context.uncommitted_begin == int(missing[:-4])
    assert rig.read_all(1, int(missing[:-4]) - 1) == list(range(1, int(missing[:-4])))


def test_a_commit_file_whose_start_is_lost_is_damage(rig: StorageRig) -> None:
    rig.fill(40)
    path = sorted(Path(rig.path, "commit").iterdir())[1]
    content = bytearray(path.read_bytes())
    content[1024:1088] = bytes(64)
    path.write_bytes(content)
    rig = rig.reopen()
    assert rig.store.context.damaged
    with pytest.raises(Corrupt):
        rig.store.find(9)
    assert [rig.store.find(glsn) is not None for glsn in (1, 8, 17, 40)] == [True] * 4
