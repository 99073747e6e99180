"""The files of a replica go to another volume: wherever that ends, one whole replica is found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loomlog.storage.disk import RealFiles
from loomlog.storage.files import File
from loomlog.storage.ordered.relocation import (
    copy_early,
    finish_moves,
    move,
    remove_moved,
    take_back,
)
from loomlog.storage.ordered.replica_paths import finish_removals

CONTENT = {
    "meta": b"who it is",
    "data/01.seg": b"a" * 5000,
    "data/01.idx": b"where",
    "data/09.seg": b"b" * 3000,
    "commit/01": b"c" * 100,
}


class CrashError(Exception):
    pass


class CrashingFiles(RealFiles):
    """Ends at a step, a removal halfway."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def _step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise CrashError

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            self._step()
        return super().open(path, create=create)

    def rename(self, source: str, target: str) -> None:
        self._step()
        super().rename(source, target)

    def remove_tree(self, path: str) -> None:
        files = [os.path.join(where, name) for where, _, names in os.walk(path) for name in names]
        for file in files:
            self._step()
            os.remove(file)
        super().remove_tree(path)


def make(volume: Path) -> str:
    for name, content in CONTENT.items():
        path = volume / "lsid=7" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(volume / "lsid=7")


def found(*volumes: Path) -> dict[str, bytes]:
    """Return the files of the only replica, and that nothing else is left."""
    finish_moves(RealFiles(), [*map(str, volumes)])
    finish_removals(RealFiles(), [*map(str, volumes)])
    [replica] = [path for volume in volumes for path in volume.iterdir()]
    assert replica.name == "lsid=7"
    files = [path for path in replica.rglob("*") if path.is_file()]
    return {str(path.relative_to(replica)): path.read_bytes() for path in files}


@pytest.fixture
def volumes(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    return tmp_path / "a", tmp_path / "b"


def relocate(files: RealFiles, source: str, target: str) -> None:
    early = copy_early(files, source, target, ["data/01.seg", "data/01.idx", "data/gone.seg"])
    move(files, source, target, early)
    remove_moved(files, source)


def test_a_replica_is_where_it_should_be(volumes: tuple[Path, Path]) -> None:
    relocate(RealFiles(), make(volumes[0]), str(volumes[1] / "lsid=7"))
    assert not [*volumes[0].iterdir()]
    assert found(*volumes) == CONTENT


def test_a_crash_at_any_step_leaves_one_whole_replica(tmp_path: Path) -> None:
    steps = 0
    while True:
        first, second = tmp_path / f"a{steps}", tmp_path / f"b{steps}"
        first.mkdir()
        second.mkdir()
        source = make(first)
        try:
            relocate(CrashingFiles(steps), source, str(second / "lsid=7"))
        except CrashError:
            assert found(first, second) == CONTENT, f"after {steps} steps"
            steps += 1
        else:
            break
    assert steps > 10


def test_a_move_that_fails_is_taken_back_at_any_step(tmp_path: Path) -> None:
    for failing in range(7):
        for crashing in range(12):
            first, second = tmp_path / f"a{failing}-{crashing}", tmp_path / f"b{failing}-{crashing}"
            first.mkdir()
            second.mkdir()
            source, target = make(first), str(second / "lsid=7")
            try:
                move(CrashingFiles(failing), source, target, [])
            except CrashError:
                pass
            try:
                take_back(CrashingFiles(crashing), source, target)
            except CrashError:
                pass
            else:
                assert (first / "lsid=7").exists()
            assert found(first, second) == CONTENT


def test_what_a_trim_dropped_meanwhile_is_not_copied(volumes: tuple[Path, Path]) -> None:
    source, target = make(volumes[0]), str(volumes[1] / "lsid=7")
    early = copy_early(RealFiles(), source, target, ["data/01.seg", "data/01.idx"])
    for name in early:
        os.remove(f"{source}/{name}")
    move(RealFiles(), source, target, early)
    assert {*found(*volumes)} == {*CONTENT} - early


def test_without_the_volume_of_the_copy_the_old_one_is_used(volumes: tuple[Path, Path]) -> None:
    move(RealFiles(), make(volumes[0]), str(volumes[1] / "lsid=7"), [])
    assert found(volumes[0]) == CONTENT
