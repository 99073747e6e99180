"""The state of storage nodes for chained loglets: reachable, silent, spare."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Set
from typing import Final

from loomlog.core.chained.chain import Chain, Projection, Replica
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.placement import Load, choose_spare
from loomlog.errors import Unavailable
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import Losses, NodeRecord
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.nodes.placement import UNABLE_S, LostNodes
from loomlog.protocol_names import CHAINED
from loomlog.types import LogId, NodeId

LOOK_S: Final = 0.05  # between checks while a node is expected back
REPORTED_S: Final = 5.0  # how long the report of a client counts


class ChainNodes:
    """The state of storage nodes for chained loglets."""

    def __init__(self, catalog: Catalog, connected: ConnectedNodes, lost_nodes: LostNodes) -> None:
        self._loop = asyncio.get_running_loop()
        self._catalog = catalog
        self._connected = connected
        self._lost_nodes = lost_nodes
        self.reachable = connected.reachable
        self.is_stopping = connected.is_stopping
        self._reported: dict[
            tuple[LogId, NodeId], float
        ] = {}  # reported by clients as not answering, with the expiry of the report
        self._voids: dict[NodeId, tuple[Losses, frozenset[tuple[int, ...]]]] = {}
        self._registered: dict[NodeId, set[Replica]] = {}
        self._unable: dict[tuple[LogId, NodeId], float] = {}  # until when
        self.full_on: dict[LogId, set[NodeId]] = {}  # replicas, including former ones

    # ---- reachable nodes

    def silent(self, loglet: LogId, node: NodeId) -> bool:
        """Return whether a node was silent for long, or is disconnected or missed and does not
        answer a client."""
        if self._connected.silent(node):
            return True
        is_gone = self._connected.was_lost(node) or not self._connected.alive(node)
        return is_gone and self._loop.time() < self._reported.get((loglet, node), 0.0)

    def refusing(self) -> dict[NodeId, str]:
        """Return the nodes that cannot take a replica because of their disks, and why."""
        connected = self._connected
        return {
            node: connected.complaints(node)
            for node in connected.all_reachable()
            if connected.takes_nothing(node) or connected.restrictions(node).chains_unserved
        }

    def size_of(self, chain: Chain) -> int | None:
        """Return the approximate bytes of each complete replica of a chain; None: unknown."""
        sizes = [self._connected.size_of(r.node_id, r.log_id, r.chain) for r in chain]
        return max((size for size in sizes if size is not None), default=None)

    # ---- nodes without room

    def note_full(self, node: NodeId) -> None:
        """Record the loglets of which a node has replicas on nearly full volumes."""
        full = self._connected.restrictions(node).full_loglets
        for loglet in [loglet for loglet, nodes in self.full_on.items() if node in nodes]:
            self.full_on[loglet].discard(node)
            if not self.full_on[loglet]:
                del self.full_on[loglet]
        for loglet in full:
            self.full_on.setdefault(loglet, set()).add(node)

    def full(self, record: ChainedRecord) -> frozenset[Replica]:
        """Return the replicas in force that are on nearly full volumes."""
        nodes = self.full_on.get(record.loglet, ())
        return frozenset(r for r in record.projection.replicas if r.node_id in nodes)

    def why_full(self, replicas: Iterable[Replica]) -> str:
        """Return the complaints of the nodes of full replicas."""
        nodes = sorted({replica.node_id for replica in replicas})
        return "; ".join(f"node {node}: {self._connected.complaints(node)}" for node in nodes)

    async def certain(self, projection: Projection) -> None:
        """Wait until every node of a projection is registered or silent, so that one that is just
        coming back is not dropped."""
        loglet = projection.log_id
        for node in dict.fromkeys(replica.node_id for replica in projection.replicas):
            while not (self.reachable(node) or self.silent(loglet, node)):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)

    def reported(self, loglet: LogId, node: NodeId) -> None:
        now_s = self._loop.time()
        self._reported = {key: until for key, until in self._reported.items() if until > now_s}
        self._reported[loglet, node] = now_s + REPORTED_S

    def came_back(self, node: NodeId) -> None:
        """Forget reports of clients and chains about a node from before its restart."""
        self._reported = {key: until for key, until in self._reported.items() if key[1] != node}
        self._unable = {key: until for key, until in self._unable.items() if key[1] != node}

    def registered_with(self, node: NodeId) -> list[Replica]:
        """Return the replicas that a node had when it registered, except those removed since."""
        return list(self._registered.get(node, ()))

    def registered(self, node: NodeId, replicas: Iterable[Replica]) -> None:
        """Called with the replicas that a node reports when it registers."""
        self._registered[node] = set(replicas)

    def removed(self, replicas: Iterable[Replica]) -> None:
        """Record that replicas were removed from their nodes."""
        for replica in replicas:
            self._registered.get(replica.node_id, set()).discard(replica)

    def replaced(self, node: NodeId) -> bool:
        return self._connected.reachable(node) or self._lost_nodes.lost(node)

    def lost_in_s(self, node: NodeId) -> float:
        return max(0.0, self._lost_nodes.lost_in_s(node))

    def lost(self, replica: Replica) -> bool:
        """Return whether the blocks of a replica never come back: its node serves all its chains,
        but lost this one or has an older copy of it; or an operator gave the node up, and it is
        away."""
        node = self._catalog.nodes.get(replica.node_id)
        if node is None:
            return False
        if node.removing or (node.is_given_up and not self._connected.connected(node.node_id)):
            return True
        return self.serves_chains(replica.node_id) and replica[1:] in self._void(node)

    def serves_chains(self, node: NodeId) -> bool:
        """Return whether a node serves all its chains."""
        return self.reachable(node) and not self._connected.restrictions(node).chains_unserved

    def _void(self, node: NodeRecord) -> frozenset[tuple[int, ...]]:
        """Return the void replicas of a node by loglet, chain and birth. The set is cached, because
        there may be thousands."""
        known, void = self._voids.get(node.node_id, ((), frozenset()))
        losses = node.losses_of(CHAINED)
        if known is not losses:
            void = frozenset(losses)
            self._voids[node.node_id] = losses, void
        return void

    def register_again(self, node: NodeId) -> None:
        """Make a connected node register again."""
        self._connected.disconnect(node, Unavailable("other replicas took the place of its own"))

    def removed_for_good(self, node: NodeId) -> bool:
        """Return whether an operator removes an absent node, which is not admitted again."""
        record = self._catalog.nodes.get(node)
        return record is not None and record.removing and not self.reachable(node)

    def leaving(self, node: NodeId) -> bool:
        record = self._catalog.nodes.get(node)
        return record is not None and record.draining

    def life(self, node: NodeId) -> int:
        record = self._catalog.nodes.get(node)
        return 0 if record is None else record.life

    # ---- nodes for another replica

    def set_unable(self, loglet: LogId, node: NodeId) -> None:
        self._unable[loglet, node] = self._loop.time() + UNABLE_S

    def spare(
        self, record: ChainedRecord, chain: int, preferred: NodeId | None = None
    ) -> NodeId | None:
        """Return the preferred node, or the best one without data of the chain. If there is none,
        return one with a replica that left, which stays until the chain has all its replicas again;
        otherwise a node of which another volume may take the replica."""
        joining = {r.node_id for r in record.joining if r.chain == chain}
        used = {r.node_id for r in record.projection.chains[chain]} | joining
        left = {r.node_id for r in record.needless if r.chain == chain}
        if preferred is not None and preferred in self._fit(record, used):
            return preferred
        within = {r.node_id for r, node in record.moving if (r.chain, r.node_id) == (chain, node)}
        return (
            self._choose(record, used | left)
            or self._choose(record, used)
            or next(iter(self._fit(record, used - within | joining)), None)
        )

    def fresh(self, record: ChainedRecord) -> NodeId | None:
        """Return the best node for a lost chain. It may be one that lost it."""
        return self._choose(record, set())

    def _choose(self, record: ChainedRecord, taken: Set[NodeId]) -> NodeId | None:
        fit = self._fit(record, taken)
        staying = [n for n in taken if not self.leaving(n) and not self.silent(record.loglet, n)]
        loads = {node: self._load(node) for node in fit}
        return choose_spare(loads, staying, self._catalog.locations)

    def _fit(self, record: ChainedRecord, taken: Set[NodeId]) -> list[NodeId]:
        return [
            node
            for node in filter(self._connected.takes_more, self._connected.all_reachable())
            if node not in taken and not self.leaving(node) and self._able(record.loglet, node)
        ]

    def _able(self, loglet: LogId, node: NodeId) -> bool:
        return self._unable.get((loglet, node), 0.0) <= self._loop.time()

    def _load(self, node: NodeId) -> Load:
        found = self._connected.get(node)
        stored = found.stored_bytes_total if found else 0
        return Load(has_remains=False, replicas=self._catalog.load_of[node], stored_bytes=stored)
