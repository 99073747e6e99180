"""Chains that become short: replicas that are missing, nodes that stop and return in any order."""

from __future__ import annotations

import pytest
from chained_short_world import ShortWorld, StoppedWorld
from seed_chunks import chunks
from violation import run_world

CHUNKS = 44
SEEDS_PER_CHUNK = 50
STOPPED_PER_CHUNK = 8


def run(seed: int, kind: type[ShortWorld] = ShortWorld) -> ShortWorld:
    return run_world(kind, seed)


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_short_chains_keep_what_was_acknowledged(chunk: int) -> None:
    worlds = [run(seed) for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)]
    assert sum(len(world.judge.acknowledged) for world in worlds) > 3 * SEEDS_PER_CHUNK
    assert sum(world.removed for world in worlds) > SEEDS_PER_CHUNK
    assert sum(world.begun_again for world in worlds) > SEEDS_PER_CHUNK // 10


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_logs_are_well_without_the_node_that_stopped_last(chunk: int) -> None:
    for seed in range(chunk * STOPPED_PER_CHUNK, (chunk + 1) * STOPPED_PER_CHUNK):
        run(seed, StoppedWorld)
