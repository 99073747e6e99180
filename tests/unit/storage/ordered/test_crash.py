"""A crash at every byte of the last records, in the data and in the commit log.

What is found after it may be cut off, filled with zeros or filled with garbage from there on. The
recovered context must follow docs/design/ordered.md ("Commit contexts and recovery"), everything
committed before must read back, and the replica must be able to go on.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from storage_rig import StorageRig, batch

from loomlog.core.ordered.recovery import NOWHERE, Place

WAYS = ("cut", "zeros", "garbage")


@pytest.fixture(autouse=True)
def _power_stays_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync nothing: the tests themselves write what a crash leaves, thousands of times."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(os, "fdatasync", lambda file: None)


def break_from(path: Path, offset: int, way: str) -> None:
    """Change every byte from `offset` on."""
    content = bytearray(path.read_bytes())
    rest = len(content) - offset
    if way == "cut":
        del content[offset:]
    elif way == "zeros":
        content[offset:] = bytes(rest)
    else:
        content[offset:] = random.Random(offset).randbytes(rest)
    path.write_bytes(content)


def unharmed(whole: Path, broken: Path, start: int, size: int) -> int:
    """Return how many records of `size` from `start` on are unchanged. Zeros may hit zeros."""
    before, after = whole.read_bytes(), broken.read_bytes()
    count = 0
    while any(record := before[start + count * size : start + (count + 1) * size]):
        if after[start + count * size : start + (count + 1) * size] != record:
            break
        count += 1
    return count


def copies(rig: StorageRig, scratch: Path) -> Iterator[str]:
    """The replica as it is now, again and again."""
    while True:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(rig.path, scratch)
        yield str(scratch)


def first_data_file(path: str) -> Path:
    return min(Path(path, "data").glob("*.seg"))


def last_commit_file(path: str) -> Path:
    return max(Path(path, "commit").glob("*.cc"))


def goes_on(rig: StorageRig) -> None:
    """The replica takes the next entry and its commit, and both survive."""
    end, glsn = rig.next_llsn, rig.store.context.high_watermark + 1
    uncommitted = end - rig.store.context.uncommitted_begin
    rig.append(90, epoch=2)
    rig.commit(glsn=glsn, length=uncommitted + 1, epoch=2)
    rig.settle()
    assert rig.answers == [None, None]
    again = rig.reopen()
    assert not again.store.context.damaged
    assert again.store.context.high_watermark == glsn + uncommitted
    assert len(again.read_all(1, end)) == end
    again.store.close()


@pytest.mark.parametrize("way", WAYS)
def test_data_broken_at_every_byte_of_the_last_batches(tmp_path: Path, way: str) -> None:
    """Three commits of one batch each (GLSN 1, 11, 21), then two batches without a commit."""
    rig = StorageRig(str(tmp_path / "whole"))
    rig.append(40, 40, 40, 40, 40)
    for number in range(3):
        rig.commit(glsn=10 * number + 1, length=1, high_watermark=10 * number + 5)
    rig.settle()
    size = len(batch(1, 40))
    replica = copies(rig, tmp_path / "broken")
    for offset in range(2 * size, 5 * size + 1):
        path = next(replica)
        break_from(first_data_file(path), offset, way)
        stored = unharmed(first_data_file(rig.path), first_data_file(path), 0, size)
        found = StorageRig(path)
        context = found.store.context
        committed = min(stored, 3)
        assert context.uncommitted_end == stored + 1
        assert context.uncommitted_begin == committed + 1
        # Of the partly applied third commit its previous high watermark is left.
        assert context.high_watermark == (25 if stored >= 3 else 15)
        assert context.local_high == Place(10 * committed - 9, committed)
        assert context.local_low == Place(1, 1)
        assert not context.damaged
        assert found.read_all(1, committed) == [1, 11, 21][:committed]
        found.store.close()


@pytest.mark.parametrize("way", WAYS)
def test_commits_broken_at_every_byte_of_the_last_records(tmp_path: Path, way: str) -> None:
    rig = StorageRig(str(tmp_path / "whole"))
    rig.append(40, 40, 40, 40)
    for number in range(3):
        rig.commit(glsn=10 * number + 1, length=1, high_watermark=10 * number + 5)
    rig.settle()
    replica = copies(rig, tmp_path / "broken")
    for offset in range(1024, 1024 + 3 * 64 + 1):
        path = next(replica)
        break_from(last_commit_file(path), offset, way)
        commits = unharmed(last_commit_file(rig.path), last_commit_file(path), 1024, 64)
        assert commits - (offset - 1024) // 64 in (0, 1)
        found = StorageRig(path)
        context = found.store.context
        assert context.uncommitted_end == 5
        assert context.uncommitted_begin == commits + 1
        assert context.high_watermark == (10 * commits - 5 if commits else 0)
        assert context.local_high == (Place(10 * commits - 9, commits) if commits else NOWHERE)
        assert not context.damaged
        assert found.read_all(1, commits) == [1, 11, 21][:commits]
        found.store.close()


@pytest.mark.parametrize("way", WAYS)
def test_it_goes_on_after_every_kind_of_crash(tmp_path: Path, way: str) -> None:
    rig = StorageRig(str(tmp_path / "whole"))
    rig.append(40, 40, 40)
    rig.commit(glsn=1, length=2)
    rig.commit(glsn=3, length=1)
    rig.settle()
    size = len(batch(1, 40))
    replica = copies(rig, tmp_path / "broken")
    for offset in range(2 * size, 3 * size, 13):
        path = next(replica)
        break_from(first_data_file(path), offset, way)
        goes_on(StorageRig(path))
    for offset in range(1024, 1024 + 128, 7):
        path = next(replica)
        break_from(last_commit_file(path), offset, way)
        goes_on(StorageRig(path))


@pytest.mark.parametrize("way", WAYS)
def test_more_than_the_last_commit_lost_is_damage(tmp_path: Path, way: str) -> None:
    rig = StorageRig(str(tmp_path / "whole"))
    rig.fill(5, size=40)
    size = len(batch(1, 40))
    replica = copies(rig, tmp_path / "broken")
    for offset in range(size, 3 * size, 17):
        path = next(replica)
        break_from(first_data_file(path), offset, way)
        found = StorageRig(path)
        stored = offset // size
        assert found.store.context.damaged
        assert found.store.context.uncommitted_begin <= stored + 2
        assert found.read_all(1, stored) == list(range(1, stored + 1))
        found.store.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_torn_empty_commit_never_takes_the_high_watermark_back(tmp_path: Path, way: str) -> None:
    """10 was stored, 20 is being written: one of the two is found, whatever is torn."""
    rig = StorageRig(str(tmp_path / "whole"))
    rig.fill(1)
    rig.commit(glsn=0, length=0, high_watermark=10)
    rig.settle()
    before = last_commit_file(rig.path).read_bytes()
    rig.commit(glsn=0, length=0, high_watermark=20)
    rig.settle()
    after = last_commit_file(rig.path).read_bytes()
    changed = [at for at in range(len(before)) if before[at] != after[at]]
    replica = copies(rig, tmp_path / "broken")
    for end in range(changed[0], changed[-1] + 2):
        path = next(replica)
        torn = after[:end] + before[end:]
        if way == "garbage" and end <= changed[-1]:
            torn = torn[:end] + b"\xff" + torn[end + 1 :]
        last_commit_file(path).write_bytes(torn)
        found = StorageRig(path)
        whole = torn == after
        assert found.store.context.high_watermark == (20 if whole else 10)
        goes_on(found)


def test_a_recovered_high_watermark_is_recovered_again(tmp_path: Path) -> None:
    """The watermark came from a dropped commit; a second crash must not lose it."""
    rig = StorageRig(str(tmp_path / "lsid=7"))
    rig.append(40, 40)
    rig.commit(glsn=1, length=1, high_watermark=5)
    rig.commit(glsn=0, length=0, high_watermark=9)
    rig.commit(glsn=10, length=1)
    rig.settle()
    break_from(first_data_file(rig.path), len(batch(1, 40)), "zeros")
    for _ in range(3):
        rig = rig.reopen()
        assert rig.store.context.high_watermark == 9
        assert (rig.store.context.uncommitted_begin, rig.store.context.uncommitted_end) == (2, 2)
    goes_on(rig)


def test_a_hole_hides_what_is_behind_it(tmp_path: Path) -> None:
    """An unsynced write was lost and a later one was not: the later one does not count, and does
    not come back when the hole is filled."""
    rig = StorageRig(str(tmp_path / "lsid=7"))
    rig.append(40, 40, 40)
    rig.settle()
    size = len(batch(1, 40))
    data = first_data_file(rig.path)
    content = bytearray(data.read_bytes())
    content[size : 2 * size] = bytes(size)
    data.write_bytes(content)
    rig = rig.reopen()
    assert rig.store.last_llsn == 1
    rig.append(40)  # even in the same epoch
    rig.settle()
    assert rig.reopen().store.last_llsn == 2


def damage_record(rig: StorageRig, *numbers: int) -> bytes:
    """Zero these records of the only commit file; return it as it was."""
    [path] = Path(rig.path, "commit").glob("*.cc")
    whole = path.read_bytes()
    content = bytearray(whole)
    for number in numbers:
        content[1024 + number * 64 : 1088 + number * 64] = bytes(64)
    path.write_bytes(content)
    return whole


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_lost_commit_that_can_only_have_been_one_is_written_again(
    tmp_path: Path, number: int
) -> None:
    rig = StorageRig(str(tmp_path / "lsid=7"))
    rig.fill(5, size=40)
    whole = damage_record(rig, number)
    rig = rig.reopen()
    assert not rig.store.context.damaged
    assert rig.store.context.high_watermark == 5
    assert rig.read_all(1, 5) == [1, 2, 3, 4, 5]
    assert last_commit_file(rig.path).read_bytes()[1024:] == whole[1024:]
    goes_on(rig)


def test_a_lost_commit_whose_positions_are_unknown_hides_what_is_behind_it(tmp_path: Path) -> None:
    """The rest shows again when the commits are sent again; the file stays as a copy."""
    rig = StorageRig(str(tmp_path / "lsid=7"))
    rig.append(40, 40, 40, 40)
    glsns = (1, 11, 21, 31)  # the log has other streams
    for glsn in glsns:
        rig.commit(glsn=glsn, length=1, high_watermark=glsn + 4)
    rig.settle()
    damage_record(rig, 1)
    damaged = last_commit_file(rig.path).read_bytes()
    rig = rig.reopen()
    context = rig.store.context
    assert (context.damaged, rig.store.lacks_commits) == (False, True)
    assert (context.high_watermark, context.uncommitted_begin, context.uncommitted_end) == (5, 2, 5)
    assert rig.read_all(1, 1) == [1]
    assert damaged.startswith(Path(f"{last_commit_file(rig.path)}.damaged").read_bytes())
    for glsn in glsns[1:]:
        assert rig.store.lacks_commits
        rig.commit(glsn=glsn, length=1, high_watermark=glsn + 4)
    rig.settle()
    assert not rig.store.lacks_commits
    for _ in range(2):
        assert rig.read_all(1, 4) == list(glsns)
        rig = rig.reopen()
        assert not rig.store.context.damaged
        assert rig.store.context.high_watermark == 35


def test_a_commit_file_is_not_removed_because_its_first_record_is_damaged(tmp_path: Path) -> None:
    rig = StorageRig(str(tmp_path / "lsid=7"))
    rig.fill(12)
    files = sorted(Path(rig.path, "commit").iterdir())
    assert len(files) == 2
    content = bytearray(files[1].read_bytes())
    content[1024 + 30] ^= 1
    files[1].write_bytes(content)
    rig = rig.reopen()
    assert not rig.store.context.damaged
    assert rig.read_all(1, 12) == list(range(1, 13))

    content[1024 : 1024 + 128] = bytes(128)  # two of them
    files[1].write_bytes(content)
    rig = rig.reopen()
    assert (rig.store.context.damaged, rig.store.context.high_watermark) == (False, 8)
    assert rig.store.lacks_commits
    assert content.startswith(Path(f"{files[1]}.damaged").read_bytes())


@pytest.mark.parametrize("jobs", range(12))
def test_a_crash_between_the_jobs_of_a_roll(tmp_path: Path, jobs: int) -> None:
    rig = StorageRig(str(tmp_path / "lsid=7"))
    rig.fill(18)
    for _ in range(6):  # over the edge of the first data file
        rig.append(900)
    for _ in range(jobs):
        if rig.worker.jobs:
            rig.worker.work()
    acknowledged = 18 + rig.answers.count(None) - 36
    rig = rig.reopen()
    assert rig.store.last_llsn >= acknowledged
    assert not rig.store.context.damaged
    assert rig.read_all(1, 18) == list(range(1, 19))
    goes_on(rig)


def test_a_roll_of_the_commit_log_whose_first_record_is_lost(tmp_path: Path) -> None:
    rig = StorageRig(str(tmp_path / "lsid=7"))
    rig.fill(9)
    files = sorted(Path(rig.path, "commit").iterdir())
    assert len(files) == 2
    break_from(files[1], 0, "zeros")
    rig = rig.reopen()
    assert rig.store.context.high_watermark == 8
    assert (rig.store.context.uncommitted_begin, rig.store.context.uncommitted_end) == (9, 10)
    goes_on(rig)
