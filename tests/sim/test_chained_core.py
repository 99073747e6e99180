"""The chained protocol under everything that may happen to it: pure, so thousands of seeds."""

from __future__ import annotations

import pytest
from chained_world import ChainedWorld
from seed_chunks import chunks
from violation import Violation, run_world

from loomlog.core.chained import reconfigure

CHUNKS = 8
SEEDS_PER_CHUNK = 150
MOVING = 150


class MovingWorld(ChainedWorld):
    """Replicas also move to other volumes of their nodes."""

    moves = 0

    def _reconfigure(self) -> None:
        moved = self.random.choice(self.random.choice(self.projection.chains))
        joining = {(r.node_id, r.chain) for r in self.records.record.joining}
        if self.random.random() < 0.5 and (moved.node_id, moved.chain) not in joining:
            repository = self.random.choice(self.repositories)
            self._call(repository, repository.join(moved.chain, moved.node_id))
        else:
            super()._reconfigure()

    def _check_replicas(self) -> None:
        super()._check_replicas()
        left = {(r.node_id, r.chain) for r in self.records.record.dropping}
        for chain in self.projection.chains:
            nodes = [replica.node_id for replica in chain]
            if len({*nodes}) < len(nodes):
                raise Violation(f"a node has two replicas of {chain}")
            self.moves += any((r.node_id, r.chain) in left for r in chain)


def run(seed: int, kind: type[ChainedWorld] = ChainedWorld) -> ChainedWorld:
    return run_world(kind, seed)


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=3))
def test_what_was_acknowledged_stays_where_it_is(chunk: int) -> None:
    worlds = [run(seed) for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)]
    assert sum(len(world.judge.acknowledged) for world in worlds) > 3 * SEEDS_PER_CHUNK
    assert sum(world.reconfigurations for world in worlds) > 3 * SEEDS_PER_CHUNK
    assert sum(world.judge.junk for world in worlds) > SEEDS_PER_CHUNK
    assert sum(any(world.projection.lost) for world in worlds) > 0  # chains began again


def test_the_same_holds_when_replicas_move_within_their_nodes() -> None:
    worlds = [run(seed, MovingWorld) for seed in range(MOVING)]
    assert sum(world.moves for world in worlds if isinstance(world, MovingWorld)) > MOVING
    assert sum(len(world.judge.acknowledged) for world in worlds) > 3 * MOVING


def test_a_node_must_not_have_two_replicas_of_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    staying = reconfigure._staying
    monkeypatch.setattr(
        reconfigure,
        "_staying",
        lambda chain, seals, goal: staying(chain, seals, goal._replace(newcomer=None)),
    )
    with pytest.raises(Violation, match="a node has two replicas"):
        [run(seed, MovingWorld) for seed in range(MOVING)]
