"""Manifests of a table: every unit once, whoever publishes, folds and reads at the same time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loomlog.errors import Corrupt, NotFound
from loomlog.spark import table_files
from loomlog.spark.pipelines import parquet_table
from loomlog.spark.pipelines.parquet_table import FOLD_AT, MANIFESTS, fold, publish_files


def names(table: Path) -> list[str]:
    return sorted(Path(file).name for file in table_files(table))


def test_a_unit_is_published_once_and_its_files_are_found(tmp_path: Path) -> None:
    for _ in range(2):
        publish_files(tmp_path, "p", 1, ["data/a", "data/b"])
    publish_files(tmp_path, "p", 1, ["data/other"])  # what was decided first counts
    publish_files(tmp_path, "p@dead-letters", 1, ["data/c"])
    assert names(tmp_path) == ["a", "b", "c"]


def test_folding_keeps_all_and_forgets_no_unit(tmp_path: Path) -> None:
    for number in range(1, 6):
        publish_files(tmp_path, "p", number, [f"data/{number}"])
    fold(tmp_path / MANIFESTS)
    assert [path.name for path in (tmp_path / MANIFESTS).iterdir()] == ["00000001.snapshot"]
    publish_files(tmp_path, "p", 3, ["data/late"])  # by somebody who slept
    publish_files(tmp_path, "p", 6, ["data/6"])
    fold(tmp_path / MANIFESTS)
    assert names(tmp_path) == [str(number) for number in range(1, 7)]


def test_who_slept_while_others_folded_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_files(tmp_path, "p", 1, ["data/1"])
    snapshots = parquet_table._snapshots

    def asleep(directory: Path) -> list[Path]:
        monkeypatch.undo()
        found = snapshots(directory)
        for number in (2, 3):  # the first snapshot comes, and goes
            fold(directory)
            publish_files(tmp_path, "p", number, [f"data/{number}"])
        return found

    monkeypatch.setattr(parquet_table, "_snapshots", asleep)
    fold(tmp_path / MANIFESTS)
    assert names(tmp_path) == ["1", "2", "3"]
    fold(tmp_path / MANIFESTS)
    assert names(tmp_path) == ["1", "2", "3"]


def test_manifests_stay_few(tmp_path: Path) -> None:
    for number in range(1, 3 * FOLD_AT):
        publish_files(tmp_path, "p", number, [f"data/{number}"])
    assert len(os.listdir(tmp_path / MANIFESTS)) <= FOLD_AT + 1
    assert len(names(tmp_path)) == 3 * FOLD_AT - 1


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=30))
@settings(max_examples=30)
def test_any_order_of_units_and_folds_reads_the_same(steps: list[tuple[str, bool]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        table, units, wanted = Path(directory), {"a": 0, "b": 0}, []
        for pipeline, folds in steps:
            units[pipeline] += 1
            file = f"{pipeline}{units[pipeline]}"
            publish_files(table, pipeline, units[pipeline], [f"data/{file}"])
            wanted.append(file)
            if folds:
                fold(table / MANIFESTS)
        assert names(table) == sorted(wanted)


def test_readers_see_whole_units_while_others_publish_and_fold(tmp_path: Path) -> None:
    publish_files(tmp_path, "p", 1, ["data/1-a", "data/1-b"])
    done = threading.Event()

    def publish() -> None:
        for number in range(2, 60):
            publish_files(tmp_path, "p", number, [f"data/{number}-a", f"data/{number}-b"])
            if number % 5 == 0:
                fold(tmp_path / MANIFESTS)
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    seen = 2
    while not done.is_set():
        count = len(names(tmp_path))
        assert count % 2 == 0
        assert count >= seen
        seen = count
    thread.join()
    assert len(names(tmp_path)) == 2 * 59


def test_what_is_not_there_or_not_whole_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no table"):
        table_files(tmp_path / "nowhere")
    publish_files(tmp_path, "p", 1, ["data/a"])
    manifest = next((tmp_path / MANIFESTS).glob("*.unit"))
    manifest.write_text(manifest.read_text().removesuffix("end\n"))
    with pytest.raises(Corrupt, match="not complete"):
        table_files(tmp_path)
