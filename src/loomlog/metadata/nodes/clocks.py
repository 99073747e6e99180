"""The time that retention uses, and conditions about wrong clocks.

Nodes send their time with every report. core/retention.py decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from loomlog.core.conditions import Condition, Kind
from loomlog.core.retention import Skews, SteadyTime, cluster_time, latest_time, skews
from loomlog.errors import Unavailable
from loomlog.metadata.nodes.connected_nodes import MICROSECONDS, ConnectedNodes
from loomlog.types import NodeId

_UNKNOWN: Final = "retention waits until most nodes report their clocks: start those that are down"


class Clocks:
    """The time by most clocks, and the clocks that differ from it."""

    def __init__(
        self,
        nodes: ConnectedNodes,
        all_nodes: Callable[[], Collection[NodeId]],
        wall_s: Callable[[], float],
    ) -> None:
        """`all_nodes` returns the nodes of the cluster, including absent ones."""
        self._loop = asyncio.get_running_loop()
        self._nodes = nodes
        self._all_nodes = all_nodes
        self._wall_s = wall_s
        self._time = SteadyTime()

    def oldest_kept_us(self, retention_s: int) -> int:
        """Return the time before which entries need not be kept. Raise Unavailable if it is
        unknown."""
        found = self._time_s()
        if found is None:
            raise Unavailable(_UNKNOWN)
        now_s = self._loop.time()
        self._time.note(found, now_s)
        doubt_s = self._time.doubt_s(retention_s, now_s)
        return int((found - retention_s - doubt_s) * MICROSECONDS)

    def now_us(self) -> int:
        """Return the time, or 0 if it is unknown."""
        return int((self._time_s() or 0.0) * MICROSECONDS)

    def latest_us(self) -> int | None:
        """Return a time that is not earlier than now, unless most clocks are; None if it is
        unknown."""
        found = latest_time(self._wall_s(), self._readings().values(), len(self._all_nodes()))
        return None if found is None else int(found * MICROSECONDS)

    def conditions(self) -> list[Condition]:
        """Return the conditions of wrong clocks, of nodes and of this machine."""
        found = self._skews()
        wrong = {0: found.own_s, **found.nodes_s}
        return [_condition(node, ahead_s) for node, ahead_s in wrong.items() if ahead_s]

    def why_unknown(self) -> str:
        """Return why nothing is deleted by time now, or ""."""
        return "" if self._time_s() else _UNKNOWN

    def _time_s(self) -> float | None:
        return cluster_time(self._wall_s(), self._readings().values(), len(self._all_nodes()))

    def _skews(self) -> Skews:
        return skews(self._wall_s(), self._readings())

    def _readings(self) -> dict[NodeId, float]:
        now_s = self._loop.time()
        nodes = ((node, self._nodes.get(node)) for node in self._nodes.all_reachable())
        return {n: node.clock.at(now_s) for n, node in nodes if node and node.clock}


def _condition(node: NodeId, ahead_s: float) -> Condition:
    direction = "ahead of" if ahead_s > 0 else "behind"
    text = f"its clock is {abs(ahead_s):.0f} s {direction} most others"
    return Condition(Kind.CLOCK_SKEW, text, "check NTP on that machine", node=node)
