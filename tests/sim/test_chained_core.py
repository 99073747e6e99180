"""The chained protocol under everything that may happen to it: pure, so thousands of seeds."""

from __future__ import annotations

import pytest
from chained_world import ChainedWorld
from seed_chunks import chunks
from violation import Violation

from loomlog.errors import LoomError

CHUNKS = 8
SEEDS_PER_CHUNK = 150


def run(seed: int) -> ChainedWorld:
    world = ChainedWorld(seed)
    try:
        world.run()
    except (Violation, LoomError) as violation:
        violation.add_note(f"seed {seed}")
        raise
    return world


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=3))
def test_what_was_acknowledged_stays_where_it_is(chunk: int) -> None:
    worlds = [run(seed) for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)]
    assert sum(len(world.judge.acknowledged) for world in worlds) > 3 * SEEDS_PER_CHUNK
    assert sum(world.reconfigurations for world in worlds) > 3 * SEEDS_PER_CHUNK
    assert sum(world.judge.junk for world in worlds) > SEEDS_PER_CHUNK
    assert sum(any(world.projection.lost) for world in worlds) > 0  # chains began again
