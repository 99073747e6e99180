"""Rebuilding under everything that may happen to it. Enough of everything happens in a thousand
seeds, which is checked, too."""

from __future__ import annotations

import pytest
from rebuild_world import RebuildWorld
from seed_chunks import chunks
from violation import Violation

from loomlog.errors import LoomError

CHUNKS = 5
SEEDS_PER_CHUNK = 200
DISASTERS = 150


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_every_record_has_all_its_copies_again(chunk: int) -> None:
    count = SEEDS_PER_CHUNK
    worlds = [run(seed) for seed in range(chunk * count, (chunk + 1) * count)]
    assert sum(world.rebuilds for world in worlds) > count
    assert sum(world.restored for world in worlds) > 2 * count
    assert sum(world.judge.read_records for world in worlds) > 10 * count
    assert sum(world.aborts for world in worlds) > count / 10
    assert sum(world.superseded for world in worlds) > 10
    assert sum(world.widened for world in worlds) > count / 10
    assert sum(world.refilled for world in worlds) > count / 10


def test_only_what_has_no_copy_left_is_shown_as_lost() -> None:
    worlds = [run(seed, disaster=True) for seed in range(DISASTERS)]
    assert sum(len(world.judge.lost) for world in worlds) > DISASTERS / 3
    assert sum(world.rebuilds for world in worlds) > DISASTERS
    assert sum(world.judge.read_records for world in worlds) > 10 * DISASTERS


def run(seed: int, *, disaster: bool = False) -> RebuildWorld:
    world = RebuildWorld(seed, disaster=disaster)
    try:
        world.run()
    except (Violation, LoomError) as violation:
        violation.add_note(f"seed {seed}, disaster: {disaster}")
        raise
    return world
