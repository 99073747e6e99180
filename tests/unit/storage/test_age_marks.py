"""The generation of the data on a volume, and the detection of copies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from loomlog.core.generation import NO_GENERATION, Generation
from loomlog.storage import age_marks, disk
from loomlog.storage.disk import RealFiles


def test_it_is_kept(tmp_path: Path) -> None:
    files, path = RealFiles(), str(tmp_path)
    assert age_marks.load_generation(files, path) == NO_GENERATION
    for generation in (Generation(7), Generation(7, clean=True), Generation(8, stamp="s")):
        age_marks.save_generation(files, path, generation)
        assert age_marks.load_generation(files, path) == generation


def test_a_damaged_one_cannot_be_read(tmp_path: Path) -> None:
    files, path = RealFiles(), str(tmp_path)
    age_marks.save_generation(files, path, Generation(12))
    kept = tmp_path / "generation"
    whole = kept.read_bytes()
    for broken in (b"", whole[:-1], b"99" + whole[2:], b"x" + whole):
        kept.write_bytes(broken)
        assert age_marks.load_generation(files, path) is None


def test_a_copy_that_is_put_back_has_another_origin(tmp_path: Path) -> None:
    files, used, copy = RealFiles(), tmp_path / "used", tmp_path / "copy"
    used.mkdir()
    stamp = age_marks.stamp_of_origin(files, str(used))
    assert stamp
    assert age_marks.stamp_of_origin(files, str(used)) == stamp, "another process"
    used.rename(tmp_path / "moved")
    assert age_marks.stamp_of_origin(files, str(tmp_path / "moved")) == stamp, "the same files"
    shutil.copytree(tmp_path / "moved", copy)
    assert age_marks.stamp_of_origin(files, str(copy)) != stamp


def test_an_origin_that_is_made_again_is_another_one(tmp_path: Path) -> None:
    """File systems use inodes again."""
    files, path = RealFiles(), str(tmp_path)
    stamps = set()
    for _ in range(5):
        stamps.add(age_marks.stamp_of_origin(files, path))
        before_ns = (tmp_path / "origin").stat().st_ctime_ns
        (tmp_path / "origin").unlink()
        while clock_ns(tmp_path) == before_ns:  # a time of files has steps of some milliseconds
            pass
    assert len(stamps) == 5


def clock_ns(directory: Path) -> int:
    probe = directory / "probe"
    probe.touch()
    return probe.stat().st_ctime_ns


def test_after_a_boot_an_origin_has_another_stamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, path, boot = RealFiles(), str(tmp_path), tmp_path / "boot_id"
    before = age_marks.stamp_of_origin(files, path)
    boot.write_text("another\n")
    monkeypatch.setattr(disk, "_BOOT_ID", str(boot))
    assert before != age_marks.stamp_of_origin(files, path) != ""
    boot.unlink()
    assert age_marks.stamp_of_origin(files, path) == "", "a system that does not tell boots apart"
