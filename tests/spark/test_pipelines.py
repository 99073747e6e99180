"""Pipelines without state: every record exactly once in every kind of output."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pipeline_rig import PipelineRig
from pyspark.sql import functions as sf

from loomlog.client.publish import writer_state
from loomlog.client.publish.writer import writers_prefix
from loomlog.errors import InvalidArgument, LoomError
from loomlog.spark import Pipeline, delta, log, parquet, pipeline, read_table
from loomlog.spark.pipelines.parquet_table import ParquetOutput
from loomlog.spark.pipelines.store import register_name
from loomlog.spark.pipelines.units import UnitState

SCHEMA = "n long, path string"


def records(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"n": n, "path": f"/{n % 3}"} for n in range(first, first + count)]


def copying(rig: PipelineRig, output: Any, **settings: Any) -> Pipeline:
    """Return a pipeline that copies every record."""

    @pipeline(
        rig.name,
        source=rig.log.name,
        output=output,
        **{"decode": "json", "schema": SCHEMA} | settings,
    )
    def copied(rows: Any) -> Any:
        return rows.select("n", "path")

    return copied


def numbers(rig: PipelineRig, table: Any, version: int = 1) -> list[int]:
    return sorted(row.n for row in read_table(rig.spark, table, version).collect())


def test_units_become_a_table_and_later_ones_are_added(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    @pipeline(
        pipelines.name,
        source=pipelines.log.name,
        decode="json",
        schema=SCHEMA,
        output=parquet(tmp_path / "counts"),
        unit_records=40,
    )
    def counts(rows: Any) -> Any:
        return rows.groupBy("path").count()

    def table() -> dict[str, int]:
        rows = read_table(pipelines.spark, tmp_path / "counts").groupBy("path").sum("count")
        return {row[0]: row[1] for row in rows.collect()}

    pipelines.append(records(100))
    progress = pipelines.run(counts)
    assert (progress.positions, progress.counters.units) == ({pipelines.log.name: 100}, 3)
    assert table() == {"/0": 34, "/1": 33, "/2": 33}
    pipelines.append([{"n": 0, "path": "/0"}] * 5)
    pipelines.run(counts)
    pipelines.run(counts)  # nothing new
    assert table() == {"/0": 39, "/1": 33, "/2": 33}


def test_a_log_as_output_has_every_row_once(pipelines: PipelineRig) -> None:
    out = f"{pipelines.log.name}.out"
    copied = copying(pipelines, log(out, streams=2), unit_records=30)
    pipelines.append(records(70))
    pipelines.run(copied)
    pipelines.append(records(10, first=70))
    pipelines.run(copied)
    assert sorted(row["n"] for row in pipelines.values(out)) == list(range(80))


def test_records_for_a_log_may_be_made_by_hand(pipelines: PipelineRig) -> None:
    out = f"{pipelines.log.name}.out"

    @pipeline(pipelines.name, source=pipelines.log.name, output=log(out))
    def upper(rows: Any) -> Any:
        return rows.select(sf.upper(rows.value.cast("string")).alias("value"), "key", "timestamp")

    pipelines.log.append(b'"a"', b"k")
    pipelines.run(upper)
    found = pipelines.cluster.log(out).read(1)
    source = pipelines.log.read(1)
    assert (found.value, found.key, found.timestamp) == (b'"A"', b"k", source.timestamp)


def test_a_delta_table_as_output_and_a_unit_that_is_published_twice(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    place = str(tmp_path / "table")
    copied = copying(pipelines, Dying(delta(place), "published"), unit_records=30)
    pipelines.append(records(70))
    with pytest.raises(Killed):
        pipelines.run(copied)
    pipelines.run(copying(pipelines, Dying(delta(place), "never"), unit_records=30))
    found = DeltaTable(place)
    rows = found.to_pyarrow_dataset().to_table()
    assert sorted(rows["n"].to_pylist()) == list(range(70))
    owner = f"{pipelines.name}-{pipelines.progress().life}"
    assert found.transaction_version(owner) == 3


@pytest.mark.parametrize("kind", [parquet, delta])
def test_a_namesake_from_another_cluster_adds_to_a_table_and_skips_nothing(
    pipelines: PipelineRig, tmp_path: Path, kind: Any
) -> None:
    copied = copying(pipelines, kind(tmp_path / "table"), unit_records=2)
    pipelines.append(records(3))
    pipelines.run(copied)
    register = pipelines.cluster.register(register_name(pipelines.name))
    known = register.get()
    assert known is not None
    register.swap(None, known.version)  # as in a cluster that never had it
    pipelines.run(copied)
    if kind is parquet:
        assert numbers(pipelines, tmp_path / "table") == [0, 0, 1, 1, 2, 2]
    else:
        from deltalake import DeltaTable

        assert DeltaTable(str(tmp_path / "table")).to_pyarrow_dataset().count_rows() == 6


class Killed(BaseException):
    """Stands for the death of the process."""


class Dying:
    """An output of one's own; the runner dies once at the given step."""

    def __init__(self, inner: Any, step: str) -> None:
        self.inner = inner
        self.step = step

    def stage(self, frame: Any, unit: Any) -> Any:
        staged = self.inner.stage(frame, unit)
        self._die_at("staged")
        return staged

    def publish(self, unit: Any, staged: Any) -> None:
        self._die_at("decided")
        self.inner.publish(unit, staged)
        self._die_at("published")

    def _die_at(self, step: str) -> None:
        if step == self.step:
            self.step = "never"
            raise Killed


@pytest.mark.parametrize(
    ("step", "state"),
    [
        ("staged", UnitState.RUNNING),
        ("decided", UnitState.COMMITTING),
        ("published", UnitState.COMMITTING),
    ],
)
def test_a_runner_that_dies_anywhere_changes_nothing(
    pipelines: PipelineRig, tmp_path: Path, step: str, state: UnitState
) -> None:
    copied = copying(pipelines, Dying(parquet(tmp_path / "table"), step), unit_records=30)
    pipelines.append(records(40))
    with pytest.raises(Killed):
        pipelines.run(copied)
    left = pipelines.progress()
    assert left.unit is not None
    assert left.unit.state is state
    decided = left.unit.staged
    told: list[Any] = []
    pipelines.run(copied, told)
    assert numbers(pipelines, tmp_path / "table") == list(range(40))
    if decided is not None:  # what was decided is published, not computed again
        assert told[0].staged == decided


def test_decided_rows_that_a_trim_took_after_a_silent_day_are_computed_again(
    pipelines: PipelineRig,
) -> None:
    out = f"{pipelines.log.name}.out"
    pipelines.append(records(2))
    pipelines.run(copying(pipelines, Dying(log(out), "never")))
    pipelines.append(records(3, first=2))
    work = copying(pipelines, Dying(log(out), "decided"))
    with pytest.raises(Killed):
        pipelines.run(work)
    register = pipelines.cluster.register(f"{writers_prefix(out)}{pipelines.name}")
    known = register.get()
    assert known is not None
    silent = replace(writer_state.decode(known.value), changed_us=0)
    register.swap(silent.encode(), known.version)
    pipelines.cluster.log(out).trim(2)
    pipelines.run(work)
    found = pipelines.cluster.log(out).subscribe(3, pipelines.cluster.log(out).tail())
    assert sorted(json.loads(entry.value)["n"] for entry in found) == [2, 3, 4]


@pytest.mark.parametrize(
    ("decode", "good", "bad"),
    [
        ("json", [b'{"n": 1, "path": "/a"}', b'{"n": 2}'], [b"{", b"", b'{"n": "x"}', b"[1]"]),
        ("csv", [b"1,/a", b"2,"], [b"x,/a", b"1,2,3"]),
        (lambda value: (int(value), None), [b"1", b"2"], [b"x", b""]),
    ],
    ids=["json", "csv", "function"],
)
def test_records_that_cannot_be_decoded_become_dead_letters_once(
    pipelines: PipelineRig, tmp_path: Path, decode: Any, good: list[bytes], bad: list[bytes]
) -> None:
    copied = copying(
        pipelines, Dying(parquet(tmp_path / "table"), "published"), decode=decode, unit_records=4
    )
    pipelines.append([good[0], *bad, good[1]], batch=1)
    with pytest.raises(Killed):
        pipelines.run(copied)
    progress = pipelines.run(copied)
    assert numbers(pipelines, tmp_path / "table") == [1, 2]
    assert progress.counters.dead_letters == len(bad)
    letters = sorted(pipelines.letters(), key=lambda letter: letter["position"])
    assert [letter["value"] for letter in letters] == bad
    assert [letter["position"] for letter in letters] == list(range(2, 2 + len(bad)))
    assert all(letter["log"] == pipelines.log.name and letter["error"] for letter in letters)


def test_a_value_may_be_many_rows_in_arrow(pipelines: PipelineRig, tmp_path: Path) -> None:
    def stream(ns: list[int]) -> bytes:
        batch = pa.record_batch({"n": pa.array(ns, pa.int64()), "path": ["/"] * len(ns)})
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, batch.schema) as writer:
            writer.write_batch(batch)
        return bytes(out.getvalue())

    copied = copying(pipelines, parquet(tmp_path / "table"), decode="arrow")
    pipelines.append([stream([1, 2]), b"not arrow", stream([]), stream([3])])
    pipelines.run(copied)
    assert [row.n for row in read_table(pipelines.spark, tmp_path / "table").collect()] == [1, 2, 3]
    assert [letter["value"] for letter in pipelines.letters()] == [b"not arrow"]


def failing_at(rig: PipelineRig, output: Any, bad: set[int], **settings: Any) -> Pipeline:
    def check(n: int) -> int:
        if n in bad:
            raise ValueError(f"{n} is bad")
        return n

    checked = sf.udf(check, "long", useArrow=False)

    @pipeline(
        rig.name, source=rig.log.name, decode="json", schema=SCHEMA, output=output, **settings
    )
    def doubled(rows: Any) -> Any:
        return rows.select((checked("n") * 1).alias("n"))

    return doubled


def test_a_record_that_fails_is_found_and_put_away_and_the_rest_is_processed(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    pipelines.append(records(16))
    work = failing_at(pipelines, parquet(tmp_path / "table"), {5}, attempts=1)
    progress = pipelines.run(work)
    assert numbers(pipelines, tmp_path / "table") == [n for n in range(16) if n != 5]
    (letter,) = pipelines.letters()
    assert (letter["position"], json.loads(letter["value"])["n"]) == (6, 5)
    assert letter["error"] == "ValueError: 5 is bad"
    assert (progress.counters.dead_letters, progress.counters.splits) == (1, 4)
    assert progress.error == ""


def test_a_wrong_function_stops_the_pipeline_and_puts_nothing_away(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    pipelines.append(records(4))

    @pipeline(
        pipelines.name,
        source=pipelines.log.name,
        decode="json",
        schema=SCHEMA,
        output=parquet(tmp_path / "table"),
    )
    def wrong(rows: Any) -> Any:
        return rows.select("nobody")

    with pytest.raises(LoomError, match=r"function of pipeline .* failed.*nobody"):
        pipelines.run(wrong)
    assert "nobody" in pipelines.progress().error
    pipelines.run(copying(pipelines, parquet(tmp_path / "table")))
    assert numbers(pipelines, tmp_path / "table") == [0, 1, 2, 3]
    assert pipelines.progress().counters.dead_letters == 0


def test_columns_that_a_log_cannot_take_stop_the_pipeline_and_put_nothing_away(
    pipelines: PipelineRig,
) -> None:
    pipelines.append(records(2))

    @pipeline(
        pipelines.name,
        source=pipelines.log.name,
        decode="json",
        schema=SCHEMA,
        output=log(f"{pipelines.log.name}.out"),
        attempts=1,
    )
    def keyed(rows: Any) -> Any:
        return rows.selectExpr("n AS key", "path AS value")

    with pytest.raises(LoomError, match="the column key must be binary or string, not bigint"):
        pipelines.run(keyed)
    assert pipelines.progress().counters.dead_letters == 0


def test_an_output_that_always_fails_is_nobodys_fault(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    """A record is put away only if the work goes well without it."""

    class Full(ParquetOutput):
        def stage(self, frame: Any, unit: Any) -> Any:
            frame.select(sf.raise_error(sf.lit("no space"))).collect()
            raise OSError("no space left")

    pipelines.append(records(1))
    runner = pipelines.runner(copying(pipelines, Full(str(tmp_path / "table")), attempts=1))
    assert runner.wait_until_said("even without records"), runner.said
    runner.stop()
    assert pipelines.progress().counters.dead_letters == 0
    pipelines.run(copying(pipelines, Full.__base__(str(tmp_path / "table"))))  # type: ignore[misc]
    assert numbers(pipelines, tmp_path / "table") == [0]


def test_a_pipeline_that_became_another_one_is_refused(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    pipelines.append(records(3))
    pipelines.run(copying(pipelines, parquet(tmp_path / "one")))
    with pytest.raises(InvalidArgument, match=r"output was 'parquet .*one' and is now .*reset"):
        pipelines.run(copying(pipelines, parquet(tmp_path / "other")))


def test_a_start_in_the_middle_and_reading_behind_what_is_committed(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    pipelines.append(records(30))
    copied = copying(pipelines, parquet(tmp_path / "table"), start=11)
    pipelines.run(copied)
    pipelines.append(records(5, first=30))
    behind = f"committed:{pipelines.name}"
    assert pipelines.positions(startingPosition=behind) == list(range(31, 36))
    assert numbers(pipelines, tmp_path / "table") == list(range(10, 30))
