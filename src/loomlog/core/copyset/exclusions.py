"""Nodes that get no records for a while, because they refused some or were too slow. Pure.

All sequencers of a node share them, so that one of them waits instead of all. They only affect
speed: they are cleared when they leave too few nodes for a copyset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from loomlog.core.copyset.messages import Trouble
from loomlog.core.copyset.nodeset import Chance, EpochMetadata, choose_copyset
from loomlog.types import NodeId

REFUSED_S: Final[Mapping[Trouble, float]] = {
    Trouble.NO_SPACE: 60.0,
    Trouble.DISABLED: 30.0,
    Trouble.OVERLOADED: 1.0,
}


@dataclass(frozen=True, slots=True)
class ExclusionTimes:
    refused_s: Mapping[Trouble, float] = field(default_factory=lambda: REFUSED_S)
    lost_s: float = 1.0  # the connection broke
    silent_s: float = 600.0  # no answer in time: this one costs a wave each time


class Exclusions:
    def __init__(self, times: ExclusionTimes) -> None:
        self.down: frozenset[NodeId] = frozenset()  # known to be away: never tried
        self._times = times
        self._black: dict[NodeId, float] = {}  # node -> until when
        self._gray: dict[NodeId, float] = {}

    def refused(self, node: NodeId, trouble: Trouble, now: float) -> None:
        self._exclude(node, now + self._times.refused_s[trouble])

    def lost(self, node: NodeId, now: float) -> None:
        self._exclude(node, now + self._times.lost_s)

    def silent(self, nodes: Collection[NodeId], metadata: EpochMetadata, now: float) -> None:
        """Exclude nodes that did not answer in time. If none of a copyset did, this node may be to
        blame. Few are excluded at most, so that their load does not slow down the others."""
        if len(nodes) == metadata.replication > 1:
            self._forgive(self._gray, metadata.nodes)
            return
        self._gray.update(dict.fromkeys(nodes, now + self._times.silent_s))
        gray = [node for node in metadata.nodes if self._gray.get(node, now) > now]
        if len(gray) > max(metadata.replication - 1, len(metadata.nodeset) // 4):
            self._forgive(self._gray, gray)

    def returned(self, node: NodeId) -> None:
        """Called when a node restarted or said that it is well."""
        self._forgive(self._gray, [node])
        self._forgive(self._black, [node])

    def now_excluded(self, now: float) -> set[NodeId]:
        lists = (*self._black.items(), *self._gray.items())
        return {node for node, until in lists if until > now} | self.down

    def choose_copyset(
        self, metadata: EpochMetadata, holders: Collection[NodeId], chance: Chance, now: float
    ) -> tuple[NodeId, ...] | None:
        """Choose a copyset. None: even without exclusions too few nodes are there."""
        for unnecessary in (None, self._gray, self._black):
            if unnecessary is not None:
                self._forgive(unnecessary, metadata.nodes)
            copyset = choose_copyset(metadata, self.now_excluded(now), chance, holders)
            if copyset is not None:
                return copyset
        return None

    def _exclude(self, node: NodeId, until: float) -> None:
        self._black[node] = max(until, self._black.get(node, until))

    def _forgive(self, excluded: dict[NodeId, float], nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            excluded.pop(node, None)
