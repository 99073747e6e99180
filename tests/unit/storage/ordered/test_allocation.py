"""Files take little space at first and grow with what is written to them."""

from __future__ import annotations

from pathlib import Path

from storage_rig import StorageRig

from loomlog.config import StorageSettings
from loomlog.limits import KIB
from loomlog.storage.ordered.journal import allocation


def test_a_file_doubles_when_half_of_it_is_used() -> None:
    assert [allocation(used, 4096) for used in (0, 8, 9, 100, 2048, 4096)] == [
        *(16, 16, 32, 256, 4096, 4096)
    ]


def test_a_file_is_never_smaller_than_its_data() -> None:
    assert allocation(5000, 4096) == 5000


def _size(rig: StorageRig, pattern: str) -> int:
    return sum(path.stat().st_size for path in Path(rig.path).glob(pattern))


def test_a_replica_with_one_entry_takes_a_few_hundred_kib(tmp_path: Path) -> None:
    rig = StorageRig(str(tmp_path / "lsid=7"), StorageSettings())
    rig.fill(1)
    assert _size(rig, "**/*.*") <= 300 * KIB


def test_its_files_grow_ahead_of_its_data(tmp_path: Path) -> None:
    rig = StorageRig(str(tmp_path / "lsid=7"), StorageSettings())
    rig.fill(400, size=8 * KIB)
    data, commits = _size(rig, "data/*.seg"), _size(rig, "commit/*.cc")
    assert 2 * rig.store._data.stored_bytes <= data <= 4 * rig.store._data.stored_bytes
    assert 2 * 400 * 64 <= commits <= 128 * KIB
    rig = rig.reopen()
    assert _size(rig, "data/*.seg") == data
    rig.fill(1)
    assert rig.read_all(1, 401) == list(range(1, 402))
