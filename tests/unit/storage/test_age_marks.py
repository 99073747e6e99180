"""The generation of the data on a volume."""

from __future__ import annotations

from pathlib import Path

from loomlog.storage import age_marks
from loomlog.storage.disk import RealFiles


def test_it_is_kept(tmp_path: Path) -> None:
    files, path = RealFiles(), str(tmp_path)
    assert age_marks.load_generation(files, path) == 0
    age_marks.save_generation(files, path, 7)
    assert age_marks.load_generation(files, path) == 7


def test_a_damaged_one_says_nothing(tmp_path: Path) -> None:
    """An older copy would have one that can be read."""
    files, path = RealFiles(), str(tmp_path)
    age_marks.save_generation(files, path, 12)
    kept = tmp_path / "generation"
    whole = kept.read_bytes()
    for broken in (b"", whole[:-1], b"99" + whole[2:], b"x" + whole):
        kept.write_bytes(broken)
        assert age_marks.load_generation(files, path) is None
