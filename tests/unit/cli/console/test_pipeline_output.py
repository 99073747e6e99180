"""Progress of a pipeline that runs, for people."""

from __future__ import annotations

import pytest
from poll import wait_until

from loomlog.cli.console.pipeline_output import RunOutput
from loomlog.spark.pipelines.units import Progress, Unit, UnitRange

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
