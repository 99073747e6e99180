"""A RocksDB that lost its CURRENT file is not taken for a new one: that would delete its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from loomlog.errors import Corrupt
from loomlog.storage.chained.rocks_table import RocksTable
from loomlog.storage.logsdb.rocks_logs import RocksLogs


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
    for name in ("LOCK", "LOG", "IDENTITY", "MANIFEST-000001", "000001.dbtmp"):
        (tmp_path / name).touch()  # as far as a first start came
    RocksLogs(str(tmp_path), 1).close()
    RocksLogs(str(tmp_path), 1, was_used=True).close()
    with pytest.raises(Corrupt, match="CURRENT is missing"):
        RocksLogs(str(tmp_path / "missing"), 1, was_used=True)
