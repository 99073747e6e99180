"""Pipelines with state: windows, joins, de-duplication, processors; exactly once as well."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_rig import PipelineRig
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from loomlog.errors import LoomError
from loomlog.spark import Pipeline, log, parquet, pipeline, read_table
from loomlog.spark.pipelines import rerun
from loomlog.spark.pipelines.units import UnitState

SCHEMA = "time timestamp, key_ string, n long"


def at(minute: float, **fields: Any) -> dict[str, Any]:
    seconds = int(minute * 60)
    return {"time": f"2026-01-01T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:00Z", **fields}


def windows(rig: PipelineRig, output: Any, directory: Path, **settings: Any) -> Pipeline:
    """Return a pipeline that counts per minute, when the minute is over."""

    @pipeline(
        rig.name,
        source=rig.log.name,
        decode="json",
        schema=SCHEMA,
        watermark=("time", "1 minute"),
        stateful=True,
        checkpoint=str(directory / "checkpoint"),
        output=output,
        **settings,
    )
    def per_minute(rows: Any) -> Any:
        counted = rows.groupBy(sf.window("time", "1 minute")).count()
        return counted.select(sf.minute("window.start").alias("minute"), "count")

    return per_minute


def counted(rig: PipelineRig, table: Path) -> list[tuple[int, int]]:
    return sorted((row.minute, row["count"]) for row in read_table(rig.spark, table).collect())


def test_windows_close_as_the_watermark_moves_and_a_restart_goes_on(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    work = windows(pipelines, parquet(tmp_path / "table"), tmp_path, unit_records=20)
    pipelines.append([at(minute) for minute in range(5) for _ in range(10)])
    progress = pipelines.run(work)
    assert progress.positions == {pipelines.log.name: 50}
    assert counted(pipelines, tmp_path / "table") == [(0, 10), (1, 10), (2, 10)]
    pipelines.append([b"not json", *(at(minute) for minute in (3, 4, 9))])
    progress = pipelines.run(work)
    assert counted(pipelines, tmp_path / "table") == [(m, 10) for m in range(3)] + [
        (3, 11),
        (4, 11),
    ]
    assert progress.counters.dead_letters == 1
    assert [letter["value"] for letter in pipelines.letters()] == [b"not json"]


class Killed(Exception):  # noqa: N818 - it is no error
    """Stands for the death of the process."""


class Dying:
    """An output that ends the process, so to say, at a step of one of its units."""

    def __init__(self, inner: Any, step: str, unit: int = 3) -> None:
        self.inner, self.step, self.unit = inner, step, unit

    def stage(self, frame: Any, unit: Any) -> Any:
        staged = self.inner.stage(frame, unit)
        self._die_at("staged", unit)
        return staged

    def publish(self, unit: Any, staged: Any) -> None:
        self._die_at("decided", unit)
        self.inner.publish(unit, staged)
        self._die_at("published", unit)

    def _die_at(self, step: str, unit: Any) -> None:
        if (step, unit.number) == (self.step, self.unit):
            raise Killed


@pytest.mark.parametrize("step", ["staged", "decided", "published"])
def test_a_micro_batch_that_spark_repeats_is_published_once(
    pipelines: PipelineRig, tmp_path: Path, step: str
) -> None:
    out = f"{pipelines.log.name}.out"
    pipelines.append([at(minute, n=minute) for minute in range(6) for _ in range(10)])
    dying = Dying(log(out), step)
    with pytest.raises(Killed):
        pipelines.run(windows(pipelines, dying, tmp_path, unit_records=20, attempts=1))
    unit = pipelines.progress().unit
    assert unit is not None
    assert unit.state is (UnitState.RUNNING if step == "staged" else UnitState.COMMITTING)
    dying.step = "never"
    pipelines.run(windows(pipelines, dying, tmp_path, unit_records=20))
    found = sorted((row["minute"], row["count"]) for row in pipelines.values(out))
    assert found == [(minute, 10) for minute in range(4)]


def test_without_its_checkpoint_it_does_not_go_on_and_a_reset_begins_anew(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    work = windows(pipelines, parquet(tmp_path / "table"), tmp_path)
    pipelines.append([at(minute) for minute in range(4)])
    pipelines.run(work)
    shutil.move(tmp_path / "checkpoint", tmp_path / "elsewhere")
    with pytest.raises(LoomError, match=r"checkpoint .* is empty: use the one its other sites use"):
        pipelines.run(work)


def test_an_old_copy_of_its_checkpoint_is_refused(pipelines: PipelineRig, tmp_path: Path) -> None:
    work = windows(pipelines, parquet(tmp_path / "table"), tmp_path)
    pipelines.append([at(minute) for minute in range(4)])
    pipelines.run(work)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    pipelines.append([at(minute) for minute in range(4, 8)])
    pipelines.run(work)
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.move(tmp_path / "copy", tmp_path / "checkpoint")
    pipelines.append([at(9)])
    with pytest.raises(LoomError, match="not its checkpoint, or an old copy"):
        pipelines.run(work)


def test_a_backfill_of_a_pipeline_with_state_has_a_state_of_its_own(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    work = windows(pipelines, parquet(tmp_path / "table"), tmp_path)
    pipelines.append([at(minute) for minute in range(6)])
    pipelines.run(work)
    rerun.backfill(pipelines.cluster, work, rerun.BackfillExtent(first=2, last=5))
    progress = pipelines.run(rerun.continued(pipelines.cluster, work, 2))
    assert progress.at_end
    rows = read_table(pipelines.spark, tmp_path / "table", version=2).collect()
    assert sorted(row.minute for row in rows) == [1, 2]  # minutes 3 and 4 are not over yet
    assert [minute for minute, _ in counted(pipelines, tmp_path / "table")] == [0, 1, 2, 3]


def test_two_logs_are_joined_within_a_time_bound(pipelines: PipelineRig, tmp_path: Path) -> None:
    clicks = pipelines.cluster.create_log(f"{pipelines.log.name}.clicks", replicas=2)

    @pipeline(
        pipelines.name,
        sources={"impressions": pipelines.log.name, "clicks": clicks.name},
        decode="json",
        schema={
            "impressions": "ad string, time timestamp",
            "clicks": "clicked string, at timestamp",
        },
        watermark={"impressions": ("time", "10 minutes"), "clicks": ("at", "10 minutes")},
        stateful=True,
        checkpoint=str(tmp_path / "checkpoint"),
        output=parquet(tmp_path / "table"),
    )
    def joined(impressions: Any, clicks: Any) -> Any:
        within = sf.expr("ad = clicked AND at >= time AND at <= time + INTERVAL 10 MINUTES")
        return clicks.join(impressions, within).select("ad")  # the second source first

    pipelines.append([at(0, ad="a"), at(0, ad="b"), at(0, ad="c")])
    pipelines.run(joined)  # the click comes in a later unit than the impression
    for minute, ad in ((5, "a"), (30, "b")):
        click = at(minute)
        clicks.append(json.dumps({"clicked": ad, "at": click["time"]}).encode())
    progress = pipelines.run(joined)
    assert [row.ad for row in read_table(pipelines.spark, tmp_path / "table").collect()] == ["a"]
    assert progress.positions == {pipelines.log.name: 3, clicks.name: 2}


def test_repeated_records_are_dropped_within_the_watermark(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    @pipeline(
        pipelines.name,
        source=pipelines.log.name,
        decode="json",
        schema=SCHEMA,
        watermark=("time", "5 minutes"),
        stateful=True,
        checkpoint=str(tmp_path / "checkpoint"),
        output=parquet(tmp_path / "table"),
    )
    def distinct(rows: Any) -> Any:
        return rows.dropDuplicatesWithinWatermark(["key_"]).select("key_")

    pipelines.append([at(0, key_="a"), at(0, key_="b"), at(1, key_="a")])
    pipelines.run(distinct)
    pipelines.append([at(2, key_="b"), at(2, key_="c")])
    pipelines.run(distinct)
    rows = read_table(pipelines.spark, tmp_path / "table").collect()
    assert sorted(row.key_ for row in rows) == ["a", "b", "c"]


# The workers of Spark cannot import this file, as they can a pipeline's.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Totals(StatefulProcessor):
    """A running sum for each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._sum = handle.getValueState("sum", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timer_values: Any) -> Iterator[Row]:
        before = self._sum.get()
        total = (before[0] if before is not None else 0) + sum(row.n for row in rows)
        self._sum.update((total,))
        yield Row(key_=key[0], total=total)

    def close(self) -> None:
        pass


def test_a_processor_keeps_its_own_state(pipelines: PipelineRig, tmp_path: Path) -> None:
    @pipeline(
        pipelines.name,
        source=pipelines.log.name,
        decode="json",
        schema="key_ string, n long",
        stateful=True,
        output_mode="update",
        checkpoint=str(tmp_path / "checkpoint"),
        output=log(f"{pipelines.log.name}.out"),
        spark={
            "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution."
            "streaming.state.RocksDBStateStoreProvider"
        },
    )
    def totals(rows: Any) -> Any:
        return rows.groupBy("key_").transformWithState(
            Totals(), "key_ string, total long", "Update", "None"
        )

    pipelines.append([{"key_": "a", "n": 1}, {"key_": "b", "n": 2}, {"key_": "a", "n": 3}])
    pipelines.run(totals)
    pipelines.append([{"key_": "a", "n": 10}])
    pipelines.run(totals)
    found = [(row["key_"], row["total"]) for row in pipelines.values(f"{pipelines.log.name}.out")]
    assert sorted(found) == [("a", 4), ("a", 14), ("b", 2)]


def test_heartbeats_close_the_windows_of_a_quiet_source(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    @pipeline(
        pipelines.name,
        source=pipelines.log.name,
        decode="json",
        schema="n long",
        watermark=("timestamp", "1 second"),
        stateful=True,
        checkpoint=str(tmp_path / "checkpoint"),
        output=log(f"{pipelines.log.name}.out"),
        heartbeat_s=0.5,
        interval_s=0.1,
    )
    def per_second(rows: Any) -> Any:
        return rows.groupBy(sf.window("timestamp", "1 second")).agg(sf.count("*").alias("count"))

    pipelines.append([{"n": n} for n in range(10)])
    runner = pipelines.runner(per_second)
    out = f"{pipelines.log.name}.out"
    try:
        assert runner.wait_until(lambda: pipelines.total(out, "count") == 10)
    finally:
        runner.stop()
    assert pipelines.progress().counters.dead_letters == 0
