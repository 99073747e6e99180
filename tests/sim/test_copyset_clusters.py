"""Logs of protocol `copyset` on the whole system: real servers and clients, switched to and from
other protocols, while servers fail."""

from __future__ import annotations

import pytest
from run_seeds import Choice, run_seed
from seed_chunks import chunks

CHUNKS = 6
SEEDS_PER_CHUNK = 4


def run(seed: int) -> str | None:
    outcome = run_seed(Choice(seed, workload="copysets"))
    return f"{outcome.choice.replay}\n{outcome.error}" if outcome.error is not None else None


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_copyset_logs_under_faults(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        error = run(seed)
        assert error is None, error


@pytest.mark.parametrize(
    "seed",
    [
        23,  # a segment began at a position that is no LSN, and readers did not pass it
        33,  # what was taken before a segment was closed was appended again behind it
        54,  # the bridge at the end of a segment covered entries of the next one
        910039,  # a node whose clock was ahead took copies that mattered for too old to look at
        500042,  # a node said that its copies were lost, which were just about to be made
        7225,  # a node named who leads the metadata as who sequences
        60060,  # nobody knew where an epoch had been that was trimmed, and a node wanted to purge
    ],
)
def test_what_went_wrong_once(seed: int) -> None:
    error = run(seed)
    assert error is None, error
