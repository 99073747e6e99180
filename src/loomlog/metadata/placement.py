"""Which nodes get the replicas of new streams. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from loomlog.types import NodeId


def place(
    streams: int,
    replicas: int,
    nodes: Sequence[NodeId],
    existing: Iterable[tuple[NodeId, ...]],
) -> list[tuple[NodeId, ...]]:
    """A replica list (primary first) per stream: never two on one node, and nodes carry equally
    many replicas and primaries as far as that goes."""
    load: Counter[NodeId] = Counter()
    primaries: Counter[NodeId] = Counter()
    placed: list[tuple[NodeId, ...]] = []

    def count(chosen: tuple[NodeId, ...]) -> None:
        load.update(chosen)
        primaries.update(chosen[:1])

    for chosen in existing:
        count(chosen)
    for _ in range(streams):
        lightest = sorted(nodes, key=lambda node: (load[node], primaries[node], node))[:replicas]
        lightest.sort(key=lambda node: (primaries[node], load[node], node))
        placed.append(tuple(lightest))
        count(placed[-1])
    return placed
