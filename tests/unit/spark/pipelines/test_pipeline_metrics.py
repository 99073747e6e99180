"""Figures of pipelines, as Prometheus reads them."""

from __future__ import annotations

from scrape import values

from loomlog.metrics import text
from loomlog.spark.pipelines.status import PipelineStatus, SourceStatus, metrics_of
from loomlog.spark.pipelines.units import Counters


def status(**fields: object) -> PipelineStatus:
    given: dict[str, object] = {
        "name": "counts",
        "state": "running",
        "site": "a",
        "epoch": 1,
        "output": "",
        "version": 1,
        "sources": (SourceStatus("events", 5, 7_654_326, 7_654_321, 0.25),),
        "unit": None,
        "counters": Counters(units=3, records=1_234_567),
        "committed_at": 1794837005.493457,
        "error": "",
    }
    return PipelineStatus(**(given | fields))  # type: ignore[arg-type]


def test_figures_have_all_their_digits() -> None:
    found = values(text(metrics_of([status()])))
    of = 'loomlog_pipeline_{}{{pipeline="counts"}}'.format
    assert found[of("committed_time_seconds")] == 1794837005.493457
    assert found[of("records_total")] == 1_234_567
    assert found[of("lag_records")] == 7_654_321
    assert found[of("lag_seconds")] == 0.25


def test_a_stopped_pipeline_does_not_run() -> None:
    assert 'running{pipeline="counts"} 1.0\n' in text(metrics_of([status()]))
    assert 'running{pipeline="counts"} 0.0\n' in text(metrics_of([status(state="stopped")]))
