"""A storage node knows how old its data is, and a full disk does not make it older."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from loomlog.core.history import Run, Seen
from loomlog.node.generation import Generation
from loomlog.storage import age_marks
from loomlog.storage.disk import RealFiles
from loomlog.storage.files import File


class FullDisk(RealFiles):
    """A file system on which no file can be made."""

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            raise OSError(errno.ENOSPC, "no space left", path)
        return super().open(path)


def start(directory: Path) -> Generation:
    worker: Any = None  # only what grows while the node runs needs one
    return Generation(RealFiles(), [str(directory)], worker)


def test_every_start_is_another_generation(tmp_path: Path) -> None:
    assert [start(tmp_path).number for _ in range(3)] == [1, 2, 3]


def test_it_goes_on_from_what_the_metadata_repository_has_heard_of(tmp_path: Path) -> None:
    generation = start(tmp_path)
    generation.raise_to(7)
    generation.raise_to(3)
    assert generation.number == 7
    assert start(tmp_path).number == 8


def test_what_cannot_be_kept_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert start(tmp_path).number == 1

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as broken:
        broken.setattr(age_marks, "save_generation", full)
        assert start(tmp_path).number == 0
    assert start(tmp_path).number == 2


def test_on_a_full_disk_small_files_are_overwritten(tmp_path: Path) -> None:
    """Or the node could not take part, and nobody could delete anything there."""
    full, files, paths = FullDisk(), RealFiles(), [str(tmp_path)]
    age_marks.save_generation(files, paths, 9)
    age_marks.save_generation(full, paths, 10)
    assert age_marks.load_generation(files, paths) == 10
    age_marks.save_run(files, paths, Seen(Run(1, "a long id"), 100))
    age_marks.save_run(full, paths, Seen(Run(2, "id"), 7))
    assert age_marks.load_run(files, paths) == Seen(Run(2, "id"), 7)


def test_a_damaged_one_is_not_known_until_the_node_registers(tmp_path: Path) -> None:
    start(tmp_path)
    (tmp_path / "generation").write_bytes(b"damaged")
    generation = start(tmp_path)
    assert generation.number == 0
    generation.raise_to(0)
    assert generation.number == 0
    generation.raise_to(1)  # as the metadata repository knows
    assert start(tmp_path).number == 2
