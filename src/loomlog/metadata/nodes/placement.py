"""Decide which nodes count as lost, and choose the nodes of new replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from loomlog.core.placement import place
from loomlog.core.segments import Settings
from loomlog.errors import InvalidArgument, LoomError, Unavailable
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.types import NodeId

UNABLE_S: Final = 10.0  # a failed node does not get the same request for this long
LOOK_S: Final = 0.05  # between checks while nodes are missing


class ReplicaPlacement:
    """Chooses among the nodes that can take new data."""

    def __init__(
        self,
        catalog: Catalog,
        nodes: ConnectedNodes,
    ) -> None:
        self._catalog = catalog
        self._nodes = nodes

    def place(self, sets: int, settings: Settings) -> list[tuple[NodeId, ...]]:
        """Return the nodes of this many sets of replicas. While nodes of the cluster are away or
        full, a set may have fewer replicas than wanted."""
        nodes, wanted = self.usable_nodes(), settings.replicas
        replicas = min(wanted, len(nodes))
        known = len(nodes) + len(self._away()) + len(self._full())
        if replicas < settings.replicas_least or wanted > known:
            raise self.too_few(wanted, f"{wanted} replicas need as many nodes")
        return place(sets, replicas, nodes, self._catalog.placed, self._catalog.locations)

    def check(self, nodes: Sequence[NodeId], settings: Settings) -> None:
        """Raise unless these nodes, chosen by an operator, can take a set of replicas."""
        for node in nodes:
            self._catalog.node(node)
        if len(set(nodes)) != len(nodes) or len(nodes) != settings.replicas:
            raise InvalidArgument(
                f"the log has {settings.replicas} replicas: name as many different nodes"
            )
        if unusable := sorted(set(nodes).difference(self.usable_nodes())):
            raise InvalidArgument(
                f"node {unusable[0]} is away, drained, or has no room: see `loom node list`"
            )

    def usable_nodes(self) -> list[NodeId]:
        """Return the nodes that are alive, not drained, and have room."""
        alive = filter(self._nodes.takes_more, self._nodes.all_reachable())
        return [node for node in alive if not self._catalog.nodes[node].draining]

    def _full(self) -> list[NodeId]:
        """Return the nodes that could be used if they had room."""
        return [
            node
            for node in filter(self._nodes.takes_nothing, self._nodes.all_reachable())
            if not self._catalog.nodes[node].draining
        ]

    def too_few(self, wanted: int, need: str) -> LoomError:
        """Return the error for a request that needs `wanted` nodes. It is retryable if the cluster
        has that many and some are only away or full."""
        alive, nodes = self._nodes.all_reachable(), self.usable_nodes()
        away, full, more = self._away(), self._full(), len(alive) - len(nodes)
        others = f" ({more} more are drained or have no volume with room)" if more else ""
        text = f"{need}, and {len(nodes)} are alive{others}"
        if wanted <= len(nodes) + len(away) + len(full):
            todo = [("start", away), ("make room on", full)]
            said = (f"{what} {_names(those)}" for what, those in todo if those)
            return Unavailable(f"{text}: {', '.join(said)}, or ask for fewer", lasting=not away)
        return InvalidArgument(f"{text}: ask for fewer or start more nodes")

    async def wait_for_nodes(self, wanted: int) -> None:
        """Wait until this many nodes are usable, or no missing node may be about to register: after
        a restart or a takeover, nodes come back one by one."""
        while (  # noqa: ASYNC110 - there is no event to wait for
            len(self.usable_nodes()) < wanted and not all(map(self._nodes.silent, self._away()))
        ):
            await asyncio.sleep(LOOK_S)

    def _away(self) -> list[NodeId]:
        """Return the nodes of the cluster that could be used if they were up."""
        nodes = self._catalog.nodes
        return [
            node
            for node in sorted(nodes)
            if not nodes[node].draining
            and not nodes[node].removing
            and not self._nodes.reachable(node)
        ]


def _names(nodes: Iterable[NodeId]) -> str:
    return ", ".join(f"node {node}" for node in nodes)


class LostNodes:
    """Nodes that have been silent for `replace_after_s`, and nodes that operators removed."""

    def __init__(self, catalog: Catalog, nodes: ConnectedNodes, replace_after_s: float) -> None:
        self._catalog = catalog
        self._nodes = nodes
        self._replace_after_s = replace_after_s

    def lost(self, node: NodeId) -> bool:
        record = self._catalog.nodes.get(node)
        if record is None or record.removing:
            return True
        if record.is_given_up and not self._nodes.alive(node):
            return True
        return self._nodes.silent(node) and self.lost_in_s(node) <= 0

    def lost_in_s(self, node: NodeId) -> float:
        """Return how long a silent node still has to come back."""
        left_s = self._replace_after_s - self._nodes.silent_s(node)
        return max(left_s, self._nodes.restart_left_s(node) or left_s)
