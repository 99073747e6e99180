"""A RocksDB that lost its CURRENT file is not taken for a new one: that would delete its files. One
that lost its directory is created again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from loomlog.core.chained.chain import Replica
from loomlog.core.chained.replica import Standing
from loomlog.core.copyset.storage import LogStanding
from loomlog.errors import Corrupt
from loomlog.storage.chained.rocks_table import RocksTable
from loomlog.storage.disk import RealFiles
from loomlog.storage.identity import Owner, open_owned
from loomlog.storage.logsdb.rocks_logs import RocksLogs

MADE_FIRST = (
    "LOCK",
    "LOG",
    "IDENTITY",
    "MANIFEST-000001",
    "000001.dbtmp",
    "rocksdict-config.json",
)
MAKE = """
import sys
from loomlog.storage.logsdb.rocks_logs import RocksLogs
print("ready", flush=True)
RocksLogs(sys.argv[1], 1)
"""


def files(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()}


def test_chains_without_current_are_left_as_they_are(tmp_path: Path) -> None:
    RocksTable(str(tmp_path), 1).close()
    (tmp_path / "CURRENT").unlink()
    before = files(tmp_path)
    with pytest.raises(Corrupt, match="CURRENT is missing"):
        RocksTable(str(tmp_path), 1)
    assert files(tmp_path) == before


def test_copies_without_current_are_left_as_they_are(tmp_path: Path) -> None:
    RocksLogs(str(tmp_path), 1).close()
    current = (tmp_path / "CURRENT").read_bytes()
    (tmp_path / "CURRENT").unlink()
    before = files(tmp_path)
    with pytest.raises(Corrupt, match="CURRENT is missing"):
        RocksLogs(str(tmp_path), 1)
    assert files(tmp_path) == before
    (tmp_path / "CURRENT").write_bytes(current)
    RocksLogs(str(tmp_path), 1).close()


def test_an_empty_directory_is_a_new_database_unless_it_was_used(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="CURRENT is missing"):
        RocksLogs(str(tmp_path), 1, was_used=True)
    for name in MADE_FIRST:
        (tmp_path / name).touch()  # as far as a first start came
    RocksLogs(str(tmp_path), 1).close()
    RocksLogs(str(tmp_path), 1, was_used=True).close()
    with pytest.raises(Corrupt, match="CURRENT is missing"):
        RocksLogs(str(tmp_path / "missing"), 1, was_used=True)


def test_copies_without_any_log_do_not_count_as_empty(tmp_path: Path) -> None:
    path, killed = tmp_path / "logs", tmp_path / "killed"
    made = RocksLogs(str(path), 1)
    made.commit([(1, LogStanding())], sync=True)
    shutil.copytree(path, killed)
    made.close()
    RocksLogs(str(path), 1, was_used=True).close()
    for log in killed.glob("*.log"):
        log.unlink()
    with pytest.raises(Corrupt, match="no write-ahead log"):
        RocksLogs(str(killed), 1, was_used=True)


def test_chains_without_any_log_are_not_an_older_state(tmp_path: Path) -> None:
    path, killed = tmp_path / "chains", tmp_path / "killed"
    made = RocksTable(str(path), 1)
    made.commit([(Replica(1, 1, 0, 5), Standing(epoch=1))], sync=True)
    made.close()
    again = RocksTable(str(path), 1)
    again.commit([(Replica(1, 2, 0, 5), Standing(epoch=1))], sync=True)
    shutil.copytree(path, killed)
    again.close()
    for log in killed.glob("*.log"):
        log.unlink()
    with pytest.raises(Corrupt, match="no write-ahead log"):
        RocksTable(str(killed), 1)


@pytest.mark.parametrize("count", range(1, 12))
def test_a_process_may_be_killed_while_it_makes_a_database(tmp_path: Path, count: int) -> None:
    path = tmp_path / "logs"
    path.mkdir()
    command = [sys.executable, "-c", MAKE, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while len(os.listdir(path)) < count and process.poll() is None:
            pass  # as quick as it can: the moment is short
        process.kill()
    RocksLogs(str(path), 1).close()


def test_a_store_whose_directory_was_deleted_is_made_again_as_an_empty_one(tmp_path: Path) -> None:
    """RocksDB writes what it had into any directory that is there when it is closed."""
    path, files, owner = str(tmp_path / "chains"), RealFiles(), Owner("stamp", 1, 0)
    replica = Replica(1, 1, 0, 5)

    def open_table() -> RocksTable:
        make = partial(RocksTable, node_id=1)
        return open_owned(files, path, owner, make, lambda table: not table.replicas())

    old = open_table()
    old.commit([(replica, Standing(epoch=1))], sync=True)
    reader = old.look(replica)  # keeps it open
    files.remove_tree(path)
    old.close()
    with pytest.raises(OSError, match="lock hold by current process"):
        open_table()
    assert not files.exists(path)
    del reader, old
    new = open_table()
    assert not new.replicas()
    new.close()
