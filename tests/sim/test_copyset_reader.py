"""Readers of `copyset` logs on nodes to which everything happens: pure, so hundreds of seeds."""

from __future__ import annotations

import pytest
from copyset_judge import Violation
from copyset_world import CopysetWorld

from loomlog.core.copyset.effects import GapKind

CHUNKS = 4
SEEDS_PER_CHUNK = 50
FIRST_SEED = 20_000


def run(seed: int) -> CopysetWorld:
    world = CopysetWorld(seed, disaster=True)
    try:
        world.run()
    except Violation as violation:
        violation.add_note(f"seed {seed}")
        raise
    return world


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_what_was_written_is_delivered_in_order_and_gaps_are_what_they_say(chunk: int) -> None:
    first = FIRST_SEED + chunk * SEEDS_PER_CHUNK
    worlds = [run(seed) for seed in range(first, first + SEEDS_PER_CHUNK)]
    kinds = {gap.kind for world in worlds for gap in world.judge.gaps}
    assert kinds == set(GapKind)
    assert sum(world.judge.deliveries for world in worlds) > 10 * SEEDS_PER_CHUNK
    assert sum(world.store.state.closed for world in worlds) > SEEDS_PER_CHUNK / 4


def test_a_node_that_is_away_costs_a_grace_and_no_more() -> None:
    """Nobody has to notice that it is: whether its connection fails or it is just silent."""
    tried = 0
    for seed in range(100):
        world = CopysetWorld(seed)
        if world.replication == 1:
            continue
        tried += 1
        world.write(appends=20)
        world.crash(world.random.choice([*world.nodes.values()]))
        world.silent = world.random.random() < 0.5
        took_s = world.read_all(pace_s=0.001)
        assert took_s < 0.4, f"seed {seed}"
    assert tried > 30
