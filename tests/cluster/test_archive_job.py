"""The archive job neither loses nor duplicates entries, whatever is killed or damaged."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from archive_rig import ArchiveRig, local_cluster

import loomlog
from loomlog.archive import manifest, record
from loomlog.archive.contents import Archive
from loomlog.errors import Conflict, Corrupt, DataLoss, InvalidArgument, NotFound, NotYetWritten
from loomlog.spark import archive_job
from loomlog.spark.archive_tasks import Checked, write_file

# A step is a report, or a file that is about to get its name; at the given one the process is gone.
KILLED_RUN = """
import os, signal, sys
import loomlog
from loomlog.archive import location
from loomlog.spark import archive_job

archive_job.FILES_PER_STEP = 2
address, log, directory, until, fatal = sys.argv[1:]
steps = 0

def step(*_):
    global steps
    steps += 1
    if steps == int(fatal):
        os.kill(os.getpid(), signal.SIGKILL)

location.make_durable = step
with loomlog.connect_sync(address) as cluster:
    archive_job.run(cluster, address, log, to=directory, until=int(until), rows_per_file=10,
                    trim=True, report=step)
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with local_cluster() as address:
        yield address


@pytest.fixture
def rig(address: str, tmp_path: Path) -> Iterator[ArchiveRig]:
    with loomlog.connect_sync(address) as cluster:
        rig = ArchiveRig.make(cluster, address, tmp_path)
        yield rig
        cluster.delete_log(rig.log.name)


def values(rig: ArchiveRig, last: int) -> list[int]:
    return [int(entry.value) for entry in rig.log.subscribe(1, last)]


def in_archive(rig: ArchiveRig) -> list[str]:
    return [file.name for file in Archive(rig.info).files()]


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


@pytest.mark.timeout(300)  # it starts twenty interpreters
def test_killed_at_every_kind_of_step_and_run_again(rig: ArchiveRig) -> None:
    rig.fill(400)
    killed = 0
    for fatal in range(1, 21):
        until = 15 * fatal
        arguments = [rig.address, rig.log.name, str(rig.directory), str(until), str(fatal)]
        done = subprocess.run(
            [sys.executable, "-c", KILLED_RUN, *arguments], capture_output=True, timeout=60
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
        killed += done.returncode != 0
        assert values(rig, 400) == list(range(1, 401))
        if fatal % 3 == 0:  # else there is ever more to do, and no run comes to its last steps
            assert rig.archive(until=until, trim=True).head == until + 1
            assert values(rig, 400) == list(range(1, 401))
    assert killed > 15
    assert rig.archive(until=400, trim=True).head == 401
    assert values(rig, 400) == list(range(1, 401))
    assert [path.name for path in rig.files] == sorted(in_archive(rig))


def test_parquet_files_are_plain_parquet(rig: ArchiveRig) -> None:
    rig.fill(45)
    rig.archive()
    tables = [pq.read_table(path) for path in rig.files]
    assert sorted(n for table in tables for n in table["position"].to_pylist()) == list(
        range(1, 46)
    )
    names = ["position", "stream", "llsn", "timestamp", "key", "value", "headers"]
    assert tables[0].column_names == names
    assert all(
        table["position"].to_pylist() == sorted(table["position"].to_pylist()) for table in tables
    )


@pytest.mark.parametrize("place", [0.0, 0.3, 0.6, 0.9, 1.0])
def test_a_flipped_byte_is_found_before_a_trim_and_the_file_is_written_anew(
    rig: ArchiveRig, place: float
) -> None:
    rig.fill(60)
    rig.archive()
    damaged = rig.files[1]
    flip(damaged, int(place * (damaged.stat().st_size - 1)))
    with pytest.raises(Corrupt, match=f"{damaged.name} is damaged.*nothing was trimmed: run again"):
        rig.archive(trim=True)
    assert rig.log.head() == 1
    assert rig.archive(trim=True).head == 61
    assert damaged.name not in in_archive(rig)
    assert not damaged.exists()
    assert values(rig, 60) == list(range(1, 61))


def test_rows_that_are_not_those_of_the_log_are_found_before_a_trim(rig: ArchiveRig) -> None:
    """The file is whole and is what its manifest says; only the log knows better."""
    rig.fill(40)

    def written_wrongly(
        work: Callable[[Any], Any], tasks: Sequence[Any], finished: Callable[[int], None]
    ) -> list[Any]:
        if work is not write_file:
            return archive_job.in_turn(work, tasks, finished)
        other = ArchiveRig.make(rig.cluster, rig.address, rig.directory)
        other.fill(40, batch=5)
        elsewhere = [_of_log(task, other.log.name) for task in tasks]
        return archive_job.in_turn(work, elsewhere, finished)

    with pytest.raises(Corrupt, match="differs from the log in: stream, llsn, timestamp"):
        rig.archive(trim=True, run_tasks=written_wrongly)
    assert rig.log.head() == 1


def _of_log(task: Any, log: str) -> Any:
    return replace(task, place=replace(task.place, log=log))


def test_a_missing_file_is_found_before_a_trim(rig: ArchiveRig) -> None:
    rig.fill(60)
    rig.archive()
    rig.files[2].unlink()
    with pytest.raises(Corrupt, match="is missing"):
        rig.archive(trim=True)
    assert rig.archive(trim=True).head == 61


def test_a_file_whose_rows_the_log_has_no_more_cannot_be_written_anew(rig: ArchiveRig) -> None:
    rig.fill(60)
    rig.archive()
    rig.log.trim(25)  # by hand, in the middle of the second file
    damaged = rig.files[1] if "-21-" in rig.files[1].name else rig.files[0]
    flip(damaged, 200)
    for _ in range(2):
        with pytest.raises(Corrupt, match=f"no longer has all rows of {damaged.name}"):
            rig.archive(trim=True)
    flip(damaged, 200)
    assert rig.archive(trim=True).head == 61


def test_an_earlier_run_that_wakes_up_changes_nothing(rig: ArchiveRig) -> None:
    rig.fill(60)

    def slowly(
        work: Callable[[Any], Any], tasks: Sequence[Any], finished: Callable[[int], None]
    ) -> list[Any]:
        found = archive_job.in_turn(work, tasks, finished)
        rig.archive(until=40, trim=True)  # the later run, from begin to end
        return found

    with pytest.raises(Conflict, match="another run"):
        rig.archive(trim=True, run_tasks=slowly)
    assert rig.info.through == 40
    assert rig.log.head() == 41
    assert values(rig, 60) == list(range(1, 61))
    rig.archive(trim=True)
    assert values(rig, 60) == list(range(1, 61))


def test_the_manifest_is_folded_and_read_in_parts(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "FILES_PER_PAGE", 3)
    rig.fill(200)
    for until in (15, 90, 91, 200):
        rig.archive(until=until, rows_per_file=10)
    made = Archive(rig.info).manifest()
    assert len(made.pages) >= 6
    assert len(made.files) <= 3
    assert (rig.info.files, rig.info.size_bytes) == (made.file_count, made.size_bytes)
    assert len(in_archive(rig)) == made.file_count
    flip(rig.files[5], 100)
    with pytest.raises(Corrupt, match=rig.files[5].name):
        rig.archive(trim=True)
    rig.archive(trim=True)
    assert values(rig, 200) == list(range(1, 201))
    assert rig.log.read(77).value == b"77"


def test_only_what_the_archive_has_is_left_in_its_directory(rig: ArchiveRig) -> None:
    rig.fill(60)
    rig.archive(until=30)
    directory = rig.files[0].parent
    for name in (
        "positions-31-40.abc.parquet",
        "manifest-40.abc.json",
        "page-1-2.abc.json.partial",
    ):
        (directory / name).write_bytes(b"left")
    (directory / "notes.txt").write_bytes(b"of the user")
    rig.archive(until=30)
    names = {path.name for path in directory.iterdir()}
    assert names == {*in_archive(rig), rig.info.manifest, "notes.txt"}


@pytest.mark.parametrize("runs", [1, 2])
def test_what_was_archived_since_the_metadata_was_copied_is_found_again(
    rig: ArchiveRig, runs: int
) -> None:
    rig.fill(30)
    rig.archive(trim=True)
    register = rig.cluster.register(record.register_name(rig.log.name))
    known = register.get()
    assert known is not None
    for _ in range(runs):  # the second one deletes the manifest that the copy names
        rig.fill(30)
        rig.archive(trim=True)
    now, last = register.get(), 30 * (runs + 1)
    assert now is not None
    register.swap(known.value, now.version)  # as after `loom metadata catch-up`
    assert rig.info.through == 30
    rig.archive()
    assert rig.info.through == last
    rig.fill(10)
    rig.archive(trim=True)
    assert values(rig, last + 10) == list(range(1, last + 11))
    assert all(not found.problem for found in verified(rig))


def verified(rig: ArchiveRig) -> list[Checked]:
    return archive_job.verify(rig.cluster, rig.address, rig.log.name)


def test_a_manifest_whose_files_are_gone_is_not_used(rig: ArchiveRig) -> None:
    rig.fill(30)
    rig.archive(until=20)
    before = rig.info
    rig.archive()
    (late,) = (path for path in rig.files if "-21-" in path.name)
    late.unlink()
    register = rig.cluster.register(record.register_name(rig.log.name))
    now = register.get()
    assert now is not None
    register.swap(before.encode(), now.version)
    rig.archive(trim=True)
    assert values(rig, 30) == list(range(1, 31))


def test_there_is_one_place_and_no_gap(rig: ArchiveRig, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="--to"):
        rig.archive(until=0, to=None)
    rig.fill(30)
    with pytest.raises(NotYetWritten, match="31"):
        rig.archive(until=31)
    rig.archive(until=10)
    rig.archive(until=12, to=None)
    with pytest.raises(InvalidArgument, match="leave --to out"):
        rig.archive(until=20, to=str(tmp_path / "other"))
    rig.log.trim(20)
    with pytest.raises(DataLoss, match=r"positions 13 to 20 .*forget"):
        rig.archive()
    archive_job.forget(rig.cluster, rig.log.name)
    assert rig.log.archive() is None
    rig.archive(trim=True)
    assert (rig.info.first, rig.info.through) == (21, 30)
    assert [entry.position for entry in rig.log.subscribe("earliest", 30)] == list(range(21, 31))


def test_verify_reads_all_also_what_the_log_has_no_more(rig: ArchiveRig) -> None:
    with pytest.raises(NotFound, match="has no archive"):
        archive_job.verify(rig.cluster, rig.address, rig.log.name)
    rig.fill(60)
    rig.archive(until=30, trim=True)
    rig.archive(until=60)
    found = archive_job.verify(rig.cluster, rig.address, rig.log.name)
    assert [c.problem for c in found] == [""] * 4
    flip(rig.files[0], 50)
    flip(rig.files[3], 50)
    found = archive_job.verify(rig.cluster, rig.address, rig.log.name)
    assert {c.file.name for c in found if c.problem} == {rig.files[0].name, rig.files[3].name}


def test_age_finds_a_position(rig: ArchiveRig) -> None:
    begin_s = time.time() - 30 * 60
    for number in range(30):
        rig.log.append(b"x", timestamp=begin_s + number * 60)
    assert archive_job.older_than(rig.cluster, rig.log.name, 3600) == 0
    assert archive_job.older_than(rig.cluster, rig.log.name, -3600) == 30
    assert archive_job.older_than(rig.cluster, rig.log.name, 15.5 * 60) == 15
