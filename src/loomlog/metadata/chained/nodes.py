"""The storage nodes as chained loglets see them: who is there, who is missed, who is spare."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from loomlog.core.chained.projection import Projection, Replica
from loomlog.core.chained.upkeep import Nodes
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.members import Members
from loomlog.metadata.node_choice import UNABLE_S, NodeChoice
from loomlog.metadata.placement import neighbours
from loomlog.metadata.records import ChainedRecord
from loomlog.types import LogId, NodeId

LOOK_S: Final = 0.05  # how often, while a node is expected back


class ChainNodes:
    def __init__(self, catalog: Catalog, members: Members, choice: NodeChoice) -> None:
        self._loop = asyncio.get_running_loop()
        self._catalog = catalog
        self._members = members
        self._choice = choice
        self._reported: set[tuple[LogId, NodeId]] = set()  # clients cannot reach them
        self._unable: dict[tuple[LogId, NodeId], float] = {}  # until when

    def of(self, record: ChainedRecord) -> Nodes:
        return _NodesOfLoglet(self, record)

    # ---- who is there

    def reachable(self, node: NodeId) -> bool:
        return self._members.reachable(node)

    def silent(self, loglet: LogId, node: NodeId) -> bool:
        """Missed for long; or its connection was lost, and a client cannot reach it, either."""
        if not self._members.alive(node):
            return True
        return self._members.was_lost(node) and (loglet, node) in self._reported

    async def certain(self, projection: Projection) -> None:
        """Wait until every node of a projection is there or silent: one that is just coming back
        must not be left behind."""
        loglet = projection.log_id
        for node in dict.fromkeys(replica.node_id for replica in projection.replicas):
            while not (self.reachable(node) or self.silent(loglet, node)):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)

    def reported(self, loglet: LogId, node: NodeId) -> None:
        self._reported.add((loglet, node))

    def came_back(self, node: NodeId) -> None:
        """A new life of it."""
        self._reported = {key for key in self._reported if key[1] != node}
        self._unable = {key: until for key, until in self._unable.items() if key[1] != node}

    def registered_with(self, node: NodeId) -> list[Replica]:
        """The replicas of chains that it had when it registered, but those removed since."""
        member = self._members.get(node)
        return list(member.chain_replicas) if member else []

    def removed(self, replicas: Iterable[Replica]) -> None:
        """They are not on their nodes any more."""
        for replica in replicas:
            if (member := self._members.get(replica.node_id)) is not None:
                member.chain_replicas.discard(replica)

    def replaced(self, node: NodeId) -> bool:
        return self._members.reachable(node) or self._choice.lost(node)

    def lost_in_s(self, node: NodeId) -> float:
        return max(0.0, self._choice.lost_in_s(node))

    def leaving(self, node: NodeId) -> bool:
        record = self._catalog.nodes.get(node)
        return record is not None and record.draining

    # ---- who can take a replica

    def set_unable(self, loglet: LogId, node: NodeId) -> None:
        self._unable[loglet, node] = self._loop.time() + UNABLE_S

    def spare(self, record: ChainedRecord, chain: int) -> NodeId | None:
        """The one with the least to carry that holds nothing of the chain; before that, one where
        no replica that stays is."""
        taken = {replica.node_id for replica in record.replicas if replica.chain == chain}
        fit = [
            node
            for node in self._members.all_reachable()
            if node not in taken and not self.leaving(node) and self._able(record.loglet, node)
        ]
        staying = [n for n in taken if not self.leaving(n) and not self.silent(record.loglet, n)]
        locations = self._catalog.locations

        def burden(node: NodeId) -> tuple[int, int, int, NodeId]:
            return neighbours(node, staying, locations), *self._burden(node)

        return min(fit, key=burden, default=None)

    def _able(self, loglet: LogId, node: NodeId) -> bool:
        return self._unable.get((loglet, node), 0.0) <= self._loop.time()

    def _burden(self, node: NodeId) -> tuple[int, int, NodeId]:
        member = self._members.get(node)
        return self._catalog.load_of[node], member.stored_bytes_total if member else 0, node


class _NodesOfLoglet:
    def __init__(self, nodes: ChainNodes, record: ChainedRecord) -> None:
        self._nodes = nodes
        self._record = record
        self.reachable = nodes.reachable
        self.replaced = nodes.replaced
        self.leaving = nodes.leaving

    def silent(self, node: NodeId) -> bool:
        return self._nodes.silent(self._record.loglet, node)

    def spare(self, chain: int) -> NodeId | None:
        return self._nodes.spare(self._record, chain)
