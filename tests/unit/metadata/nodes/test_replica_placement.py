"""Too few nodes for a set of replicas: the error that the caller gets."""

from __future__ import annotations

from collections.abc import Set
from types import SimpleNamespace
from typing import Any, cast

import pytest

from loomlog.core.placement import Placed
from loomlog.errors import InvalidArgument, Unavailable
from loomlog.metadata.nodes.placement import ReplicaPlacement


def placement(
    count: int,
    *,
    away: Set[int] = frozenset(),
    full: Set[int] = frozenset(),
    drained: Set[int] = frozenset(),
) -> ReplicaPlacement:
    records = {
        node: SimpleNamespace(draining=node in drained, removing=False)
        for node in range(1, count + 1)
    }
    nodes = SimpleNamespace(
        all_reachable=lambda: [node for node in records if node not in away],
        reachable=lambda node: node not in away,
        takes_more=lambda node: node not in full,
        takes_nothing=lambda node: node in full,
    )
    catalog = SimpleNamespace(nodes=records, locations={}, placed=Placed())
    return ReplicaPlacement(cast(Any, catalog), cast(Any, nodes))


SETTINGS = cast(Any, SimpleNamespace(replicas=3, replicas_least=2))


@pytest.mark.parametrize(
    ("nodes", "todo", "lasting"),
    [
        (placement(3, away={2, 3}), "start node 2, node 3, or ask", False),
        (placement(3, full={2, 3}), "make room on node 2, node 3, or ask", True),
        (placement(3, away={1}, full={3}), "start node 1, make room on node 3, or ask", False),
    ],
)
def test_nodes_that_may_be_used_again_are_named(
    nodes: ReplicaPlacement, todo: str, lasting: bool
) -> None:
    with pytest.raises(Unavailable, match=todo) as raised:
        nodes.place(1, SETTINGS)
    assert raised.value.lasting is lasting


def test_a_cluster_that_is_too_small_cannot_have_so_many() -> None:
    for nodes in (placement(2), placement(3, drained={1}), placement(3, full={2}, drained={1})):
        with pytest.raises(InvalidArgument, match="ask for fewer or start more nodes"):
            nodes.place(1, SETTINGS)


def test_a_set_is_smaller_while_nodes_are_away_or_full() -> None:
    for nodes in (placement(3, away={1}), placement(3, full={1})):
        assert [sorted(each) for each in nodes.place(1, SETTINGS)] == [[2, 3]]
