"""Rebuilding under everything that may happen to it. Enough of everything happens in a thousand
seeds, which is checked, too."""

from __future__ import annotations

from functools import partial

import pytest
from rebuild_world import RebuildWorld
from seed_chunks import chunks
from violation import run_world

CHUNKS = 5
SEEDS_PER_CHUNK = 200
DISASTERS = 150
LATE = 90
PARTLY = 150


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


def test_messages_may_arrive_long_after_they_were_sent() -> None:
    worlds = [run(seed, late=True) for seed in range(LATE)]
    assert sum(world.superseded for world in worlds) > LATE / 4


def test_what_waits_for_nodes_that_are_away_does_not_hold_up_the_rest() -> None:
    worlds = [run(seed, partly=True) for seed in range(PARTLY)]
    assert sum(world.rescans for world in worlds) > PARTLY / 10
    worlds = [run(seed, disaster=True, partly=True) for seed in range(PARTLY)]
    assert sum(world.left for world in worlds) > PARTLY / 30
    assert sum(world.rescans for world in worlds) > PARTLY / 10
    assert sum(world.rebuilds for world in worlds) > PARTLY


def test_a_refilled_shard_may_be_lost_again_before_anybody_knows() -> None:
    assert run(211354).refilled


def test_what_interrupted_donors_stored_may_be_all_that_is_left_of_a_record() -> None:
    assert run(301125, disaster=True).lossy


def test_a_copy_may_name_a_shard_that_is_not_drained_any_more() -> None:
    assert run(401165).aborts


def test_a_copy_that_was_away_may_name_a_shard_that_left_its_nodeset() -> None:
    assert run(308500, disaster=True).rebuilds


def run(
    seed: int, *, disaster: bool = False, late: bool = False, partly: bool = False
) -> RebuildWorld:
    return run_world(partial(RebuildWorld, disaster=disaster, late=late, partly=partly), seed)
