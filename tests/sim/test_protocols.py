"""Logs of every protocol, switched from one to another while servers fail. The negative controls
break one rule of the client each."""

from __future__ import annotations

import pytest

from loomlog.testing.sim.run import Choice, run_seed

CHUNKS = 8
SEEDS_PER_CHUNK = 8


def run(seed: int) -> str | None:
    outcome = run_seed(Choice(seed, workload="protocols"))
    return f"{outcome.choice.replay}\n{outcome.error}" if outcome.error is not None else None


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_logs_of_every_protocol_under_faults(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        error = run(seed)
        assert error is None, error


@pytest.mark.parametrize(
    "seed",
    [
        99,  # a read met a trim of its whole segment, and took it for a hole
    ],
)
def test_what_went_wrong_once(seed: int) -> None:
    error = run(seed)
    assert error is None, error
