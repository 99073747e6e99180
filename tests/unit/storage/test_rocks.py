"""A RocksDB that lost its CURRENT file is not taken for a new one: that would delete its files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loomlog.errors import Corrupt
from loomlog.storage.chained.rocks_table import RocksTable
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
