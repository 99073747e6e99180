"""Whole clusters whose `copyset` logs are rebuilt while nodes stop, lose their disks and return."""

from __future__ import annotations

import pytest
from run_seeds import Choice, Outcome, run_seed

from loomlog.metadata.copyset.keeper import CopysetKeeper

SEEDS = 3
CHUNKS = 20
SEEDS_PER_CHUNK = 50


def run(seed: int) -> Outcome:
    return run_seed(Choice(seed, "rebuilding"))


def test_nothing_is_lost_and_all_copies_are_made_again() -> None:
    for seed in range(1, SEEDS + 1):
        outcome = run(seed)
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_same_holds_for_many_clusters(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        outcome = run(seed)
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


def test_the_judge_notices_lost_copies_that_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopysetKeeper, "conditions", lambda self, log: [])
    monkeypatch.setattr(CopysetKeeper, "node_conditions", lambda self, node: [])
    assert any("is only on" in (run(seed).error or "") for seed in range(1, 12))
