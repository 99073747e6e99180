"""Figures of pipelines, as Prometheus reads them."""

from __future__ import annotations

from loomlog.spark.pipelines.status import PipelineStatus, SourceStatus, metrics_text
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
    text = metrics_text([status()])
    assert 'committed_time_seconds{pipeline="counts"} 1794837005.493457\n' in text
    assert 'records_total{pipeline="counts"} 1234567\n' in text
    assert 'lag_records{pipeline="counts"} 7654321\n' in text
    assert 'lag_seconds{pipeline="counts"} 0.25\n' in text


def test_a_stopped_pipeline_does_not_run() -> None:
    assert 'running{pipeline="counts"} 1\n' in metrics_text([status()])
    assert 'running{pipeline="counts"} 0\n' in metrics_text([status(state="stopped")])
