"""Metadata that goes back in time between two lives of its repository, from one seed each. With any
protocol, no append is acknowledged with it, and no entry is lost once it is up to date again."""

from __future__ import annotations

import pytest
from run_seeds import Choice, run_seed

from loomlog.core.history import History

SEEDS = 10


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_done_with_older_metadata(seed: int) -> None:
    outcome = run_seed(Choice(seed, "rollbacks"))
    assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


def test_nodes_that_do_not_compare_runs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(History, "contradiction", lambda *_: "")
    outcomes = (run_seed(Choice(seed, "rollbacks", "none")) for seed in range(5))
    assert any(outcome.error is not None for outcome in outcomes)
