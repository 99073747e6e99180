"""Small files are replaced whole, and damage is noticed."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from loomlog.storage import small_files
from loomlog.storage.disk import RealFiles


class FullFiles(RealFiles):
    """A disk without room for another file."""

    def rename(self, source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_fields_come_back_unless_a_byte_was_changed() -> None:
    data = small_files.encode({"number": 7, "name": "a"})
    assert small_files.decode(data) == {"number": 7, "name": "a"}
    for at in range(len(data)):
        assert small_files.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None
    assert small_files.decode(b"") is None


def test_a_full_disk_lets_a_small_file_be_overwritten_and_no_other_be_made(tmp_path: Path) -> None:
    path = str(tmp_path / "mark")
    small_files.replace_file(RealFiles(), path, b"a longer content")
    small_files.replace_small_file(FullFiles(), path, b"short")
    assert small_files.read(RealFiles(), path) == b"short"
    with pytest.raises(OSError, match="No space"):
        small_files.replace_file(FullFiles(), path, b"other")
    with pytest.raises(OSError, match="No space"):
        small_files.replace_small_file(FullFiles(), str(tmp_path / "new"), b"other")
