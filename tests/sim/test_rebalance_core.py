"""Plans of `loom rebalance` are carried out move by move, while nodes come and go and operators
stop in the middle: every set of replicas stays whole, and the load is never less even."""

from __future__ import annotations

from random import Random

import pytest

from loomlog.core import rebalance
from loomlog.core.rebalance import Move, ReplicaGroup, imbalance, plan_moves

GIB = 1 << 30


class World:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.nodes = list(range(1, random.randint(4, 9)))
        racks = random.choice((1, 2, 3))
        self.locations = {node: f"rack {node % racks}" for node in range(1, 20)}
        self.groups = [
            ReplicaGroup(
                number,
                part,
                tuple(random.sample(self.nodes, random.randint(1, 3))),
                random.choice((0, random.randrange(GIB), random.randrange(50 * GIB))),
            )
            for number in range(1, random.randint(3, 30))
            for part in range(random.randint(1, 2))
        ]
        self.moved = 0

    def run(self) -> None:
        for _ in range(4):
            self.change_nodes()
            self.rebalance(crashes=True)
        self.rebalance(crashes=False)
        assert not plan_moves(self.groups, self.nodes, self.locations).moves, "it never ends"

    def change_nodes(self) -> None:
        """Start or drain a node; what is on a drained one does not count, and does not move."""
        if self.random.random() < 0.6:
            self.nodes.append(max(self.nodes) + 1)
        elif len(self.nodes) > 3:
            self.nodes.remove(self.random.choice(self.nodes))

    def rebalance(self, *, crashes: bool) -> None:
        plan = plan_moves(self.groups, self.nodes, self.locations)
        before = self.imbalance
        assert before == pytest.approx(imbalance(plan.before.values()))
        for move in plan.moves:
            if crashes and self.random.random() < 0.1:
                break  # the rest is forgotten
            if crashes and self.random.random() < 0.1:
                continue  # it is refused, such as by a full node
            self.carry_out(move, is_whole=not crashes)
            self.check(move)
        else:
            if not crashes:
                assert self.imbalance == pytest.approx(imbalance(plan.after.values()))
        if not crashes:
            assert self.imbalance <= before + 1e-9, "it is less even than before"

    def carry_out(self, move: Move, *, is_whole: bool) -> None:
        """Move a replica, unless that is refused: an earlier move of the set was left out."""
        key = (move.stream_id, move.part)
        index = next(i for i, g in enumerate(self.groups) if (g.stream_id, g.part) == key)
        nodes = self.groups[index].nodes
        is_possible = move.origin in nodes and move.target not in nodes
        assert is_possible or not is_whole, "a move that cannot be made"
        if is_possible:
            after = tuple(move.target if node == move.origin else node for node in nodes)
            self.groups[index] = self.groups[index]._replace(nodes=after)
            assert len(set(after)) == len(nodes), "two replicas on one node"
            self.moved += 1

    def check(self, move: Move) -> None:
        assert move.target in self.nodes, "a move to a node that is not usable"
        assert move.origin in self.nodes, "a move from a node that is drained already"

    @property
    def imbalance(self) -> float:
        return imbalance(plan_moves(self.groups, self.nodes, self.locations, 0).before.values())


def explore(seeds: int) -> int:
    worlds = [World(seed) for seed in range(seeds)]
    for world in worlds:
        world.run()
    return sum(world.moved for world in worlds)


def test_every_set_stays_whole_and_the_load_gets_even() -> None:
    assert explore(200) > 1000


def test_moves_onto_a_node_that_has_a_replica_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance._Work, "_may_move", lambda *_: True)
    with pytest.raises(AssertionError, match="a move that cannot be made"):
        explore(200)
