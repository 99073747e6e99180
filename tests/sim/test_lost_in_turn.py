"""Simulated clusters whose nodes lose their disks one after the other: the status says what readers
cannot read."""

from __future__ import annotations

import pytest
from run_seeds import Choice, run_seed
from seed_chunks import chunks

from loomlog.core.copyset import conditions
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED

CHUNKS = 3
SEEDS_PER_CHUNK = 4
WORKLOADS = {
    ORDERED: "lost-in-turn",
    CHAINED: "lost-in-turn-chained",
    COPYSET: "lost-in-turn-copyset",
}


def run(seed: int, protocol: str) -> str | None:
    outcome = run_seed(Choice(seed, WORKLOADS[protocol], "none"))
    return f"{outcome.choice.replay}\n{outcome.error}" if outcome.error is not None else None


@pytest.mark.parametrize("protocol", WORKLOADS)
@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_the_status_says_what_is_lost(chunk: int, protocol: str) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        error = run(seed, protocol)
        assert error is None, error


def test_the_judge_notices_a_loss_that_the_status_does_not_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conditions, "losses", lambda *_: [])
    errors = (run(seed, COPYSET) or "" for seed in range(20))
    assert any("the status does not say so" in error for error in errors)
