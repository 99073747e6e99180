"""Where new replicas go, of whatever protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from loomlog.errors import InvalidArgument
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.keepers import LoneKeeper
from loomlog.metadata.members import Members
from loomlog.metadata.placement import place
from loomlog.types import NodeId

LOOK_S: Final = 0.05  # how often, while nodes are missing


class Placing:
    def __init__(
        self, catalog: Catalog, members: Members, keepers: Mapping[str, LoneKeeper]
    ) -> None:
        self._catalog = catalog
        self._members = members
        self._keepers = keepers

    def place(self, streams: int, replicas: int) -> list[tuple[NodeId, ...]]:
        """The nodes of so many streams, or chains, with so many replicas each."""
        alive, nodes = self._members.all_reachable(), self.usable_nodes()
        if replicas > len(nodes):
            drained = f" ({len(alive) - len(nodes)} more are drained)" if alive != nodes else ""
            raise InvalidArgument(
                f"{replicas} replicas need as many nodes, and {len(nodes)} are alive{drained}: "
                "ask for fewer replicas or start more nodes"
            )
        existing = [stream.replicas for stream in self._catalog.streams.values()]
        for keeper in self._keepers.values():
            existing += keeper.placement()
        return place(streams, replicas, nodes, existing, self._catalog.locations)

    def usable_nodes(self) -> list[NodeId]:
        """Those that are alive and not drained."""
        alive = self._members.all_reachable()
        return [node for node in alive if not self._catalog.nodes[node].draining]

    async def registered(self, wanted: int) -> None:
        """Wait for so many nodes, if there are so many: after a takeover they come back one by one.
        Those that are drained do not count."""
        known = sum(not node.draining for node in self._catalog.nodes.values())
        while len(self.usable_nodes()) < min(wanted, known):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(LOOK_S)
