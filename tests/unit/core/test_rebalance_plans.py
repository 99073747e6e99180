"""Plans that spread replicas evenly over the nodes."""

from __future__ import annotations

import random

import pytest

from loomlog.core.placement import Placed, place
from loomlog.core.rebalance import (
    REPLICA_BYTES,
    Move,
    RebalancePlan,
    ReplicaGroup,
    imbalance,
    plan_moves,
)
from loomlog.types import NodeId

GIB = 1 << 30


def group(number: int, *nodes: NodeId, stored_bytes: int = 0) -> ReplicaGroup:
    return ReplicaGroup(number, 0, nodes, stored_bytes)


def carried_out(groups: list[ReplicaGroup], plan: RebalancePlan) -> list[ReplicaGroup]:
    """Return the groups after the moves, one at a time; each has to be possible then."""
    found = {each.stream_id: each for each in groups}
    for move in plan.moves:
        before = found[move.stream_id]
        assert move.origin in before.nodes
        assert move.target not in before.nodes
        nodes = tuple(move.target if n == move.origin else n for n in before.nodes)
        found[move.stream_id] = before._replace(nodes=nodes)
    return list(found.values())


def test_an_even_cluster_gets_no_plan() -> None:
    groups = [group(1, 1, 2), group(2, 2, 3), group(3, 3, 1)]
    plan = plan_moves(groups, {1, 2, 3}, {})
    assert plan.moves == ()
    assert imbalance(plan.before.values()) == 0


def test_a_move_that_gains_little_is_not_worth_a_copy() -> None:
    groups = [group(1, 1, stored_bytes=REPLICA_BYTES // 20), group(2, 1), group(3, 2)]
    assert plan_moves(groups, {1, 2}, {}).moves == (), "then node 2 would have almost as much more"
    groups[0] = group(1, 1, stored_bytes=REPLICA_BYTES)
    assert [move.stream_id for move in plan_moves(groups, {1, 2}, {}).moves] == [2]


def test_an_empty_cluster_gets_no_plan() -> None:
    assert plan_moves([], {1, 2}, {}).moves == ()
    assert plan_moves([], (), {}).moves == ()
    assert imbalance([]) == 0


def test_a_new_node_is_used() -> None:
    groups = [group(n, 1, 2, 3) for n in range(1, 9)]
    plan = plan_moves(groups, {1, 2, 3, 4}, {})
    assert [plan.after[node].replicas for node in (1, 2, 3, 4)] == [6, 6, 6, 6]
    assert all(move.target == 4 for move in plan.moves)
    assert len(plan.moves) == 6, "no more than needed"
    assert plan_moves(carried_out(groups, plan), {1, 2, 3, 4}, {}).moves == ()


def test_bytes_count_more_than_replicas() -> None:
    groups = [group(1, 1, stored_bytes=10 * GIB), group(2, 1, stored_bytes=10 * GIB), group(3, 2)]
    plan = plan_moves(groups, {1, 2}, {})
    assert len(plan.moves) == 1
    assert (plan.moves[0].origin, plan.moves[0].target) == (1, 2)
    assert plan.moves[0].stored_bytes == 10 * GIB


def test_a_replica_that_is_larger_than_the_difference_stays() -> None:
    assert plan_moves([group(1, 1, stored_bytes=GIB)], {1, 2}, {}).moves == ()


def test_two_replicas_never_come_together_in_a_node_or_a_location() -> None:
    locations = {1: "a", 2: "b", 3: "a", 4: "b"}
    groups = [group(n, 1, 2) for n in range(1, 5)]
    plan = plan_moves(groups, {1, 2, 3, 4}, locations)
    assert {(locations[m.origin], locations[m.target]) for m in plan.moves} == {
        ("a", "a"),
        ("b", "b"),
    }
    for after in carried_out(groups, plan):
        assert {locations[node] for node in after.nodes} == {"a", "b"}


def test_nodes_that_are_not_usable_take_and_give_nothing() -> None:
    groups = [group(n, 1, 2) for n in range(1, 5)]
    assert plan_moves(groups, {2}, {}).moves == ()
    plan = plan_moves(groups, {2, 3}, {})
    assert {(move.origin, move.target) for move in plan.moves} == {(2, 3)}
    assert set(plan.before) == {2, 3}


def test_moves_are_bounded_and_the_best_come_first() -> None:
    groups = [group(1, 1, stored_bytes=GIB), group(2, 1), group(3, 1, stored_bytes=4 * GIB)]
    plan = plan_moves(groups, {1, 2}, {}, moves_max=1)
    assert plan.moves == (Move(3, 0, 1, 2, 4 * GIB),)


@pytest.mark.parametrize("seed", range(40))
def test_any_plan_is_possible_improves_and_ends(seed: int) -> None:
    chance = random.Random(seed)
    count, replicas = chance.randint(1, 12), chance.randint(1, 3)
    count = max(count, replicas)
    locations = {n: f"rack={n % 3}" for n in range(1, count + 4)} if chance.random() < 0.5 else {}
    placed = place(chance.randint(1, 60), replicas, range(1, count + 1), Placed(), locations)
    groups = [
        group(n, *nodes, stored_bytes=int(chance.expovariate(1 / GIB)))
        for n, nodes in enumerate(placed, start=1)
    ]
    usable = range(1, count + chance.randint(0, 3) + 1)
    plan = plan_moves(groups, usable, locations)
    after = carried_out(groups, plan)
    for before, now in zip(groups, after, strict=True):
        racks = [len({locations.get(n, n) for n in each.nodes}) for each in (before, now)]
        assert racks[1] >= racks[0]
    assert imbalance(plan.after.values()) <= imbalance(plan.before.values())
    total = sum(load.replicas for load in plan.after.values())
    assert (
        total
        == sum(load.replicas for load in plan.before.values())
        == sum(len(each.nodes) for each in after)
    )
    assert plan_moves(after, usable, locations).moves == (), "what is even stays as it is"


def test_the_load_of_an_empty_replica_counts() -> None:
    assert group(1, 1).load == REPLICA_BYTES
