"""The copyset protocol under everything that may happen to it: pure, so thousands of seeds.

A world has sequencers, nodes, recoveries and readers, and one judge watches all of them, so every
seed is a test of each. That enough of everything happened is checked, too."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from copyset_world import CopysetWorld
from seed_chunks import chunks
from violation import run_world

from loomlog.core.copyset.effects import Acknowledge, GapKind, LeaveOpen, Reject
from loomlog.core.copyset.nodeset import index_of

CHUNKS = 8
SEEDS_PER_CHUNK = 130
SHORT_CHUNKS = 4
SHORT_PER_CHUNK = 100
DISASTER_CHUNKS = 4
DISASTERS_PER_CHUNK = 100
SHARD_CHUNKS = 4
SHARDED_PER_CHUNK = 40


def run(seed: int, *, disaster: bool = False, shards: int = 1, short: bool = False) -> CopysetWorld:
    return run_world(partial(CopysetWorld, disaster=disaster, shards=shards, short=short), seed)


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_what_was_acknowledged_is_read_for_ever(chunk: int) -> None:
    count = SEEDS_PER_CHUNK
    worlds = [run(seed) for seed in range(chunk * count, (chunk + 1) * count)]
    assert sum(world.recoveries for world in worlds) > 5 * count
    assert sum(world.judge.holes for world in worlds) > 3 * count
    assert sum(world.purges for world in worlds) > count / 3
    check_writes(worlds)
    check_readers(worlds)


@pytest.mark.parametrize("chunk", chunks(DISASTER_CHUNKS, quick=1))
def test_when_r_nodes_are_gone_what_was_lost_shows_as_lost_and_nothing_else(chunk: int) -> None:
    count = DISASTERS_PER_CHUNK
    worlds = [run(seed, disaster=True) for seed in range(chunk * count, (chunk + 1) * count)]
    gaps = Counter(gap.kind for world in worlds for gap in world.judge.gaps)
    assert set(gaps) == set(GapKind)
    assert gaps[GapKind.DATALOSS] > count / 4
    assert sum(len(world.judge.doubtful) for world in worlds) > count / 4
    check_writes(worlds)
    check_readers(worlds)


@pytest.mark.parametrize("chunk", chunks(SHORT_CHUNKS, quick=1))
def test_what_fewer_copies_than_wanted_have_is_read_too(chunk: int) -> None:
    count = SHORT_PER_CHUNK
    seeds = range(chunk * count, (chunk + 1) * count)
    worlds = [
        run(seed, short=True, disaster=seed % 4 == 3, shards=1 + (seed % 5 == 4)) for seed in seeds
    ]
    pairs = [(world, r) for world in worlds for r in world.judge.acknowledged.values()]
    assert sum(len(r.copyset) < world.replication for world, r in pairs) > count / 4
    assert sum(world.completed for world in worlds) > count / 4
    assert sum(world.recoveries for world in worlds) > 5 * count
    check_readers(worlds)


@pytest.mark.parametrize("chunk", chunks(SHARD_CHUNKS, quick=1))
def test_nodes_with_several_shards_may_lose_them_all_at_once(chunk: int) -> None:
    count = SHARDED_PER_CHUNK
    seeds = range(chunk * count, (chunk + 1) * count)
    worlds = [run(seed, shards=2 + seed % 2) for seed in seeds]
    worlds += [run(seed, shards=2, disaster=True) for seed in seeds[: count // 3]]
    assert sum(world.recoveries for world in worlds) > 4 * count
    records = [record for world in worlds for record in world.judge.acknowledged.values()]
    assert len(records) > 5 * count
    assert sum(any(map(index_of, record.copyset)) for record in records) > len(records) / 2


def check_writes(worlds: list[CopysetWorld]) -> None:
    """Check that appends ended in every way, and that records were stored in a later wave."""
    count = len(worlds)
    outcomes = Counter(type(end) for world in worlds for end in world.judge.outcomes.values())
    assert outcomes[Acknowledge] > 10 * count
    assert outcomes[LeaveOpen] > 2 * count
    assert outcomes[Reject] > 4 * count
    records = [record for world in worlds for record in world.judge.acknowledged.values()]
    assert sum(record.wave > 1 for record in records) > count
    assert sum(world.judge.delivered for world in worlds) > 10 * count


def check_readers(worlds: list[CopysetWorld]) -> None:
    count = len(worlds)
    assert sum(world.judge.deliveries for world in worlds) > 10 * count
    assert sum(world.store.state.closed for world in worlds) > count / 4


def test_a_node_that_is_away_costs_a_grace_and_no_more() -> None:
    """This holds whether its connection fails or it is only silent."""
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
