"""A replica's files are cut and trimmed, on the real disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from storage_rig import SMALL, StorageRig, WatchedFiles, batch

from loomlog.core.ordered.recovery import NOWHERE, Place
from loomlog.errors import InvalidArgument, Trimmed


@pytest.fixture
def rig(tmp_path: Path) -> StorageRig:
    return StorageRig(str(tmp_path / "lsid=7"))


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
    assert len(rig.data_files()) == 3
    assert rig.reopen().read_all(1, 3) == [1, 2, 3]


def test_two_trims_at_once_leave_no_hole(rig: StorageRig) -> None:
    rig.fill(200)
    rig.store.trim(60, rig.done)
    rig.store.trim(120, rig.done)
    while rig.worker.jobs:
        rig.worker.work()
        firsts = [int(name[:-4]) for name in rig.data_files()]
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
    before, size = rig.data_files(), rig.store.stored_bytes
    rig.store.trim(120, rig.done)
    rig.settle()
    assert rig.answers[-1] is None
    assert rig.store.local_low == Place(121, 121)
    kept = rig.data_files()
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
    """A reader does so even if the commit that it read last was dropped with its file."""
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
    before = len(rig.data_files())
    rig.store.trim(120, rig.done)
    rig.worker.work()  # it is recorded; no file is gone
    assert len(rig.data_files()) == before
    rig = rig.reopen()
    assert len(rig.data_files()) < before
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
    while len(rig.data_files()) == 1:
        rig.append(300, epoch=2)
        rig.settle()
    first = rig.store.last_llsn
    active = Path(rig.path, "data", rig.data_files()[-1])
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
