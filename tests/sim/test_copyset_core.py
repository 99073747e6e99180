"""The copyset protocol under everything that may happen to it: pure, so thousands of seeds."""

from __future__ import annotations

import pytest
from copyset_judge import Violation
from copyset_world import World

from loomlog.errors import LoomError

CHUNKS = 8
SEEDS_PER_CHUNK = 150


def run(seed: int) -> World:
    world = World(seed)
    try:
        world.run()
    except (Violation, LoomError) as violation:
        violation.add_note(f"seed {seed}")
        raise
    return world


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_what_was_acknowledged_is_read_for_ever(chunk: int) -> None:
    worlds = [run(seed) for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)]
    assert sum(len(world.judge.acknowledged) for world in worlds) > 10 * SEEDS_PER_CHUNK
    assert sum(world.recoveries for world in worlds) > 3 * SEEDS_PER_CHUNK
    assert sum(world.judge.holes for world in worlds) > 2 * SEEDS_PER_CHUNK
    assert sum(world.purges for world in worlds) > SEEDS_PER_CHUNK / 3
