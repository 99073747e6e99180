"""`vsn damaged` lists what storage nodes set aside, and deletes it when an operator says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loomlog.cli.console.failures import UsageError
from loomlog.cli.vsn import app

ASIDE = ("chains.damaged/1.sst", "logs.damaged2/1.sst", "lsid=3.damaged-2/meta")
FILES_ASIDE = ("lsid=4/data/1.damaged", "lsid=4/commits.damaged")
KEPT = ("identity", "chains/1.sst", "chains/owner", "lsid=4/data/1", "lsid=4/meta", "damaged.txt")


@pytest.fixture
def node(tmp_path: Path) -> Path:
    directory = tmp_path / "cid=local/snid=1"
    for name in (*ASIDE, *FILES_ASIDE, *KEPT):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(5000))
    return directory


def run(volume: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["damaged", "--volumes", str(volume), *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def left(node: Path) -> set[str]:
    return {str(path.relative_to(node)) for path in node.rglob("*") if path.is_file()}


def test_it_is_listed_with_its_size(tmp_path: Path, node: Path) -> None:
    listed = {each["path"]: each["bytes"] for each in json.loads(run(tmp_path, "--json"))}
    names = {str(Path(path).relative_to(node)) for path in listed}
    assert names == {*(name.split("/")[0] for name in ASIDE), *FILES_ASIDE}
    assert all(size >= 5000 for size in listed.values())
    assert f"{node}/chains.damaged" in run(tmp_path)


def test_nothing_is_deleted_without_a_confirmation(tmp_path: Path, node: Path) -> None:
    before = left(node)
    with pytest.raises(UsageError, match="may be the last copy of entries"):
        run(tmp_path, "--delete")
    assert left(node) == before


def test_only_what_was_set_aside_is_deleted(tmp_path: Path, node: Path) -> None:
    run(tmp_path, "--delete", "--yes")
    assert left(node) == set(KEPT)
    assert run(tmp_path, "--delete") == "nothing\n"
