"""What sequencers and storage nodes of `copyset` write when much goes wrong."""

from __future__ import annotations

from collections import Counter

import pytest
from copyset_judge import Violation
from copyset_world import CopysetWorld

from loomlog.core.copyset.effects import Acknowledge, LeaveOpen, Reject

CHUNKS = 4
SEEDS_PER_CHUNK = 50
FIRST_SEED = 10_000


def run(seed: int) -> CopysetWorld:
    world = CopysetWorld(seed)
    try:
        world.run()
    except Violation as violation:
        violation.add_note(f"seed {seed}")
        raise
    return world


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_what_is_acknowledged_is_stored_and_shown(chunk: int) -> None:
    first = FIRST_SEED + chunk * SEEDS_PER_CHUNK
    worlds = [run(seed) for seed in range(first, first + SEEDS_PER_CHUNK)]
    outcomes = Counter(type(end) for world in worlds for end in world.judge.outcomes.values())
    assert outcomes[Acknowledge] > 4 * SEEDS_PER_CHUNK
    assert outcomes[LeaveOpen] > 2 * SEEDS_PER_CHUNK
    assert outcomes[Reject] > 4 * SEEDS_PER_CHUNK
    records = [record for world in worlds for record in world.judge.acknowledged.values()]
    assert sum(record.wave > 1 for record in records) > SEEDS_PER_CHUNK
    assert sum(world.judge.delivered for world in worlds) > 10 * SEEDS_PER_CHUNK
