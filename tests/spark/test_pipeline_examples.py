"""The pipelines in examples/pipelines do what they say, on the data that comes with them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from pipeline_rig import PipelineRig
from pyspark.sql import functions as sf

from loomlog.spark import read_table
from loomlog.spark.pipelines.loader import load

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"


@pytest.fixture
def here(pipelines: PipelineRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PipelineRig:
    """Run examples in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return pipelines


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(rig: PipelineRig, name: str, *logs: str) -> None:
    """Run an example once, on the sample data, which is made if it is missing."""
    data = example("sample_data")
    present = {info.name for info in rig.cluster.logs()}
    makers = {"access": data.requests, "impressions": data.impressions, "clicks": data.clicks}
    for log in set(logs) - present:
        data.fill(rig.cluster, log, makers[log]())
    rig.run(load(EXAMPLES / f"{name}.py"))


def test_requests_are_counted_per_minute(here: PipelineRig) -> None:
    run(here, "access_counts", "access")
    found = example("access_counts")
    rows = found.show(read_table(here.spark, found.TABLE)).collect()
    assert len(rows) == 3 * 3
    assert sum(row.requests for row in rows) == 30_000
    assert sum(row.failed or 0 for row in rows) == 300


def test_clicks_within_ten_minutes_make_revenue(here: PipelineRig) -> None:
    run(here, "revenue", "impressions", "clicks")
    table = read_table(here.spark, example("revenue").TABLE)
    assert table.count() == table.select("impression").distinct().count() == 270
    late = sf.col("at") > sf.col("shown") + sf.expr("INTERVAL 10 MINUTES")
    assert table.filter(late).count() == 0


def test_a_log_becomes_a_delta_table(here: PipelineRig) -> None:
    from deltalake import DeltaTable

    run(here, "to_delta", "access")
    rows = DeltaTable(example("to_delta").TABLE).to_pyarrow_dataset().to_table()
    assert sorted(rows["position"].to_pylist()) == list(range(1, 30_001))


def test_no_example_is_forgotten() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {"access_counts.py", "revenue.py", "to_delta.py", "sample_data.py"}
