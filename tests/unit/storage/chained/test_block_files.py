"""Large blocks of chains in files of their own."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from write_once_rig import EPOCH, HERE, NODE, THERE, WriteOnceRig, batch

from loomlog.core.chained.chain import Extent, Replica
from loomlog.core.chained.messages import (
    Create,
    Fetch,
    Fetched,
    Found,
    Missing,
    Read,
    Remove,
    Seal,
    Stored,
    Trim,
    TrimmedTo,
    Write,
)
from loomlog.core.chained.replica import DAMAGED, Put
from loomlog.core.requests import Lost
from loomlog.errors import Corrupt
from loomlog.limits import MIB
from loomlog.storage.chained import block_files
from loomlog.storage.chained.block_files import FILES_MAX, LARGE_BYTES
from loomlog.storage.chained.block_table import TrimmedMeanwhileError
from loomlog.storage.chained.rocks_table import RocksTable
from loomlog.storage.disk import RealFile

LARGE = bytes(LARGE_BYTES)


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks in each."""
    monkeypatch.setattr(block_files, "FILE_BYTES", 2 * LARGE_BYTES)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[WriteOnceRig]:
    rig = WriteOnceRig(RocksTable(str(tmp_path / "db"), NODE)).sealed()
    yield rig
    rig.table.close()


def files(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "db/batches").glob("*/*"))


def again(rig: WriteOnceRig, path: Path) -> WriteOnceRig:
    rig.table.close()
    return WriteOnceRig(RocksTable(str(path / "db"), NODE))


def test_files_follow_each_other_and_go_when_all_in_them_is_trimmed(
    rig: WriteOnceRig, tmp_path: Path
) -> None:
    blocks = [batch(first, content=LARGE) for first in range(1, 6)]
    for block in (*blocks[1:], blocks[0]):  # the first one comes last
        rig.write(block)
    assert files(tmp_path) == ["1", "2", "3"]
    rig.ask(Trim(EPOCH, 3))
    rig.table.reclaim(HERE, 3)
    assert files(tmp_path) == ["2"], "which has 4 and 5"
    assert rig.ask(Fetch(EPOCH, 4, MIB)) == Fetched(blocks[3:], more=False)
    rig.ask(Trim(EPOCH, 5))
    rig.table.reclaim(HERE, 5)
    assert files(tmp_path) == []
    rig.write(batch(6, content=LARGE))
    assert files(tmp_path) == ["4"], "somebody may still read what was found in 1"


def test_who_found_what_is_trimmed_meanwhile_looks_again(rig: WriteOnceRig) -> None:
    rig.write(batch(1, content=LARGE), batch(2, content=LARGE))
    found = rig.table.look(HERE)
    assert found.scan(1, 9) == [Extent(1, 1), Extent(2, 1)]
    answers: list[object] = []
    rig.store.ask(HERE, Read(EPOCH, 1), answers.append)
    [(steps, finished)] = rig.look_ups.jobs
    look = rig.table.look

    def look_too_early(replica: Replica) -> object:
        rig.table.look = look  # type: ignore[method-assign]
        rig.ask(Trim(EPOCH, 2))
        rig.table.reclaim(HERE, 2)
        return found

    rig.table.look = look_too_early  # type: ignore[method-assign,assignment]
    rig.look_ups.jobs.clear()
    for step in steps:
        step()
    finished(None)
    assert answers == [TrimmedTo(2)]
    with pytest.raises(TrimmedMeanwhileError):
        found.load(Extent(1, 1))


def test_a_missing_file_is_damage_and_a_missing_table_is_not(
    rig: WriteOnceRig, tmp_path: Path
) -> None:
    rig.write(batch(1, content=LARGE), batch(2, content=b"small"))
    shutil.rmtree(tmp_path / "db/batches")
    with pytest.raises(Corrupt, match="is missing"):
        rig.table.look(HERE).load(Extent(1, 1))
    assert rig.ask(Read(EPOCH, 2)) == Found(batch(2, content=b"small"))
    assert rig.write(batch(1, content=LARGE)) == [DAMAGED], "whether it is the same is unknown"
    (tmp_path / "db").rename(tmp_path / "away")
    with pytest.raises(TrimmedMeanwhileError):
        rig.table.look(HERE).load(Extent(1, 1))
    (tmp_path / "away").rename(tmp_path / "db")


def test_a_removed_replica_leaves_nothing(rig: WriteOnceRig, tmp_path: Path) -> None:
    rig.write(batch(1, content=LARGE))
    rig.sealed(THERE)
    rig.store.ask(THERE, Write(EPOCH, batch(1, content=LARGE)), lambda _: None)
    rig.work()
    rig.ask(Remove())
    rig.table.reclaim(HERE, 1)
    assert len(list((tmp_path / "db/batches").iterdir())) == 1
    assert rig.ask(Read(EPOCH, 1), THERE) == Found(batch(1, content=LARGE))


def test_what_could_not_be_removed_goes_at_the_next_start(
    rig: WriteOnceRig, tmp_path: Path
) -> None:
    rig.write(*(batch(first, content=LARGE) for first in range(1, 4)))
    rig.ask(Trim(EPOCH, 2))
    assert files(tmp_path) == ["1", "2"]
    rig = again(rig, tmp_path)
    assert files(tmp_path) == ["2"]
    rig.ask(Remove())
    rig = again(rig, tmp_path)
    assert files(tmp_path) == []
    rig.ask(Create())
    rig.ask(Seal(EPOCH))
    assert rig.write(batch(1, content=LARGE)) == [Stored()]
    rig = again(rig, tmp_path)
    assert rig.ask(Read(EPOCH, 1)) == Found(batch(1, content=LARGE))
    rig.table.close()


def test_what_never_got_a_row_is_written_over_or_removed(rig: WriteOnceRig, tmp_path: Path) -> None:
    """The process ended between the two syncs."""
    rig.write(batch(1, content=LARGE))
    table = rig.table
    assert isinstance(table, RocksTable)
    for replica in (HERE, THERE):
        table._files.add(replica, batch(2, content=b"lost" * LARGE_BYTES))
    table._files.flush(sync=True)
    assert len(files(tmp_path)) == 2
    rig = again(rig, tmp_path)
    assert files(tmp_path) == ["1"]
    assert rig.ask(Read(EPOCH, 2)) == Missing(0)
    rig.write(batch(2, content=LARGE))
    rig = again(rig, tmp_path)
    for first in (1, 2):
        assert rig.ask(Read(EPOCH, first)) == Found(batch(first, content=LARGE))
    rig.table.close()


def test_no_row_says_what_is_not_synced(
    rig: WriteOnceRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: RealFile) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with monkeypatch.context() as broken:
        broken.setattr(RealFile, "sync", fail)
        assert rig.write(batch(1, content=LARGE)) == [Lost()]
    rig = again(rig, tmp_path)
    assert rig.ask(Read(EPOCH, 1)) == Missing(0)
    assert rig.write(batch(1, sequence=2, content=LARGE)) == [Stored()]
    rig.table.close()


def test_a_commit_syncs_few_files(rig: WriteOnceRig, tmp_path: Path) -> None:
    replicas = [Replica(NODE, 1, chain, 1) for chain in range(100, 110)]
    rig.sealed(*replicas)
    changes = [
        (replica, Put(batch(first, content=LARGE))) for first in (1, 2) for replica in replicas
    ]
    rig.table.commit(changes, sync=True)
    assert len(files(tmp_path)) == FILES_MAX
    for replica in replicas:
        assert rig.ask(Fetch(EPOCH, 1, MIB), replica) == Fetched(
            [batch(1, content=LARGE), batch(2, content=LARGE)], more=False
        )
