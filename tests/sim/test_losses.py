"""Whole clusters whose nodes lose their disks, or come back with older copies of them."""

from __future__ import annotations

import pytest
from run_seeds import Choice, Outcome, run_seed

from loomlog.metadata.nodes.registration import Registration

SEEDS = 15
REGRESSIONS = (34, 1050)  # a stream that lost its end kept readers of others waiting


def run(seed: int) -> Outcome:
    return run_seed(Choice(seed, "losses", "none"))


def test_what_was_acknowledged_is_read_or_said_to_be_lost() -> None:
    for seed in (*range(SEEDS), *REGRESSIONS):
        outcome = run(seed)
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


def test_the_judge_notices_older_copies_that_nobody_recognises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Registration, "_older_shards", lambda self, request: ())
    errors = (run(seed).error or "" for seed in range(470, 535))
    assert any("was acknowledged, is not lost" in error for error in errors)
