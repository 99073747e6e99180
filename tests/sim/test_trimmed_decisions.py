"""Decisions that are trimmed by themselves, under faults; and rules that, broken, must be found."""

from __future__ import annotations

from typing import Any

import pytest
from run_seeds import Choice, run_seed
from seed_chunks import chunks

from loomlog.client.log_parts import LogParts
from loomlog.metadata.chained.keeper import ChainedKeeper

CHUNKS = 100
SEEDS_PER_CHUNK = 3


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_no_decision_is_trimmed_that_an_entry_needs(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        outcome = run_seed(Choice(seed, workload="decisions"))
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


# ---- negative controls; tests/unit/core/test_needed_decisions.py has others


def is_found(first: int = 0, seeds: int = 40) -> bool:
    choices = (Choice(seed, workload="decisions") for seed in range(first, first + seeds))
    errors = (run_seed(choice).error for choice in choices)
    return any(error is not None and "was acknowledged at" in error for error in errors)


def test_logs_that_are_not_enlisted_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgets(self: LogParts) -> None:
        pass

    monkeypatch.setattr(LogParts, "enlist", forgets)
    assert is_found()


def test_cells_that_are_marked_before_they_are_decided_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def undecided(self: ChainedKeeper, log: Any, segment: Any) -> int:
        return self.known_tail(log, segment)

    monkeypatch.setattr(ChainedKeeper, "settle", undecided)
    assert is_found(first=99)
