"""The copyset protocol under everything that may happen to it: pure, so thousands of seeds."""

from __future__ import annotations

import pytest
from copyset_judge import Violation
from copyset_world import CopysetWorld

from loomlog.core.copyset.effects import GapKind
from loomlog.errors import LoomError

CHUNKS = 8
SEEDS_PER_CHUNK = 100


def run(seed: int, *, disaster: bool = False) -> CopysetWorld:
    world = CopysetWorld(seed, disaster=disaster)
    try:
        world.run()
    except (Violation, LoomError) as violation:
        violation.add_note(f"seed {seed}, disaster: {disaster}")
        raise
    return world


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_what_was_acknowledged_is_read_for_ever(chunk: int) -> None:
    worlds = [run(seed) for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)]
    assert sum(len(world.judge.acknowledged) for world in worlds) > 5 * SEEDS_PER_CHUNK
    assert sum(world.recoveries for world in worlds) > 5 * SEEDS_PER_CHUNK
    assert sum(world.judge.holes for world in worlds) > 3 * SEEDS_PER_CHUNK
    assert sum(world.purges for world in worlds) > SEEDS_PER_CHUNK / 3


@pytest.mark.parametrize("chunk", range(1))
def test_when_r_nodes_are_gone_what_was_lost_shows_as_lost_and_nothing_else(chunk: int) -> None:
    seeds = range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)
    worlds = [run(seed, disaster=True) for seed in seeds]
    assert sum(len(world.judge.acknowledged) for world in worlds) > 5 * SEEDS_PER_CHUNK
    losses = [gap for w in worlds for gap in w.judge.gaps if gap.kind is GapKind.DATALOSS]
    assert len(losses) > SEEDS_PER_CHUNK / 4
    assert sum(len(world.judge.doubtful) for world in worlds) > SEEDS_PER_CHUNK / 4


def test_a_trim_during_recovery_hides_no_record() -> None:
    """It came between the seal and the digest, and a bridge covered what was being trimmed."""
    run(1398, disaster=True)
