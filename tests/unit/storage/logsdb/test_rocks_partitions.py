"""Partitions in RocksDB: they begin, are read together, and go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from logsdb_rig import LARGE, LOG, ME, OTHER, SECOND, record
from rocks_rig import RocksRig, files_of_batches

from loomlog.core.copyset.messages import (
    Delivered,
    Forget,
    NodeAnswer,
    Read,
    Release,
    Store,
    Stored,
)
from loomlog.core.copyset.record import LSN_MAX, Kind, make
from loomlog.core.copyset.storage import look_up
from loomlog.limits import KIB, MIB
from loomlog.storage.logsdb.log_reader import LogReader
from loomlog.storage.logsdb.rows import Head, PartitionSettings


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RocksRig]:
    opened = RocksRig(tmp_path / "db")
    yield opened
    opened.logs.close()


# ---- they begin


def test_a_partition_begins_with_time(rig: RocksRig) -> None:
    rig.tend(15)
    assert rig.partitions == 1  # nothing is in it
    stored = rig.fill(5)
    assert rig.partitions == 5
    rig.tend(49)
    assert rig.partitions == 5
    assert rig.read() == stored
    assert rig.read(4, 9) == stored[3:9]


def test_a_partition_begins_when_the_last_one_is_large(rig: RocksRig) -> None:
    rig.tend(1)
    for offset in range(1, 5):
        rig.put(record(offset, at_s=1 + offset / 10, batch=bytes(400 * KIB)))
        rig.tend(1.05 + offset / 10)
    assert rig.partitions == 2
    assert [each.offset for each in rig.read()] == [1, 2, 3, 4]


DAY_S = 86_400


def partition_of(rig: RocksRig, offset: int) -> int:
    """Return the partition that holds the record."""
    log = rig.logs.look(LOG)
    (found,) = (
        partition
        for partition in log._entry.shares
        for head in log._rows_in(partition).covering_or_after(0)
        if head.record.offset == offset
    )
    return found


@pytest.mark.parametrize("first_s", [0, DAY_S])
def test_a_clock_that_was_ahead_does_not_end_the_making_of_partitions(
    tmp_path: Path, first_s: int
) -> None:
    """The clock was ahead when a partition began; with the second number, when the node was new."""
    rig = RocksRig(tmp_path / "db", begin_s=first_s)
    rig.put(record(1, at_s=1))
    rig.tend(DAY_S + 10)
    rig.put(record(2, at_s=DAY_S + 11))
    places = []
    for at_s in range(20, 100, 20):
        rig.tend(at_s)
        rig.put(record(at_s, at_s=at_s + 1))
        places.append(partition_of(rig, at_s))
    assert len(set(places)) == 4
    assert partition_of(rig, 2) not in places
    assert [each.offset for each in rig.read()] == [1, 2, 20, 40, 60, 80]
    again = rig.reopen()
    again.tend(DAY_S + 12)
    again.put(record(100, at_s=DAY_S + 13))
    assert partition_of(again, 100) == partition_of(again, 2)
    again.logs.close()


def test_a_record_goes_where_its_time_is(rig: RocksRig) -> None:
    """A record that is rebuilt goes with the others of its time."""
    rig.fill(3)
    rig.put(record(100, at_s=3), record(101, at_s=13), record(102, at_s=23), record(103, at_s=99))
    rig.trim(2)
    rig.put(record(50, 3, kind=Kind.HOLE))
    log = rig.logs.look(LOG)
    assert [len(list(each)) for each in _by_partition(log)] == [4, 4, 6]
    offsets = [each.offset for each in rig.read()]
    assert offsets == sorted(offsets)
    assert len(offsets) == 12


def _by_partition(log: LogReader) -> Iterator[Iterator[Head]]:
    for partition in log._entry.shares:
        yield log._rows_in(partition).covering_or_after(0)


def test_a_copy_that_is_stored_again_is_in_one_place(rig: RocksRig) -> None:
    """Whatever time its new copy has."""
    stored = rig.fill(3)
    for wave in (2, 3, 4):
        again = stored[4]._replace(wave=wave, timestamp_us=(wave * 7 - 10) * SECOND)
        rig.put(again)
        assert [each for each in rig.read() if each.first == again.first] == [again]
    assert sum(len(list(each)) for each in _by_partition(rig.logs.look(LOG))) == len(stored)


def test_a_read_looks_only_where_it_must(rig: RocksRig) -> None:
    rig.fill(20)
    log = rig.logs.look(LOG)
    assert log._runs(make(1, 1), make(1, 60)) == [[partition] for partition in range(1, 21)]
    assert log._runs(make(1, 29), make(1, 31)) == [[10], [11]]
    assert log._runs(make(1, 61), LSN_MAX) == []


# ---- they go


def test_partitions_that_are_trimmed_are_dropped(rig: RocksRig) -> None:
    stored = rig.fill(5)
    rig.trim(8)
    rig.tend(41)
    assert rig.partitions == 3  # two are trimmed, one in part
    assert rig.read() == stored[8:]
    assert rig.logs.stored_bytes(LOG) == 9
    rig.trim(15)
    rig.tend(42)
    assert rig.partitions == 1  # the newest stays
    assert rig.read() == []
    rig.put(record(16, at_s=43))
    assert rig.read() == [record(16, at_s=43)]


def test_commits_come_between_drops(rig: RocksRig) -> None:
    """Each makes them wait."""
    rig.fill(6)
    rig.trim(18)
    answers: list[NodeAnswer] = []
    rig.store.tend(51 * SECOND)
    rig.commits.work()
    assert rig.partitions == 5
    rig.store.ask(Store(LOG, record(19, at_s=52)), answers.append)
    rig.commits.work()
    rig.commits.work()
    assert rig.partitions == 4
    assert answers == [Stored()]
    rig.work()
    assert rig.partitions == 1
    assert rig.read() == [record(19, at_s=52)]


def test_a_partition_stays_as_long_as_any_log_needs_it(rig: RocksRig) -> None:
    stored = rig.fill(3)
    rig.put(record(1, at_s=11), log=OTHER)
    rig.trim(9)
    rig.tend(21)
    assert rig.partitions == 2
    assert rig.read(log=OTHER) == [record(1, at_s=11)]
    assert rig.ask(Forget(OTHER))
    rig.tend(22)
    assert rig.partitions == 1
    assert len(stored) == 9


@pytest.mark.parametrize("large_batch_bytes", [1, 20_000, 60_000])
def test_what_is_trimmed_gives_its_space_back(tmp_path: Path, large_batch_bytes: int) -> None:
    """A partition that another log needs is compacted; files go at once."""
    rig = RocksRig(tmp_path / "db", PartitionSettings(large_batch_bytes=large_batch_bytes))
    batch = Random(1).randbytes(50_000)
    for offset in range(1, 101):
        rig.put(record(offset, batch=batch))
        rig.put(record(offset, batch=batch[:9000]), log=OTHER)
    rig = rig.reopen()
    before = size(rig.path)
    assert before > 100 * 59_000
    rig.trim(100)
    rig.tend(1)
    rig = rig.reopen()
    assert size(rig.path) < before / 3
    assert len(rig.read(log=OTHER)) == 100
    rig.logs.close()


def size(path: Path) -> int:
    """Return the size of RocksDB's files without its log, and of our own."""
    found = [*path.glob("*.sst"), *path.glob("*.blob"), *files_of_batches(path)]
    return sum(file.stat().st_size for file in found)


def test_who_reads_while_a_partition_goes_learns_of_the_trim(rig: RocksRig) -> None:
    """Else it would see less than there was, and believe that the records never were."""
    rig.fill(3)
    rig.ask(Release(LOG, LSN_MAX))
    seen: list[tuple[int, int]] = []

    def question(log: LogReader) -> tuple[int, int]:
        if not seen:
            rig.trim(5)
            rig.tend(21)
        seen.append((log.standing.trimmed, sum(1 for _ in log.scan(0, LSN_MAX))))
        return seen[-1]

    assert rig.logs.ask(LOG, question) == (make(1, 5), 4)
    assert len(seen) == 2
    assert seen[0][0] == 0


def test_who_reads_a_file_that_goes_learns_of_the_trim(rig: RocksRig) -> None:
    """The missing file is not taken for damage."""
    rig.put(record(1), record(2))
    rig.ask(Release(LOG, LSN_MAX))
    asked: list[LogReader] = []

    def question(log: LogReader) -> NodeAnswer:
        if not asked:
            assert len(list(log.scan(0, LSN_MAX))) == 2
            rig.trim(2)
            rig.tend(1)
            assert files_of_batches(rig.path) == []
        asked.append(log)
        request = Read(LOG, make(1, 1), LSN_MAX, MIB, everything=True)
        return look_up(request, log.standing, log, ME)

    found = rig.logs.ask(LOG, question)
    assert isinstance(found, Delivered)
    assert (found.records, found.damaged, found.trimmed) == ([], (), make(1, 2))
    assert len(asked) == 2


# ---- large batches


def test_large_batches_are_in_files_and_go_with_them(rig: RocksRig) -> None:
    rig.fill(2)  # small ones
    assert files_of_batches(rig.path) == []
    rig.put(record(11, at_s=3), record(12, at_s=13), record(13, at_s=14))
    rig.put(record(1, at_s=13), log=OTHER)
    batches = rig.path / "batches"
    assert files_of_batches(rig.path) == [batches / "1/1", batches / "2/1", batches / "2/2"]
    rig.ask(Forget(OTHER))
    assert files_of_batches(rig.path) == [batches / "1/1", batches / "2/1"]
    rig.trim(11)
    rig.tend(19)
    assert files_of_batches(rig.path) == [batches / "2/1"]
    assert not (batches / "1").exists()
    assert [each.offset for each in rig.read()] == [12, 13]


def test_a_commit_syncs_few_files(rig: RocksRig) -> None:
    """Large batches of further logs are kept beside the small ones."""
    answers: list[NodeAnswer] = []
    for log in range(1, 11):
        rig.store.ask(Store(log, record(1)), answers.append)
        rig.store.ask(Store(log, record(2)), answers.append)
    rig.work()
    assert answers == [Stored()] * 20
    assert len(files_of_batches(rig.path)) == 4
    for log in range(1, 11):
        assert rig.read(log=log) == [record(1), record(2)]


def test_a_large_batch_takes_the_place_of_a_small_one_and_the_other_way_round(
    rig: RocksRig,
) -> None:
    for wave, batch in enumerate((b"tiny", LARGE, b"less", LARGE + b"!"), 1):
        rig.put(record(1, wave=wave, recovered=2, batch=batch))
        assert rig.read() == [record(1, wave=wave, recovered=2, batch=batch)]
    rig.amend(record(1, wave=9, recovered=2))
    assert rig.read() == [record(1, wave=9, recovered=2, batch=LARGE + b"!")]


def test_a_file_that_was_to_be_removed_is_removed_at_the_next_start(rig: RocksRig) -> None:
    rig.put(record(1))
    stray = rig.path / "batches/1/77"
    stray.write_bytes(b"of a log that was deleted")
    gone = rig.path / "batches/5/1"
    gone.parent.mkdir()
    gone.write_bytes(b"of a partition that was dropped")
    again = rig.reopen()
    assert files_of_batches(rig.path) == [rig.path / "batches/1/1"]
    assert again.read() == [record(1)]
    again.put(record(2))
    assert again.read() == [record(1), record(2)]
    rig.logs = again.logs


def test_partitions_older_than_a_time_can_be_trimmed(rig: RocksRig) -> None:
    rig.fill(5)
    older = [rig.logs.ages(LOG, at_s * SECOND).older for at_s in (2, 3, 12, 13, 33, 42, 43)]
    assert older == [make(1, at) if at else 0 for at in (0, 3, 3, 6, 12, 12, 15)]
    rig.put(record(2, wave=2, recovered=2, at_s=45))
    assert rig.logs.ages(LOG, 43 * SECOND) == (make(1, 1), make(1, 2))
    assert rig.logs.ages(OTHER, 40 * SECOND) == (0, LSN_MAX)


def test_a_record_that_is_younger_than_its_partition_is_kept(rig: RocksRig) -> None:
    """The sequencer's clock is ahead of this node's: the partition ends before its time."""
    rig.put(record(1, at_s=1), record(2, at_s=500))
    rig.tend(10)
    rig.put(record(3, at_s=11))
    assert rig.logs.ages(LOG, 30 * SECOND) == (make(1, 0), make(1, 1))
    again = rig.reopen()
    assert again.logs.ages(LOG, 30 * SECOND) == (make(1, 0), make(1, 1))
    assert again.logs.ages(LOG, 501 * SECOND) == (make(1, 3), LSN_MAX)
    rig.logs = again.logs


def test_a_copy_that_is_stamped_anew_is_kept_as_long_as_it_says(rig: RocksRig) -> None:
    rig.put(record(1, at_s=1))
    rig.amend(record(1, wave=2, at_s=70))
    assert rig.logs.ages(LOG, 60 * SECOND) == (0, make(1, 1))


def test_marks_keep_nothing(rig: RocksRig) -> None:
    rig.put(record(1, at_s=1), record(2, at_s=1), record(3, at_s=99, kind=Kind.BRIDGE))
    assert rig.logs.ages(LOG, 2 * SECOND) == (make(1, 3), LSN_MAX)
