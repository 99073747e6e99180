"""The quorum round log under everything that may happen to it: pure, so thousands of seeds."""

from __future__ import annotations

from functools import partial

import pytest
from quorum_world import QuorumWorld
from seed_chunks import chunks
from violation import run_world

CHUNKS = 8
SEEDS_PER_CHUNK = 150


def run(seed: int, *, disks_get_lost: bool = False) -> QuorumWorld:
    return run_world(partial(QuorumWorld, disks_get_lost=disks_get_lost), seed)


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=3))
def test_what_was_acknowledged_stays_where_it_is(chunk: int) -> None:
    worlds = [run(seed) for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)]
    assert sum(world.acknowledgements for world in worlds) > 5 * SEEDS_PER_CHUNK
    assert sum(world.takeovers for world in worlds) > 2 * SEEDS_PER_CHUNK


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=3))
def test_a_member_that_loses_its_disk_takes_nothing_along(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        run(seed, disks_get_lost=True)
