"""`loom bench spark` works and its JSON has the shape that programs rely on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # it starts Spark anew for each measurement


def test_reading_copying_and_ages_are_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loomlog.cli.loom", "bench", "spark", "--rows", "5000"]
    command += ["--seconds", "0.5", "--sync", "none", "--data", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["rows"] == 5000
    assert len(report["log_s"]) == len(report["parquet_s"]) == 3
    for rate in ("log_rows_per_s", "parquet_rows_per_s", "log_to_parquet", "copy_rows_per_s"):
        assert report[rate] > 0, rate
    assert report["age_rows"] == 5000
    assert 0 < report["age_p50_ms"] <= report["age_p95_ms"] <= report["age_max_ms"]
    assert list(tmp_path.iterdir()) == []
