"""The table and the chart of measure_peers.py have every system and every figure. Nothing is
measured: other systems are installed by `make bench-peers` only."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.delitem(sys.modules, "measure_peers", raising=False)


def test_medians_of_all_rounds_are_shown() -> None:
    import measure_peers
    from measure_peers import Figure

    figures = [Figure("loomlog", "p50 ms", value, False) for value in (1.0, 9.0, 2.0)]
    figures += [Figure("other", "p50 ms", 3.0, False), Figure("other", "records/s", 12345.6, True)]
    text = measure_peers.table(figures, {"loomlog": "synced", "other": "not synced"})
    assert text.splitlines()[0] == "| | loomlog | other |"
    assert "| settings | synced | not synced |" in text
    assert "| p50 ms | 2.00 | 3.00 |" in text
    assert "| records/s |  | 12,346 |" in text
    svg = measure_peers.chart(figures)
    assert "p50 ms (less is better)" in svg
    assert "records/s (more is better)" in svg
    assert svg.count("<rect") == 3
