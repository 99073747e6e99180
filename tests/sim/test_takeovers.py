"""Three metadata repositories under faults, from one seed each: whoever leads, nothing acknowledged
is lost, doubled or moved, and everything heals.

test_replaced_leaders.py tells what replaced leaders may still do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
from other_process import fingerprints
from run_seeds import Choice, run_seed
from seed_chunks import chunks

from loomlog.core.quorum.member import Configuration, MemberId

CHUNKS = 100
SEEDS_PER_CHUNK = 10


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=6))
def test_takeover_after_takeover(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        outcome = run_seed(Choice(seed, "takeovers"))
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


def test_the_same_seed_is_the_same_run_whatever_the_hash_seed() -> None:
    first = fingerprints("takeovers", (1, 2), hash_seed=1)
    assert first == fingerprints("takeovers", (1, 2), hash_seed=2)


def test_a_leader_that_trusts_a_lagging_minority_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader takes over with the records of one member, and decides with one answer."""

    def anybody(self: Configuration, agreeing: Collection[MemberId]) -> bool:
        return bool(agreeing)

    def furthest(self: Configuration, reached: Mapping[MemberId, int]) -> int:
        return max(reached.values(), default=0)

    monkeypatch.setattr(Configuration, "has_majority", anybody)
    monkeypatch.setattr(Configuration, "agreed", furthest)
    outcomes = (run_seed(Choice(seed, "takeovers", "none")) for seed in range(40))
    assert any(outcome.error is not None for outcome in outcomes)
