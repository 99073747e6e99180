"""A reader of `copyset` logs on nodes to which everything happens: pure, so hundreds of seeds."""

from __future__ import annotations

import pytest
from copyset_reading import Dangers, ReadingWorld

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
