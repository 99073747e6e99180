"""Pipelines without state: units, exactly once, into tables and logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline_rig import PipelineRig

from loomlog.spark import parquet, pipeline, read_table


def test_a_pipeline_counts_what_there_is_and_then_what_came(
    pipelines: PipelineRig, tmp_path: Path
) -> None:
    rig = pipelines
    table = str(tmp_path / "counts.table")

    @pipeline(
        rig.name,
        source=rig.log.name,
        decode="json",
        schema="path string, status int",
        output=parquet(table),
        unit_records=40,
    )
    def counts(rows: Any) -> Any:
        return rows.groupBy("path").count()

    rig.append([{"path": f"/{n % 3}", "status": 200} for n in range(100)])
    progress = rig.run(counts)
    assert progress.positions == {rig.log.name: 100}
    assert progress.counters.units == 3
    assert sums(rig, table) == {"/0": 34, "/1": 33, "/2": 33}
    rig.append([{"path": "/0", "status": 200}] * 5)
    rig.run(counts)
    rig.run(counts)  # nothing new
    assert sums(rig, table) == {"/0": 39, "/1": 33, "/2": 33}


def sums(rig: PipelineRig, table: str) -> dict[str, int]:
    rows = read_table(rig.spark, table).groupBy("path").sum("count").collect()
    return {row[0]: row[1] for row in rows}
