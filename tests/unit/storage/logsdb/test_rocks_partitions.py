"""Partitions in RocksDB: they begin, are read together, and go; and what the disk does to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from logsdb_rig import LARGE, LOG, ME, OTHER, SECOND, SMALL, LogsRig, record
from rocksdict import Options, Rdict

from loomlog.core.copyset.messages import (
    Delivered,
    Forget,
    NodeAnswer,
    Read,
    Refused,
    Release,
    Store,
    Stored,
)
from loomlog.core.copyset.nodeset import Trouble
from loomlog.core.copyset.record import LSN_MAX, Kind, Record, make
from loomlog.core.copyset.storage import look_up
from loomlog.errors import Corrupt
from loomlog.limits import KIB, MIB
from loomlog.storage.logsdb import rows
from loomlog.storage.logsdb.log_reader import LogReader
from loomlog.storage.logsdb.rocks_logs import RocksLogs
from loomlog.storage.logsdb.rows import Head, PartitionSettings


class RocksRig(LogsRig):
    def __init__(
        self, path: Path, settings: PartitionSettings = SMALL, *, begin_s: int = 0
    ) -> None:
        self.path = path
        self.settings = settings
        self.logs = RocksLogs(str(path), begin_s * SECOND, settings)
        super().__init__(self.logs)

    @property
    def partitions(self) -> int:
        return len(self.families())

    def families(self) -> list[str]:
        """Return the column families as they are on disk."""
        names = Rdict.list_cf(str(self.path), Options(raw_mode=True))
        return sorted(name for name in names if name != "default")

    def reopen(self) -> RocksRig:
        self.logs.close()
        return RocksRig(self.path, self.settings)

    def fill(self, partitions: int, records: int = 3) -> list[Record]:
        """Partitions of 10 s, with a few records each."""
        stored: list[Record] = []
        for partition in range(partitions):
            start_s = partition * 10
            self.tend(start_s)
            new = [
                record(len(stored) + at + 1, at_s=start_s + at, batch=b"%d" % partition)
                for at in range(records)
            ]
            self.put(*new)
            stored += new
        return stored


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RocksRig]:
    opened = RocksRig(tmp_path / "db")
    yield opened
    opened.logs.close()


def read(rig: LogsRig, first: int, bytes_max: int = MIB) -> Delivered:
    found = rig.ask(Read(LOG, first, LSN_MAX, bytes_max, everything=True))
    assert isinstance(found, Delivered)
    return found


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


def files_of_batches(path: Path) -> list[Path]:
    return sorted(path.glob("batches/*/*"))


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
    """It is not taken for damage."""
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


# ---- starting again


def test_many_partitions_are_there_after_a_restart(rig: RocksRig) -> None:
    stored = rig.fill(40, records=1)
    rig.trim(10)
    again = rig.reopen()
    assert again.read() == stored[10:]
    again.tend(400)
    assert again.partitions == 31
    again = again.reopen()
    assert again.read() == stored[10:]
    assert again.partitions == 31
    assert again.logs.ages(LOG, 300 * SECOND).older == make(1, 30)
    rig.logs = again.logs


def test_a_partition_that_was_not_listed_yet_or_any_more_is_dropped(rig: RocksRig) -> None:
    """The process ended between two steps."""
    stored = rig.fill(2)
    rig.logs._db.create_column_family("partition-0000000003", Options(raw_mode=True)).close()
    again = rig.reopen()
    assert again.partitions == 2
    assert again.read() == stored
    again.tend(20)
    again.put(record(100, at_s=21))
    assert again.partitions == 3
    rig.logs = again.logs


def test_a_creation_of_the_first_partition_may_be_interrupted(tmp_path: Path) -> None:
    rig = RocksRig(tmp_path / "db")
    rig.logs.close()
    delete_rows(rig, rows.PARTITIONS)
    again = RocksRig(tmp_path / "db")
    again.put(record(1))
    assert again.read() == [record(1)]
    again.logs.close()


def delete_rows(rig: RocksRig, *kinds: bytes, only: int | None = None) -> None:
    """Delete these rows of a closed store, or one of them."""
    raw = Options(raw_mode=True)
    db = Rdict(str(rig.path), raw, dict.fromkeys(rig.families(), raw))
    keys = list(db.keys())
    found = [key for key in keys if isinstance(key, bytes) and key[:1] in kinds]
    for key in found if only is None else found[only : only + 1]:
        db.delete(key)
    db.close()


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("kinds", "only"),
    [((rows.PARTITIONS,), 1), ((rows.PARTITIONS,), None), ((rows.PARTITIONS, rows.SHARES), None)],
)
def test_a_partition_with_records_is_not_removed_because_it_is_not_listed(
    tmp_path: Path, kinds: tuple[bytes, ...], only: int | None, large: bool
) -> None:
    """Rows that list it were damaged: what it has may be restored from there."""
    settings = replace(SMALL, large_batch_bytes=1) if large else SMALL
    rig = RocksRig(tmp_path / "db", settings)
    rig.fill(3)
    families, files = rig.families(), files_of_batches(rig.path)
    rig.logs.close()
    delete_rows(rig, *kinds, only=only)
    for _ in range(2):
        with pytest.raises(Corrupt, match="is not listed: restore the volume"):
            RocksRig(tmp_path / "db")
        assert rig.families() == families
        assert files_of_batches(rig.path) == files


def test_a_missing_partition_is_noticed(tmp_path: Path) -> None:
    rig = RocksRig(tmp_path / "db")
    rig.fill(2)
    rig.logs._db.drop_column_family("partition-0000000001")
    rig.logs._partitions.tables.pop(1)  # type: ignore[attr-defined]
    rig.logs.close()
    with pytest.raises(Corrupt, match="partition-0000000001 is missing"):
        RocksRig(tmp_path / "db")


# ---- damage


def reopen_damaged(rig: RocksRig, files: str, at: int) -> LogsRig:
    """Open it after a bit flipped in the file of the newest partition with batches or heads."""
    rig.logs.close()
    newest = max(rig.path.glob(files))
    content = bytearray(newest.read_bytes())
    content[at] ^= 1
    newest.write_bytes(content)
    rig.logs = RocksLogs(str(rig.path), 0, rig.settings)
    return LogsRig(rig.logs)


@pytest.mark.parametrize(("where", "large_batch_bytes"), [("*.blob", MIB), ("batches/1/1", 1)])
def test_a_damaged_batch_is_told(
    tmp_path: Path, where: str, large_batch_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    rig = RocksRig(tmp_path / "db", PartitionSettings(large_batch_bytes=large_batch_bytes))
    content = Random(1).randbytes(20_000)
    rig.put(*(record(offset, batch=content) for offset in range(1, 4)))
    again = reopen_damaged(rig, where, 30_000)
    log = rig.logs.look(LOG)
    first, second, third = log.heads(0, LSN_MAX, 9)
    assert log.load(first).batch == log.load(third).batch == content
    with pytest.raises(Corrupt):
        log.load(second)
    again.put(record(4, batch=content))  # it goes on with what is well
    again.ask(Release(LOG, make(1, 9)))
    found = read(again, make(1, 1))
    assert [each.offset for each in found.records] == [1, 3, 4]
    assert found.damaged == ((make(1, 2), make(1, 2)),)
    assert len(rig.logs.damaged_copies) == 1
    if where != "*.blob":  # of those RocksDB tells itself
        [told] = [line.getMessage() for line in caplog.records]  # however often it is read
        assert "copy at e1n2 is damaged" in told
    rig.logs.close()


def test_a_missing_file_is_told(rig: RocksRig) -> None:
    """A missing file counts as damage of its batches: a reader gets the rest."""
    rig.put(record(1), record(2, batch=b"tiny"), record(3))
    [file] = files_of_batches(rig.path)
    file.unlink()
    rig.ask(Release(LOG, make(1, 9)))
    found = read(rig, make(1, 1))
    assert [each.offset for each in found.records] == [2]
    assert found.damaged == ((make(1, 1), make(1, 1)), (make(1, 3), make(1, 3)))


def test_damaged_heads_are_told(rig: RocksRig) -> None:
    rig.put(*(record(offset) for offset in range(1, 100)))
    rig.ask(Release(LOG, make(1, 99)))
    rig.logs._db.flush()
    again = reopen_damaged(rig, "*.sst", 100)
    answer = again.ask(Read(LOG, make(1, 1), make(1, 99), MIB, everything=True))
    assert isinstance(answer, Refused)
    assert answer.trouble is Trouble.DISABLED


def test_damaged_standings_keep_it_from_opening(tmp_path: Path) -> None:
    rig = RocksRig(tmp_path / "db")
    rig.put(record(1))
    rig.logs._partitions.tables[1].flush()
    with pytest.raises(Corrupt):
        reopen_damaged(rig, "*.sst", 20)
