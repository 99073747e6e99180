"""The choice of a node for one more replica, and why another is not chosen."""

from __future__ import annotations

import random

import pytest

from loomlog.core.placement import Candidate, Load, Placed, choose_spare, place, spread, why_not

LIGHT, HEAVY, USED = Load(False, 1, 10), Load(False, 2, 10), Load(True, 0, 0)


def test_the_node_with_the_least_load_is_chosen() -> None:
    assert choose_spare({1: HEAVY, 2: LIGHT, 3: LIGHT}, [], {}) == 2
    assert choose_spare({}, [], {}) is None


def test_remains_of_the_same_stream_count_more_than_load() -> None:
    assert choose_spare({1: USED, 2: HEAVY}, [], {}) == 2


def test_another_location_counts_more_than_anything_else() -> None:
    locations = {1: "a", 2: "b", 9: "a"}
    assert choose_spare({1: LIGHT, 2: HEAVY}, [9], locations) == 2
    assert choose_spare({1: LIGHT, 2: HEAVY}, [], locations) == 1


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (Candidate(1), "has a replica of stream 7 already"),
        (Candidate(4), "is being filled with stream 7 already"),
        (Candidate(5, reachable=False, has_room=False), "is not alive"),
        (Candidate(5, has_room=False, draining=True), "has no volume that works and has room"),
        (Candidate(5, draining=True, deleting=True), "is being drained"),
        (Candidate(5, deleting=True, unable=True), "is just deleting old data of stream 7"),
        (Candidate(5, unable=True, has_old_data=True), "failed to take stream 7"),
        (Candidate(5, has_old_data=True), "delete it with `loom node cleanup 5` first"),
    ],
)
def test_the_first_reason_against_a_node_is_told(candidate: Candidate, reason: str) -> None:
    told = why_not(7, (1, 2), 4, candidate)
    assert told is not None
    assert told.startswith(f"node {candidate.node} ")
    assert reason in told


def test_nothing_speaks_against_a_node_that_is_fine() -> None:
    assert why_not(7, (1, 2), 4, Candidate(5)) is None


class Numbered(int):
    """A node that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Numbered.compared += 1
        return int(self) < int(other)

    def __eq__(self, other: object) -> bool:
        Numbered.compared += 1
        return int(self) == other

    def __hash__(self) -> int:
        return int(self)


def test_placing_many_streams_does_not_look_at_all_nodes_for_each() -> None:
    compared = []
    for nodes in (100, 1000):
        Numbered.compared = 0
        place(1000, 3, [*map(Numbered, range(1, nodes + 1))], Placed())
        compared.append(Numbered.compared)
    assert compared[1] < 3 * compared[0]


@pytest.mark.parametrize("seed", range(20))
def test_the_same_nodes_are_chosen_as_by_looking_at_all(seed: int) -> None:
    rng = random.Random(seed)
    nodes = range(1, rng.randrange(2, 12))
    racks = ["", "a", "b", "c"][: rng.randrange(1, 5)]
    locations = {node: rng.choice(racks) for node in nodes}
    existing = Placed((node, rng.choice(nodes)) for node in nodes for _ in range(rng.randrange(4)))
    wanted = rng.randrange(1, len(nodes) + 1)
    counts = Placed()
    for node in nodes:
        counts.replicas[node] = existing.replicas[node]
        counts.primaries[node] = existing.primaries[node]
    for chosen in place(30, wanted, nodes, existing, locations):
        by_load = sorted(nodes, key=lambda n: (counts.replicas[n], counts.primaries[n], n))
        assert {*chosen} == {*spread(by_load, wanted, locations)}
        assert chosen[0] == min(chosen, key=lambda n: (counts.primaries[n], counts.replicas[n], n))
        counts.count(chosen)
