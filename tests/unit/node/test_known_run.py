"""A node notes the newest run of the metadata durably, and takes no older one."""

from __future__ import annotations

from pathlib import Path

import pytest

from loomlog.core.history import Run, Seen
from loomlog.errors import NotLeader, RolledBack
from loomlog.node.known_run import KnownRun
from loomlog.storage import age_marks
from loomlog.storage.disk import RealFiles
from loomlog.storage.files import Finished, Step
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection


class AtOnce:
    """A worker that works at once."""

    def run(self, steps: list[Step], finished: Finished) -> None:
        for step in steps:
            step()
        finished(None)

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
