"""The generation of a storage node's data."""

from __future__ import annotations

from pathlib import Path

from loomlog.storage import age_marks
from loomlog.storage.disk import RealFiles


def test_the_lowest_of_all_volumes_counts(tmp_path: Path) -> None:
    """Any volume may be an older copy; one without a generation is new."""
    files, paths = RealFiles(), [str(tmp_path / name) for name in ("a", "b", "c")]
    for path in paths:
        Path(path).mkdir()
    assert age_marks.load_generation(files, paths) == 0
    age_marks.save_generation(files, paths[:2], 7)
    assert age_marks.load_generation(files, paths) == 7
    age_marks.save_generation(files, paths[1:], 9)
    assert age_marks.load_generation(files, paths) == 7


def test_a_damaged_one_says_nothing(tmp_path: Path) -> None:
    """An older copy would have one that can be read."""
    files, paths = RealFiles(), [str(tmp_path / name) for name in ("a", "b")]
    for path in paths:
        Path(path).mkdir()
    age_marks.save_generation(files, paths, 12)
    kept = tmp_path / "a" / "generation"
    whole = kept.read_bytes()
    for broken in (b"", whole[:-1], b"99" + whole[2:], b"x" + whole):
        kept.write_bytes(broken)
        assert age_marks.load_generation(files, paths[:1]) is None
        assert age_marks.load_generation(files, paths) == 12
