"""A storage node knows how old its data is, and takes no older run of the metadata."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from loomlog.core.generation import Generation
from loomlog.core.history import Run, Seen
from loomlog.errors import NotLeader, RolledBack
from loomlog.node.age_marks import Generations, KnownRun
from loomlog.storage import age_marks
from loomlog.storage.disk import RealFiles
from loomlog.storage.files import File, Finished, Step
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection


class FullDisk(RealFiles):
    """A file system on which no file can be made."""

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            raise OSError(errno.ENOSPC, "no space left", path)
        return super().open(path)


def start(*directories: Path, files: RealFiles | None = None) -> Generations:
    worker: Any = None  # only what grows while the node runs needs one
    return Generations(files or RealFiles(), list(map(str, directories)), worker)


def test_every_start_is_another_generation(tmp_path: Path) -> None:
    assert [start(tmp_path).numbers for _ in range(3)] == [[1], [2], [3]]


def test_a_node_whose_data_another_process_has_begins_a_new_life(tmp_path: Path) -> None:
    # For example an older copy that is started again and again beside the original.
    start(tmp_path).close()
    generations = start(tmp_path)
    assert generations.is_clean
    generations.end_life()
    assert [start(tmp_path).is_clean for _ in range(2)] == [False, False]


def test_it_goes_on_from_what_the_metadata_repository_has_heard_of(tmp_path: Path) -> None:
    generations = start(tmp_path)
    generations.registered(7)
    generations.registered(3)
    assert generations.numbers == [7]
    assert start(tmp_path).numbers == [8]


def test_a_volume_that_was_left_out_falls_behind_until_the_node_registers(tmp_path: Path) -> None:
    first, second, new = (tmp_path / name for name in ("first", "second", "new"))
    for volume in (first, second, new):
        volume.mkdir()
    assert start(first, second).numbers == [1, 1]
    assert [start(first).numbers for _ in range(3)] == [[2], [3], [4]]
    generations = start(first, second, new)
    assert generations.numbers == [5, 2, 0], "a new volume has none"
    generations.registered(5)
    assert generations.numbers == [5, 5, 5]
    assert start(first, second, new).numbers == [6, 6, 6]


def test_what_cannot_be_kept_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    assert start(good, bad).numbers == [1, 1]
    save = age_marks.save_generation

    def full(files: RealFiles, path: str, generation: Generation) -> None:
        if path == str(bad):
            raise OSError(errno.ENOSPC, "no space left")
        save(files, path, generation)

    with monkeypatch.context() as broken:
        broken.setattr(age_marks, "save_generation", full)
        generations = start(good, bad)
        generations.registered(7)
        assert generations.numbers == [7, 0], "a failed volume affects only itself"
    assert start(good, bad).numbers == [8, 2]


def test_on_a_full_disk_small_files_are_overwritten(tmp_path: Path) -> None:
    """Otherwise the node could not take part, and no data could be deleted there."""
    full, files, path = FullDisk(), RealFiles(), str(tmp_path)
    age_marks.save_generation(files, path, Generation(9, clean=True))
    age_marks.save_generation(full, path, Generation(10))
    assert age_marks.load_generation(files, path) == Generation(10)
    age_marks.save_run(files, [path], Seen(Run(1, "a long id"), 100))
    age_marks.save_run(full, [path], Seen(Run(2, "id"), 7))
    assert age_marks.load_run(files, [path]) == Seen(Run(2, "id"), 7)


def test_a_damaged_one_counts_as_the_first_there_was(tmp_path: Path) -> None:
    """The volume counts as an older copy then: it may be one."""
    for _ in range(3):
        start(tmp_path)
    (tmp_path / "generation").write_bytes(b"damaged")
    assert start(tmp_path).numbers == [1]
    generations = start(tmp_path)
    assert generations.numbers == [1]
    assert not generations.is_clean
    generations.registered(4)  # as the metadata repository knows
    assert start(tmp_path).numbers == [5]


class Machine(RealFiles):
    """A machine that can be booted again."""

    boots = 0

    def stamp(self, path: str) -> str:
        return f"{self.boots} {super().stamp(path)}"


def volumes_in(directory: Path) -> tuple[Path, Path]:
    first, second = directory / "first", directory / "second"
    first.mkdir()
    second.mkdir()
    return first, second


def test_a_node_knows_whether_it_stopped_or_crashed(tmp_path: Path) -> None:
    first, second = volumes_in(tmp_path)
    machine = Machine()

    def start_after_boot(*volumes: Path) -> Generations:
        machine.boots += 1
        return start(*volumes, files=machine)

    generations = start_after_boot(first)
    assert generations.is_clean, "it is new"
    generations.close()
    assert start_after_boot(first).is_clean
    assert not start_after_boot(first).is_clean, "it did not stop"
    start_after_boot(first).close()
    assert start_after_boot(first, second).is_clean, "another volume is new"
    assert not start_after_boot(first, second).is_clean
    start_after_boot(first, second).close()
    start_after_boot(second)
    assert not start_after_boot(first, second).is_clean, "one of them was used since"


def test_a_killed_process_has_forgotten_nothing(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    for _ in range(3):
        assert start(*volumes).is_clean
    generations = start(*volumes)
    generations.registered(9)
    assert start(*volumes).is_clean


def test_a_copy_of_one_volume_that_is_put_back_is_noticed(tmp_path: Path) -> None:
    first, second = volumes_in(tmp_path)
    start(first, second)
    shutil.copytree(second, tmp_path / "copy")
    shutil.rmtree(second)
    (tmp_path / "copy").rename(second)
    assert not start(first, second).is_clean


def test_a_crash_is_told_even_if_the_process_is_killed_before(tmp_path: Path) -> None:
    volumes, machine = volumes_in(tmp_path), Machine()
    start(*volumes, files=machine)
    machine.boots += 1
    assert not start(*volumes, files=machine).is_clean
    generations = start(*volumes, files=machine)
    assert not generations.is_clean, "the metadata repository has not heard of the crash"
    generations.registered(1)
    assert start(*volumes, files=machine).is_clean, "now it has"


# ---- runs of the metadata


class AtOnce:
    """A worker that works at once."""

    def run(self, steps: list[Step], finished: Finished) -> None:
        for step in steps:
            step()
        finished(None)

    run_short = run

    def close(self) -> None:
        pass


def known(*paths: Path) -> KnownRun:
    return KnownRun(RealFiles(), [str(path) for path in paths], AtOnce())  # type: ignore[arg-type]


async def note(run: KnownRun, number: int, run_id: str, revision: int) -> None:
    order = pb.NoteRun(number=number, id=run_id, revision=revision)
    connection: Connection = None  # type: ignore[assignment]
    await run.note(connection, pb.Frame(note_run=order), memoryview(b""))


async def test_what_was_noted_is_known_after_a_restart(tmp_path: Path) -> None:
    volumes = tmp_path / "a", tmp_path / "b"
    for volume in volumes:
        volume.mkdir()
    run = known(*volumes)
    assert run.to_wire() == pb.NoteRun()
    await note(run, 3, "x", 10)
    await note(run, 3, "x", 12)
    await note(run, 3, "x", 11)  # it came late
    assert known(volumes[1]).to_wire() == pb.NoteRun(number=3, id="x", revision=12)
    age_marks.save_run(
        RealFiles(), [str(volumes[0])], Seen(Run(4, "y"), 1)
    )  # then the power failed
    assert known(*volumes).to_wire() == pb.NoteRun(number=4, id="y", revision=1)


async def test_older_and_other_runs_are_refused(tmp_path: Path) -> None:
    run = known(tmp_path)
    await note(run, 3, "x", 10)
    with pytest.raises(NotLeader):
        await note(run, 2, "w", 50)
    with pytest.raises(RolledBack):
        await note(run, 3, "y", 50)
    assert run.to_wire() == pb.NoteRun(number=3, id="x", revision=10)


async def test_a_damaged_note_is_none(tmp_path: Path) -> None:
    await note(known(tmp_path), 3, "x", 10)
    data = (tmp_path / "run").read_bytes()
    (tmp_path / "run").write_bytes(data.replace(b"10", b"11"))
    assert known(tmp_path).to_wire() == pb.NoteRun()
