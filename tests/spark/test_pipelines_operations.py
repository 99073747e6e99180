"""Operations on pipelines: pause, reset, backfill, replay; two sites; how they are."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pipeline_rig import PipelineRig

from loomlog.cli.commands.pipeline import written_metrics
from loomlog.errors import Fenced, InvalidArgument, NotFound
from loomlog.spark import Pipeline, log, parquet, pipeline, read_table
from loomlog.spark.pipelines import rerun, store
from loomlog.spark.pipelines.loader import load
from loomlog.spark.pipelines.status import statuses, write_metrics

SCHEMA = "n long"


def records(first: int, last: int) -> list[dict[str, int]]:
    return [{"n": n} for n in range(first, last + 1)]


def copying(rig: PipelineRig, output: Any, plus: int = 0, **settings: Any) -> Pipeline:
    settings = {"decode": "json", "schema": SCHEMA} | settings

    @pipeline(rig.name, source=rig.log.name, output=output, **settings)
    def copied(rows: Any) -> Any:
        return rows.select((rows.n + plus).alias("n"))

    return copied


def numbers(rig: PipelineRig, table: Path, version: int = 1) -> list[int]:
    return sorted(row.n for row in read_table(rig.spark, table, version).collect())


def test_a_paused_pipeline_begins_nothing_and_a_reset_writes_a_new_version(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    work = copying(pipelines, parquet(table))
    pipelines.append(records(1, 10))
    pipelines.run(work)
    store.pause(pipelines.cluster, pipelines.name, wanted=True)
    pipelines.append(records(11, 20))
    assert pipelines.run(work).positions == {pipelines.log.name: 10}
    store.pause(pipelines.cluster, pipelines.name, wanted=False)
    pipelines.run(work)
    assert numbers(pipelines, table) == list(range(1, 21))
    store.reset(pipelines.cluster, pipelines.name, 6, same_output=False)
    assert pipelines.run(work).version == 2
    assert numbers(pipelines, table) == list(range(1, 21))
    assert numbers(pipelines, table, version=2) == list(range(6, 21))
    store.reset(pipelines.cluster, pipelines.name, "latest", same_output=True)
    pipelines.append(records(21, 21))
    pipelines.run(work)
    assert numbers(pipelines, table, version=2) == list(range(6, 22))


def test_a_backfill_makes_a_new_version_while_the_live_one_goes_on(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    pipelines.append(records(1, 20))
    pipelines.run(copying(pipelines, parquet(table)))
    better = copying(pipelines, parquet(table), plus=100)
    backfill = rerun.backfill(pipelines.cluster, better, rerun.BackfillExtent(first=5, last=15))
    pipelines.append(records(21, 25))
    pipelines.run(copying(pipelines, parquet(table)))
    progress = pipelines.run(rerun.continued(pipelines.cluster, better, 2))
    assert progress.at_end
    assert backfill.name == f"{pipelines.name}@2"
    (status,) = statuses(pipelines.cluster, backfill.name)
    assert (status.state, status.lag_records, status.lag_s) == ("finished", 0, 0.0)
    assert numbers(pipelines, table) == list(range(1, 26))
    assert numbers(pipelines, table, version=2) == [100 + n for n in range(5, 16)]
    with pytest.raises(InvalidArgument, match="not written yet"):
        rerun.backfill(pipelines.cluster, better, rerun.BackfillExtent(last=26))
    with pytest.raises(NotFound):
        rerun.continued(pipelines.cluster, better, 7)


@pytest.mark.parametrize("again_into", ["backfill", "reset"])
def test_a_record_that_fails_in_two_versions_is_replayed_into_the_live_one_once(
    pipelines: PipelineRig, tmp_path: Path, again_into: str
) -> None:
    table = tmp_path / "table"
    pipelines.append([{"n": 1}, b"two"])
    work = copying(pipelines, parquet(table))
    pipelines.run(work)
    if again_into == "backfill":
        pipelines.run(rerun.backfill(pipelines.cluster, work, rerun.BackfillExtent()))
    else:
        store.reset(pipelines.cluster, pipelines.name, "earliest", same_output=False)
        pipelines.run(work)
    assert [letter["value"] for letter in pipelines.letters()] == [b"two"] * 2
    better = copying(pipelines, parquet(table), decode=lambda value: (2,))
    for replay in rerun.replays(pipelines.cluster, better):
        pipelines.run(replay)
    live, other = (1, 2) if again_into == "backfill" else (2, 1)
    assert numbers(pipelines, table, live) == [1, 2]
    assert numbers(pipelines, table, other) == [1]


def test_a_backfill_of_nothing_is_refused(pipelines: PipelineRig, tmp_path: Path) -> None:
    pipelines.append(records(1, 5))
    work = copying(pipelines, parquet(tmp_path / "table"))
    pipelines.run(work)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for extent in (
        rerun.BackfillExtent(first=4, last=3),
        rerun.BackfillExtent(first=6),
        rerun.BackfillExtent(from_time=noon, to_time=noon),
    ):
        with pytest.raises(InvalidArgument, match=r"no position|is not before"):
            rerun.backfill(pipelines.cluster, work, extent)
    assert pipelines.progress().versions == 1


def test_a_backfill_may_be_of_a_time(pipelines: PipelineRig, tmp_path: Path) -> None:
    pipelines.append(records(1, 5))
    work = copying(pipelines, parquet(tmp_path / "table"))
    pipelines.run(work)
    middle = pipelines.log.read(5).timestamp + timedelta(microseconds=1)
    pipelines.append(records(6, 9))
    extent = rerun.BackfillExtent(from_time=middle, to_time=datetime.now(UTC) + timedelta(hours=1))
    rerun.backfill(pipelines.cluster, work, extent)
    pipelines.run(rerun.continued(pipelines.cluster, work, 2))
    assert numbers(pipelines, tmp_path / "table", version=2) == [6, 7, 8, 9]


def test_dead_letters_are_processed_again_once_by_a_better_definition(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    pipelines.append([{"n": 1}, b"two", {"n": 3}, b"four"])
    pipelines.run(copying(pipelines, parquet(table)))
    words = {b"two": 2}

    def decode(value: bytes) -> tuple[int]:
        return (words[value],)

    @pipeline(
        pipelines.name,
        source=pipelines.log.name,
        decode=decode,
        schema=SCHEMA,
        output=parquet(table),
    )
    def better(rows: Any) -> Any:
        return rows.select("n")

    for _ in range(2):
        for replay in rerun.replays(pipelines.cluster, better):
            pipelines.run(replay)
        assert numbers(pipelines, table) == [1, 2, 3]
    words[b"four"] = 4
    for replay in rerun.replays(pipelines.cluster, better):
        pipelines.run(replay)
    assert numbers(pipelines, table) == [1, 2, 3, 4]


def test_dead_letters_of_a_pipeline_with_state_go_back_to_their_source(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    out = f"{pipelines.log.name}.out"

    def distinct(decode: Any) -> Pipeline:
        @pipeline(
            pipelines.name,
            source=pipelines.log.name,
            decode=decode,
            schema=SCHEMA,
            stateful=True,
            checkpoint=str(tmp_path / "checkpoint"),
            output=log(out),
        )
        def once(rows: Any) -> Any:
            return rows.dropDuplicates(["n"]).select("n")

        return once

    pipelines.append([{"n": 1}, b"1", {"n": 1}, b"2"])
    pipelines.run(distinct(lambda value: (json.loads(value)["n"],)))
    better = distinct(lambda value: (int(value),))
    for replay in rerun.replays(pipelines.cluster, better):
        pipelines.run(replay)
    pipelines.run(better)
    assert sorted(row["n"] for row in pipelines.values(out)) == [1, 2]


def test_another_site_stands_by_and_takes_over(pipelines: PipelineRig, tmp_path: Path) -> None:
    work = copying(pipelines, parquet(tmp_path / "table"), lease_ttl_s=1.0)
    pipelines.append(records(1, 5))
    first = pipelines.runner(work, site="a")
    assert first.wait_until_committed(5)
    second = pipelines.runner(work, site="b")
    assert second.wait_until_said("standing by as site b: site a is active")
    first.stop()
    pipelines.append(records(6, 9))
    assert second.wait_until_committed(9)
    second.stop()
    assert (first.error, second.error) == (None, None)
    assert numbers(pipelines, tmp_path / "table") == list(range(1, 10))


def test_a_runner_that_was_replaced_stops_and_says_so(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    work = copying(pipelines, parquet(tmp_path / "table"), lease_ttl_s=1.0)
    pipelines.append(records(1, 5))
    old = pipelines.runner(work, site="same")
    assert old.wait_until_committed(5)
    new = pipelines.runner(work, site="same")
    error = old.join()
    assert isinstance(error, Fenced)
    assert "site same was replaced" in str(error)
    pipelines.append(records(6, 9))
    assert new.wait_until_committed(9)
    new.stop()
    assert numbers(pipelines, tmp_path / "table") == list(range(1, 10))


def test_a_runner_that_may_not_go_on_replaces_nobody(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    pipelines.append(records(1, 5))
    runner = pipelines.runner(copying(pipelines, parquet(tmp_path / "table")), site="same")
    assert runner.wait_until_committed(5)
    other = pipelines.runner(copying(pipelines, parquet(tmp_path / "other")), site="same")
    assert "output was" in str(other.join())
    pipelines.append(records(6, 9))
    assert runner.wait_until_committed(9)
    runner.stop()
    assert runner.error is None


def test_dead_letters_are_listed_wherever_they_are(pipelines: PipelineRig, tmp_path: Path) -> None:
    work = copying(pipelines, parquet(tmp_path / "table"), dead_letters=f"{pipelines.name}.lost")
    pipelines.append([b"two"])
    pipelines.run(work)
    (letter,) = json.loads(loom(pipelines, "dead-letters", "list", pipelines.name, "--json"))
    assert letter["value"] == "two"


def test_status_and_metrics_say_how_far_it_is(pipelines: PipelineRig, tmp_path: Path) -> None:
    pipelines.append(records(1, 10))
    pipelines.run(copying(pipelines, parquet(tmp_path / "table")))
    pipelines.append(records(11, 13))
    (found,) = statuses(pipelines.cluster, pipelines.name)
    assert (found.state, found.site, found.lag_records) == ("stopped", "", 3)
    assert found.lag_s is not None
    assert found.lag_s > 0
    write_metrics(tmp_path / "metrics.prom", [found])
    text = (tmp_path / "metrics.prom").read_text()
    assert f'loomlog_pipeline_lag_records{{pipeline="{pipelines.name}"}} 3.0\n' in text
    with written_metrics(pipelines.address, pipelines.name, tmp_path / "ended.prom"):
        pass
    ended = (tmp_path / "ended.prom").read_text()
    assert f'loomlog_pipeline_running{{pipeline="{pipelines.name}"}} 0.0\n' in ended
    told = loom(pipelines, "status", pipelines.name, "--json")
    assert json.loads(told)["sources"][0]["position"] == 10
    assert pipelines.name in loom(pipelines, "list")
    assert json.loads(loom(pipelines, "pause", pipelines.name, "--json"))["paused"]
    assert "has no dead letters" in loom(pipelines, "dead-letters", "list", pipelines.name)


def loom(rig: PipelineRig, *words: str) -> str:
    done = called(rig, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def called(rig: PipelineRig, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loomlog.cli.loom", "pipeline", *words]
    return subprocess.run(
        [*command, "--cluster", rig.address], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["status", "nobody"], 1, "there is no pipeline 'nobody'"),
        (["run", "missing.py"], 1, "there is no file missing.py"),
        (["pause", "nobody"], 1, "there is no pipeline"),
        (["dead-letters", "list", "nobody"], 1, "there is no pipeline"),
        (["reset", "nobody", "--to", "noon", "--yes"], 2, "give earliest, latest or a position"),
        (["backfill", "x.py", "--version", "2", "--from", "1"], 2, "already has a range"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    pipelines: PipelineRig, words: list[str], code: int, said: str
) -> None:
    done = called(pipelines, *words)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert said in done.stderr


def test_sql_in_toml_is_a_pipeline_too(pipelines: PipelineRig, tmp_path: Path) -> None:
    file = tmp_path / "sums.toml"
    file.write_text(
        f"""
        name = "{pipelines.name}"
        source = "{pipelines.log.name}"
        decode = "json"
        schema = "n long"
        sql = "SELECT n % 2 AS odd, sum(n) AS n FROM rows GROUP BY odd"
        [output]
        kind = "parquet"
        path = "{tmp_path / "table"}"
        """
    )
    pipelines.append(records(1, 4))
    pipelines.run(load(file))
    assert numbers(pipelines, tmp_path / "table") == [4, 6]
