"""Progress of a pipeline that runs, for people."""

from __future__ import annotations

import pytest
from poll import wait_until
from rich.console import Console

from loomlog.cli.console import pipeline_output
from loomlog.cli.console.pipeline_output import RunOutput, print_pipelines
from loomlog.spark.pipelines.status import PipelineStatus, SourceStatus
from loomlog.spark.pipelines.units import Counters, Progress, Unit, UnitRange

INSTANT_S = 0.001
AGES_S = 3600.0


class Said(RunOutput):
    """Keeps what it would print."""

    def __init__(self) -> None:
        super().__init__("counts", as_json=False)
        self.lines: list[str] = []

    def said(self, text: str) -> None:
        self.lines.append(text)


def test_a_first_unit_that_takes_its_time_is_no_silence() -> None:
    output = Said()
    with output.signs_of_life(INSTANT_S):
        wait_until(lambda: len(output.lines) >= 2)
    assert output.lines[:2] == [
        "no unit is committed after 0.001 s; still running",
        "no unit is committed after 0.003 s; still running",
    ]


@pytest.mark.parametrize("commits", [True, False])
def test_signs_end_with_the_first_unit_or_with_the_run(commits: bool) -> None:
    output = Said()
    with output.signs_of_life(AGES_S):
        if commits:
            output.committed(Unit(1, {"access": UnitRange(1, 30)}), Progress({}, {"access": 30}))
    expected = ["unit 1 committed: access 1 to 30"] if commits else []
    assert output.lines == expected


def test_the_table_of_pipelines_fits_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipeline_output, "console", lambda: Console(width=80))
    sources = tuple(SourceStatus(log, 30_000, 30_000, 0, 0.0) for log in ("clicks", "impressions"))
    output = "parquet access-counts.table"
    place = ("running", "site-1", 1, output, 3)
    counted = Counters(units=1_234, records=56)
    print_pipelines([PipelineStatus("access-counts", *place, sources, None, counted, 0.0, "")])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    row = ["access-counts", "running", "site-1", "clicks", "30,000", "0", "records", "1,234", "0"]
    assert row in lines
    assert ["impressions", "30,000", "0.0", "s"] in lines
