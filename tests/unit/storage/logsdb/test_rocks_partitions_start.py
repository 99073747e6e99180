"""Partitions after a restart, and with damage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from logsdb_rig import LOG, SECOND, SMALL, LogsRig, record
from rocks_rig import RocksRig, files_of_batches
from rocksdict import Options, Rdict

from loomlog.core.copyset.messages import Delivered, Read, Refused, Release
from loomlog.core.copyset.nodeset import Trouble
from loomlog.core.copyset.record import LSN_MAX, make
from loomlog.errors import Corrupt
from loomlog.limits import MIB
from loomlog.storage.logsdb import rows
from loomlog.storage.logsdb.rocks_logs import RocksLogs
from loomlog.storage.logsdb.rows import PartitionSettings


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RocksRig]:
    opened = RocksRig(tmp_path / "db")
    yield opened
    opened.logs.close()


def read(rig: LogsRig, first: int, bytes_max: int = MIB) -> Delivered:
    found = rig.ask(Read(LOG, first, LSN_MAX, bytes_max, everything=True))
    assert isinstance(found, Delivered)
    return found


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


def reopen_damaged(rig: RocksRig, files: str, at: int) -> LogsRig:
    """Open it after a bit flipped in the file of the newest partition with batches or heads."""
    rig.logs.close()
    newest = max(rig.path.glob(files))
    content = bytearray(newest.read_bytes())
    content[at] ^= 1
    newest.write_bytes(content)
    rig.logs = RocksLogs(str(rig.path), 0, rig.settings)
    return LogsRig(rig.logs)


# ---- damage


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
    rig.settle()
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
