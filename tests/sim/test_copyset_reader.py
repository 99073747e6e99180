"""A reader of `copyset` logs on nodes to which everything happens: pure, so hundreds of seeds."""

from __future__ import annotations

import pytest
from copyset_reading import Dangers, ReadingWorld
from copyset_written import NODES

from loomlog.core.copyset.reader_words import Deliver, Gap, GapKind

CHUNKS = 4
SEEDS_PER_CHUNK = 100


def run(seed: int, dangers: Dangers | None = None) -> ReadingWorld:
    world = ReadingWorld(seed, dangers)
    try:
        world.run()
    except AssertionError as violation:
        violation.add_note(f"seed {seed}")
        raise
    return world


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_what_was_written_is_delivered_in_order_and_gaps_are_what_they_say(chunk: int) -> None:
    worlds = [run(seed) for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)]
    seen = [seen for world in worlds for seen in world.seen]
    kinds = {seen.kind for seen in seen if isinstance(seen, Gap)}
    assert kinds == set(GapKind)
    assert sum(isinstance(seen, Deliver) for seen in seen) > 5 * SEEDS_PER_CHUNK


def test_a_node_that_is_away_costs_a_grace_and_no_more() -> None:
    """Nobody has to notice that it is: whether its connection fails or it is just silent."""
    tried = 0
    for seed in range(150):
        world = ReadingWorld(seed, Dangers(0, 0, 0, 0, 0))
        if any(metadata.replication == 1 for metadata in world.log.history):
            continue
        tried += 1
        world.consumer_s = [0]
        world.slowness_s = dict.fromkeys(NODES, 0.002)
        world.down = {world.pick.choice(NODES)}
        world.release_all()
        world.run()
        assert world.now < 0.4, f"seed {seed}"
        assert not any(
            isinstance(seen, Gap) and seen.kind is GapKind.DATALOSS for seen in world.seen
        )
    assert tried > 30
