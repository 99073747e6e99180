"""Which nodes get the replicas of new streams. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from loomlog.types import NodeId


def place(
    streams: int,
    replicas: int,
    nodes: Sequence[NodeId],
    existing: Iterable[tuple[NodeId, ...]],
    locations: Mapping[NodeId, str] | None = None,
) -> list[tuple[NodeId, ...]]:
    """A replica list (primary first) per stream: never two on one node, those of a stream in as
    many locations as there are, and nodes carry equally many replicas and primaries as far as that
    goes. A node without location is in one of its own."""
    load: Counter[NodeId] = Counter()
    primaries: Counter[NodeId] = Counter()
    placed: list[tuple[NodeId, ...]] = []

    def count(chosen: tuple[NodeId, ...]) -> None:
        load.update(chosen)
        primaries.update(chosen[:1])

    for placed_before in existing:
        count(placed_before)
    for _ in range(streams):
        lightest = sorted(nodes, key=lambda node: (load[node], primaries[node], node))
        chosen = spread(lightest, replicas, locations or {})
        chosen.sort(key=lambda node: (primaries[node], load[node], node))
        placed.append(tuple(chosen))
        count(placed[-1])
    return placed


def spread(nodes: Iterable[NodeId], wanted: int, locations: Mapping[NodeId, str]) -> list[NodeId]:
    """So many of the nodes, rather the first ones, but from as many locations as there are."""
    left = list(nodes)
    chosen: list[NodeId] = []
    while left and len(chosen) < wanted:
        chosen.append(min(left, key=lambda node: neighbours(node, chosen, locations)))
        left.remove(chosen[-1])
    return chosen


def neighbours(node: NodeId, others: Iterable[NodeId], locations: Mapping[NodeId, str]) -> int:
    """How many of the others are where the node is."""
    location = locations.get(node)
    return sum(locations.get(other) == location for other in others) if location else 0
