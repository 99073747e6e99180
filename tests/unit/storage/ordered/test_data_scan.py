"""Data files and commit files that were damaged, when they are opened and read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from storage_rig import STREAM, StorageRig, batch

from loomlog.errors import Corrupt


@pytest.fixture
def rig(tmp_path: Path) -> StorageRig:
    return StorageRig(str(tmp_path / "lsid=7"))


def test_a_corrupt_batch_is_named_and_never_served(rig: StorageRig) -> None:
    rig.fill(100)
    name = rig.data_files()[1]
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
    path, size = Path(rig.path, "data", rig.data_files()[0]), len(batch(1, 300))
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
    path = Path(rig.path, "data", rig.data_files()[0])
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
    names = rig.data_files()
    assert len(names) > 2
    following = int(names[1][:-4])
    broken = range(following - count, following)
    whole = damage(rig, broken, at)
    for index in Path(rig.path, "data").glob("*.idx"):
        index.unlink()
    rig = rig.reopen()
    assert not rig.store.context.damaged
    assert rig.data_files() == names
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
    path = Path(rig.path, "data", rig.data_files()[0])
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
    """The data is not cut off, not even after a crash following the next start, and peers can
    repair it."""
    rig.fill(10)
    rig.close()
    whole = damage(rig, llsns, at)
    path = Path(rig.path, "data", rig.data_files()[0])
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
    path = Path(rig.path, "data", rig.data_files()[0])
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
    """Damage of the last batches looks like an unfinished write after a crash."""
    rig.fill(3)
    rig.append(300, 300)
    rig.settle()
    damage(rig, range(4, 5), 200)
    path = Path(rig.path, "data", rig.data_files()[0])
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
    path = Path(rig.path, "data", rig.data_files()[0])
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
    missing = rig.data_files()[2]
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
