"""`loom archive …` where it needs no Spark: what there is, and requests that make no sense."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from archive_rig import ArchiveRig, local_cluster
from cli_rig import Loom

import loomlog
from loomlog.cli.commands import archive
from loomlog.errors import Corrupt
from loomlog.spark import archive_job


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with local_cluster() as address:
        yield address


@pytest.fixture
def rig(address: str, tmp_path: Path) -> Iterator[ArchiveRig]:
    with loomlog.connect_sync(address) as cluster:
        yield ArchiveRig.make(cluster, address, tmp_path)


@pytest.fixture
def loom(address: str) -> Loom:
    return Loom(address)


def test_what_there_is_is_shown(rig: ArchiveRig, loom: Loom) -> None:
    name = rig.log.name
    assert loom.json("archive", "status", name) == []
    assert "loom archive run" in loom.says("archive", "status", name)
    assert loom.json("log", "describe", name)["archive"] is None
    rig.fill(50)
    rig.archive(until=40, trim=True)
    (shown,) = loom.json("archive", "status", name)
    assert (shown["log"], shown["first"], shown["through"], shown["head"]) == (name, 1, 40, 41)
    assert name in loom.says("archive", "status")
    files = loom.json("archive", "list", name)
    assert [(file["first"], file["last"], file["rows"]) for file in files] == [
        (1, 20, 20),
        (21, 40, 20),
    ]
    assert files[1]["name"] in loom.says("archive", "list", name)
    assert loom.json("log", "describe", name)["archive"]["through"] == 40
    assert str(rig.directory) in loom.says("log", "describe", name)
    values = loom.says("tail", name, "-n", "50", "--format", "{value}").split()
    assert values == [str(n) for n in range(1, 51)]
    both = loom.says("tail", name, "--from", "39", "--max", "3", "--format", "{value}")
    assert both.split() == ["39", "40", "41"]


def test_a_run_with_nothing_to_do_starts_no_spark(rig: ArchiveRig, loom: Loom) -> None:
    rig.fill(40)
    rig.archive(until=30)
    done = loom.json("archive", "run", rig.log.name, "--keep", "10")
    assert (done["rows_written"], done["through"], done["head"]) == (0, 30, 1)
    done = loom.json("archive", "run", rig.log.name, "--older-than", "1d", "--trim")
    assert (done["rows_written"], done["head"]) == (0, 1)


def test_what_makes_no_sense_is_told(rig: ArchiveRig, loom: Loom, tmp_path: Path) -> None:
    name = rig.log.name
    rig.fill(10)
    assert "--to" in loom.fails("archive", "run", name)
    assert "has no archive" in loom.fails("archive", "list", name)
    assert "has no archive" in loom.fails("archive", "verify", name)
    assert "has no archive" in loom.fails("archive", "forget", name, "--yes")
    assert "nonsense" in loom.fails("archive", "run", name, "--to", "nonsense://place")
    rig.archive()
    elsewhere = ("--to", str(tmp_path / "elsewhere"))
    assert "leave --to out" in loom.fails("archive", "run", name, *elsewhere)
    assert "not written yet" in loom.fails("archive", "run", name, "--until", "11")
    for wrong in (("--older-than", "soon"), ("--keep", "1", "--until", "2")):
        done = loom.run("archive", "run", name, *wrong)
        assert done.returncode == 2
        assert b"--older-than" in done.stderr


def test_a_damaged_file_is_a_failure_of_verify(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(archive, "_tasks", lambda master: nullcontext(archive_job.in_turn))
    rig.fill(40)
    rig.archive()
    archive.verify(rig.log.name, spark_master="", cluster=rig.address)
    assert "is complete" in capsys.readouterr().out
    damaged = rig.files[1]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(Corrupt, match=damaged.name):
        archive.verify(rig.log.name, "", rig.address, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [bool(file["problem"]) for file in found] == [False, True]


def test_an_archive_is_forgotten_and_its_files_stay(rig: ArchiveRig, loom: Loom) -> None:
    rig.fill(20)
    rig.archive()
    files = rig.files
    assert loom.run("archive", "forget", rig.log.name).returncode != 0  # nobody to ask
    assert loom.json("archive", "forget", rig.log.name, "--yes")["log"] == rig.log.name
    assert rig.log.archive() is None
    assert all(path.exists() for path in files)
