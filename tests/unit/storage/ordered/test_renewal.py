"""A replica that is wiped, copied to another, examined and repaired: its files."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from storage_rig import SMALL, STREAM, StorageRig, WatchedFiles, batch

from loomlog.batch import read_header, split
from loomlog.errors import Corrupt, InvalidArgument, NotYetWritten, Trimmed
from loomlog.storage.disk import RealFiles
from loomlog.storage.ordered.data_file import Broken
from loomlog.storage.ordered.stream_reader import ReplicaPart, check_cover, cut
from loomlog.testing.sim.disk import SimDisk
from loomlog.testing.sim.world import World
from loomlog.types import CommitContext


@pytest.fixture
def rig(tmp_path: Path) -> StorageRig:
    return StorageRig(str(tmp_path / "lsid=7"))


def restart(rig: StorageRig, first_llsn: int, high_watermark: int, trimmed_glsn: int) -> None:
    rig.store.restart(first_llsn, high_watermark, trimmed_glsn, rig.done)
    rig.settle()
    assert rig.answers[-1] is None


def flip(rig: StorageRig, llsn: int, at: int = 200) -> None:
    """Change one byte of the batch with this LLSN on disk."""
    for path in sorted(Path(rig.path, "data").glob("*.seg")):
        content = bytearray(path.read_bytes())
        offset = 0
        while offset < len(content):
            try:
                header = read_header(content, offset)
            except Corrupt:
                break
            if header.first_llsn <= llsn <= header.last_llsn:
                content[offset + at] ^= 1
                path.write_bytes(content)
                return
            offset += header.size
    raise AssertionError(f"no LLSN {llsn}")


def parts(rig: StorageRig, first_llsn: int, last_llsn: int, max_bytes: int) -> list[ReplicaPart]:
    found = []
    while first_llsn <= last_llsn:
        found.append(rig.store.read_part(first_llsn, last_llsn, max_bytes))
        first_llsn = found[-1].last_llsn + 1
    return found


def take_in(rig: StorageRig, part: ReplicaPart) -> None:
    views = [view for _, view in split(part.buffer)]
    rig.store.append(views, part.first_llsn, part.last_llsn, rig.done)
    for commit in part.commits:
        rig.store.commit(commit, rig.done)
    rig.settle()


# ---- beginning anew


def test_a_wiped_replica_goes_on_above_llsn_1_also_after_a_restart(rig: StorageRig) -> None:
    rig.fill(40)
    restart(rig, 101, 500, 480)
    for store in rig.twice():
        context = store.context
        assert (context.high_watermark, context.uncommitted_begin) == (500, 101)
        assert (context.uncommitted_end, context.damaged) == (101, False)
        assert (store.last_llsn, store.first_kept, store.meta.trimmed_glsn) == (100, 101, 480)
        assert store.producers() == {}


def test_a_wiped_replica_takes_entries_at_its_base(rig: StorageRig) -> None:
    rig.fill(40)
    restart(rig, 101, 500, 480)
    rig.append(300, 300)
    rig.store.commit(CommitContext(510, 500, 501, 101, 2, 1), rig.done)
    rig.settle()
    again = rig.reopen()
    assert again.read_all(101, 102) == [501, 502]
    assert again.store.context.high_watermark == 510
    assert not again.store.context.damaged
    with pytest.raises(Trimmed):
        again.store.read(100, 100, 1)
    assert not Path(rig.path, "wiped").exists()


def test_a_wipe_waits_until_a_trim_before_it_has_removed_its_files(rig: StorageRig) -> None:
    """Files of the wiped replica have the same names."""
    rig.fill(200)
    rig.store.trim(120, rig.done)
    restart(rig, 1, 500, 480)
    assert rig.answers[-2:] == [None, None]
    rig.append(300)
    rig.store.commit(CommitContext(501, 500, 501, 1, 1, 1), rig.done)
    rig.settle()
    again = rig.reopen()
    assert again.read_all(1, 1) == [501]
    assert not again.store.context.damaged


def test_the_first_commit_after_a_wipe_may_be_applied_in_part(rig: StorageRig) -> None:
    restart(rig, 101, 500, 0)
    rig.append(300)
    rig.store.commit(CommitContext(510, 500, 501, 101, 2, 1), rig.done)  # the second never came
    rig.settle()
    for _ in range(2):
        rig = rig.reopen()
        context = rig.store.context
        assert (context.high_watermark, context.uncommitted_begin) == (500, 101)
        assert not context.damaged


def test_a_wipe_gets_over_a_failed_disk(tmp_path: Path) -> None:
    files = WatchedFiles()
    rig = StorageRig(str(tmp_path / "lsid=7"), SMALL, files)
    rig.fill(3)
    files.log.broken["sync", ".seg"] = OSError(errno.EIO, "broken")
    rig.append(100)
    rig.settle()
    assert isinstance(rig.answers[-1], OSError)
    files.log.broken.clear()
    restart(rig, 1, 0, 0)
    assert rig.store.error is None
    rig.fill(3)
    assert rig.read_all(1, 3) == [1, 2, 3]


def test_a_wipe_that_fails_leaves_the_error(tmp_path: Path) -> None:
    files = WatchedFiles()
    rig = StorageRig(str(tmp_path / "lsid=7"), SMALL, files)
    rig.fill(3)
    files.log.broken["rename", "meta"] = OSError(errno.ENOSPC, "full")
    rig.store.restart(9, 9, 0, rig.done)
    rig.settle()
    assert isinstance(rig.answers[-1], OSError)
    assert rig.store.error is rig.answers[-1]
    assert rig.reopen().read_all(1, 3) == [1, 2, 3]


def test_a_failed_replica_is_recovered_when_there_is_room_again(tmp_path: Path) -> None:
    files = WatchedFiles()
    rig = StorageRig(str(tmp_path / "lsid=7"), SMALL, files)
    rig.fill(3)
    files.log.broken["write", ".seg"] = OSError(errno.ENOSPC, "full")
    rig.append(100)
    rig.settle()
    files.log.broken.clear()
    rig.store.reopen(rig.done)
    rig.settle()
    assert rig.store.error is None
    assert rig.store.context.uncommitted_begin == 4
    rig.fill(2)
    assert rig.read_all(1, 5) == [1, 2, 3, 4, 5]


class PowerLoss(BaseException):
    """Raised when the power is lost. It is not an error: nothing may catch it."""


def power_lost() -> None:
    raise PowerLoss


def simulated_disk(seed: int) -> SimDisk:
    disk = SimDisk(World(seed), "host")
    files = disk.mount()
    files.make_directory("/volume")
    files.sync_directory("/")
    return disk


def test_power_lost_at_any_change_of_a_wipe_leaves_the_old_replica_or_the_wiped_one() -> None:
    outcomes = set()
    for change in range(1, 60):
        disk = simulated_disk(change)
        rig = StorageRig("/volume/lsid=7", SMALL, disk.mount())
        rig.fill(40)
        disk.strike_after(change, power_lost)
        answers: list[BaseException | None] = []
        try:
            rig.store.restart(101, 500, 480, answers.append)
            rig.settle()
        except PowerLoss:
            pass
        disk.strike_after(0, None)
        disk.crash()
        again = StorageRig("/volume/lsid=7", SMALL, disk.mount())
        context = again.store.context
        assert not context.damaged
        outcomes.add((context.uncommitted_begin, bool(answers)))
        if context.uncommitted_begin == 101:
            assert (context.high_watermark, again.store.last_llsn) == (500, 100)
            with pytest.raises(NotYetWritten):
                again.store.read(101, 101, 1)
        else:
            assert again.read_all(1, 40) == list(range(1, 41))
        assert not again.files.exists("/volume/lsid=7/wiped")
    assert outcomes == {(41, False), (101, False), (101, True)}


# ---- parts


@pytest.mark.parametrize("max_bytes", [1, 1000, 5000, 1 << 20])
def test_parts_make_an_equal_replica(rig: StorageRig, tmp_path: Path, max_bytes: int) -> None:
    for _ in range(4):
        rig.append(*[300] * 11, count=3)
    rig.commit(glsn=11, length=30, high_watermark=50)
    rig.commit(glsn=61, length=3, high_watermark=63)
    rig.commit(glsn=71, length=99, high_watermark=200)
    rig.settle()
    copy = StorageRig(str(tmp_path / "copy"))
    for part in parts(rig, 1, 132, max_bytes):
        assert part.commits[0].llsn == part.first_llsn
        assert sum(c.length for c in part.commits) == part.last_llsn - part.first_llsn + 1
        take_in(copy, part)
    assert copy.read_all(1, 132) == rig.read_all(1, 132)
    assert copy.store.producers() == rig.store.producers()
    assert copy.store._commits.last is not None
    assert copy.store._commits.last.high_watermark == 200
    for path in Path(rig.path, "data").glob("*.seg"):
        assert Path(copy.path, "data", path.name).read_bytes() == path.read_bytes()


def test_a_piece_of_a_commit_claims_no_more_than_it_has() -> None:
    commit = CommitContext(90, 10, 11, 1, 30, 4)
    assert cut(commit, 1, 30) == commit
    assert cut(commit, 1, 10) == CommitContext(20, 10, 11, 1, 10, 4)
    assert cut(commit, 11, 20) == CommitContext(30, 20, 21, 11, 10, 4)
    assert cut(commit, 21, 40) == CommitContext(90, 30, 31, 21, 10, 4)


def test_commits_must_cover_exactly_whole_batches() -> None:
    commits = [CommitContext(20, 10, 11, 1, 5, 4), CommitContext(90, 20, 31, 6, 5, 4)]
    check_cover(commits, [5, 10], 1, 10)
    for wrong, ends, high_watermark in (
        (commits, [4, 10], 10),
        (commits, [5, 11], 10),
        (commits[1:], [10], 10),
        (commits, [5, 10], 11),
        ([], [5], 0),
        ([], [], 0),
        ([commits[0]._replace(high_watermark=14)], [5], 10),
        ([commits[0]._replace(length=0)], [5], 10),
    ):
        with pytest.raises(Corrupt):
            check_cover(wrong, ends, 1, high_watermark)


def test_a_copy_begins_with_the_batch_that_holds_the_first_kept_entry(rig: StorageRig) -> None:
    rig.append(*[300] * 10, count=10)
    rig.commit(glsn=101, length=50, high_watermark=200)
    rig.commit(glsn=201, length=50, high_watermark=250)
    rig.settle()
    assert rig.store.beginning() == (1, 101, 0)
    for trimmed, expected in (
        (100, (1, 101, 0)),
        (124, (21, 121, 120)),  # in the middle of a commit
        (203, (51, 201, 200)),
        (250, (101, 0, 250)),
    ):
        rig.store.trim(trimmed, rig.done)
        rig.settle()
        for store in rig.twice():
            assert store.beginning() == expected
        rig = rig.reopen()


def test_a_corrupt_batch_is_in_no_part(rig: StorageRig) -> None:
    rig.fill(5)
    flip(rig, 3)
    assert rig.store.read_part(1, 2, 1 << 20).last_llsn == 2
    with pytest.raises(Corrupt):
        rig.store.read_part(3, 5, 1 << 20)
    with pytest.raises(Corrupt):
        rig.store.read_stored(3, 3, 1)


# ---- examining and repairing


def examine_all(rig: StorageRig, last_llsn: int, max_bytes: int = 2000) -> list[Broken]:
    found = []
    llsn = 1
    while llsn <= last_llsn:
        examined = rig.store.examine(llsn, last_llsn, max_bytes)
        llsn = examined.next_llsn
        if examined.broken:
            found.append(examined.broken)
            llsn = examined.broken.next_llsn
    return found


@pytest.mark.parametrize("at", [3, 70, 120, 200], ids=["magic", "llsn", "header crc", "body"])
def test_a_flipped_byte_is_found_and_repaired(rig: StorageRig, at: int) -> None:
    stored = rig.fill(60)
    assert examine_all(rig, 60) == []
    for llsn in (60, 17, 1):
        flip(rig, llsn, at)
    # Behind a broken header the walk goes on where the index knows a batch.
    assert {broken.llsn for broken in examine_all(rig, 60)} == {1, 17, 60}
    for broken in examine_all(rig, 60):
        rig.store.overwrite(broken, memoryview(stored[broken.llsn - 1]), rig.done)
        rig.settle()
        assert rig.answers[-1] is None
    assert examine_all(rig, 60) == []
    assert rig.reopen().read_all(1, 60) == list(range(1, 61))


def test_only_the_same_batch_goes_into_the_place_of_a_broken_one(rig: StorageRig) -> None:
    rig.fill(60)
    flip(rig, 17)
    (broken,) = examine_all(rig, 60)
    for wrong in (batch(16, 300), batch(17, 9000), batch(17, 300, stream=STREAM + 1)):
        with pytest.raises(InvalidArgument):
            rig.store.overwrite(broken, memoryview(wrong), rig.done)
    torn = batch(17, 300)
    torn[200] ^= 1
    with pytest.raises(Corrupt):
        rig.store.overwrite(broken, memoryview(torn), rig.done)


def test_broken_commits_are_told_from_broken_batches(rig: StorageRig) -> None:
    rig.fill(60)
    path = min(Path(rig.path, "commit").glob("*.cc"))
    content = bytearray(path.read_bytes())
    content[1024 + 3 * 64 + 20] ^= 1
    again = rig.reopen()
    again.store._commits._recent = (60, [])  # as if there were many more
    path.write_bytes(content)
    with pytest.raises(Corrupt, match="commit record 3"):
        examine_all(again, 60)


def test_power_lost_in_a_repair_leaves_the_batch_broken_or_sound() -> None:
    for seed in range(20):
        disk = simulated_disk(seed)
        rig = StorageRig("/volume/lsid=7", SMALL, disk.mount())
        stored = rig.fill(60)
        data_file = rig.store._data._data_files[0]
        rig.files.open(data_file.path).write([b"x"], 200)
        (broken,) = examine_all(rig, 60)
        rig.store.overwrite(broken, memoryview(stored[0]), rig.done)
        done = seed % 2
        if done:
            rig.settle()
        else:
            data_file.file.write(
                [stored[0]], 0
            )  # as the first step of the job; then the power goes
        disk.crash()
        again = StorageRig("/volume/lsid=7", SMALL, disk.mount())
        assert not again.store.context.damaged
        assert len(examine_all(again, 60)) <= 1 - done
        assert again.read_all(20, 60) == list(range(20, 61))


def test_real_files_can_be_set_aside(tmp_path: Path) -> None:
    """A wipe needs a file system that renames and removes a directory with open files."""
    files = RealFiles()
    files.make_directory(str(tmp_path / "data"))
    file = files.open(str(tmp_path / "data" / "a"), create=True)
    files.rename(str(tmp_path / "data"), str(tmp_path / "wiped"))
    file.write([b"late"], 0)
    files.remove_tree(str(tmp_path / "wiped"))
    assert file.read(4, 0) == b"late"
