"""Three metadata repositories under faults, from one seed each. Acknowledged entries are not lost,
duplicated or moved, whichever repository leads, and everything heals.

test_replaced_leaders.py tells what replaced leaders may still do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from other_process import fingerprints
from run_seeds import Choice, run_seed
from seed_chunks import chunks
from sim_cluster import Shape, SimCluster

from loomlog.core.quorum.member import Configuration, MemberId
from loomlog.testing.sim import Simulation

CHUNKS = 100
SEEDS_PER_CHUNK = 10
START_SEEDS = 10
START_S = 3.0


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_takeover_after_takeover(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        outcome = run_seed(Choice(seed, "takeovers"))
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


def test_a_log_is_created_while_repositories_start() -> None:
    """Two of them missed the leader before it could answer, and took over from it."""
    outcome = run_seed(Choice(76, "takeovers"))
    assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


@pytest.mark.parametrize("slowness", [1.0, 10.0, 50.0])
def test_repositories_that_start_together_take_over_once(slowness: float) -> None:
    """A new leader is not missed before it could answer once, however slow the network is, as long
    as its answers come within the time that it may be silent."""
    for seed in range(START_SEEDS):
        with Simulation(seed) as sim:
            shape = replace(
                Shape.draw(sim.world.random, power_losses=False), metadata=3, leader_silence_s=0.3
            )
            servers = SimCluster(sim, shape)
            servers.slow_down(slowness, 1.0)
            servers.start()
            sim.run(START_S)
            terms = [r.term for r in servers.repositories.values() if r.term is not None]
            assert [term.leader.epoch for term in terms] == [1], f"seed {seed}"


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
    outcomes = (run_seed(Choice(seed, "takeovers", "none")) for seed in range(4, 44))
    assert any(outcome.error is not None for outcome in outcomes)
