"""Two reports of `loom bench` are compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from loomlog.cli.bench import comparison
from loomlog.cli.bench.measurements import Result, Slice
from loomlog.cli.bench.reports import result_fields


def test_reports_are_compared_and_noise_is_not_a_difference(tmp_path: Path) -> None:
    steady = Result(
        "append", 128, 1, 1000, 10.0, 2.0, 2.5, 3.0, 4.0, 9.0, (Slice(100.0, 3.0),) * 20
    )
    shaky = replace(steady, scenario="read", over_time=(Slice(10.0, 3.0), Slice(190.0, 3.0)) * 10)
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    faster = [replace(steady, records=1500, p99_ms=9.0), replace(shaky, records=1300)]
    for path, results in ((before, [steady, shaky]), (after, faster)):
        path.write_text(json.dumps({"results": [*map(result_fields, results)]}))
    lines = comparison.compare(before, after, 0.1).lines
    verdicts = {(line.scenario, line.figure): line.verdict for line in lines}
    assert verdicts == {
        ("append", "records/s"): "better",
        ("append", "p50 ms"): "",
        ("append", "p99 ms"): "worse",
        ("read", "records/s"): "",  # 1.3 times, but it was shakier than that
        ("read", "p50 ms"): "",
        ("read", "p99 ms"): "",
    }
    for path, count in ((before, 0), (after, 5)):
        stalled = result_fields(replace(steady, records=count))
        path.write_text(json.dumps({"results": [stalled]}))
    assert [
        line["ratio"] for line in comparison.compare(before, before, 0.1).fields()["lines"]
    ] == [*(1.0, 1.0, 1.0)]
    assert comparison.compare(before, after, 0.1).fields()["lines"][0]["ratio"] is None
