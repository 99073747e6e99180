"""Percentiles, windows of time and charts of `loom bench`."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from loomlog.cli.bench import charts, measurements, steadiness
from loomlog.cli.bench.machine import fdatasync_ms
from loomlog.cli.bench.measurements import Result, Slice, TimeWindow, percentile_ms


def test_percentiles() -> None:
    hundred = [n / 1000 for n in range(100)]
    assert percentile_ms(hundred, 0.5) == pytest.approx(50)
    assert percentile_ms(hundred, 0.99) == pytest.approx(99)
    assert percentile_ms([], 0.5) is None


def test_percentiles_of_many_latencies_need_little_memory() -> None:
    latencies = steadiness.Latencies()
    assert latencies.percentile_ms(0.5) is None
    latencies.add(array("d", [n / 1000 for n in range(1, 1001)]))
    assert latencies.percentile_ms(0.5) == pytest.approx(500, rel=0.02)
    assert latencies.percentile_ms(0.999) == pytest.approx(999, rel=0.02)
    assert latencies.longest_s == 1.0


def test_a_window_counts_only_what_ends_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "perf_counter", lambda: 100.0)
    window = TimeWindow(10)
    assert (window.begin, window.end) == (101, 111)
    for ended in (100.5, 101.5, 110.5, 111.5):
        window.add(ended - 0.25, ended, 3)
    result = window.result("append", 1000, 3)
    assert (result.records, result.records_per_s, result.mb_per_s) == (6, 0.6, 0.0006)
    assert result.p50_ms == result.p99_ms == pytest.approx(250)


def test_a_chart_has_a_block_per_slice() -> None:
    assert charts.sparkline([0.0, None, 50.0, 100.0]) == "▁ ▅█"
    result = Result("append", 128, 1, 10, 1.0, 1.0, 2.0, 4.0, 8.0, 16.0, (Slice(10.0, 4.0),) * 3)
    shown = "\n".join(charts.lines(result))
    assert "records/s  ███  10 to 10" in shown
    assert "p99.9" in shown
    assert "16.00 ms" in shown


def test_the_disk_is_measured(tmp_path: Path) -> None:
    assert fdatasync_ms(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []
