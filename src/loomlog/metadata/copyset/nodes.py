"""The storage nodes as copyset loglets see them: which may take records, which may sequence."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import Member, choose_nodeset, sequencer_of
from loomlog.core.copyset.record import Epoch
from loomlog.core.segments import Settings
from loomlog.limits import NODESET_DEFAULT
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import NodeRecord
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.nodes.placement import LostNodes
from loomlog.types import LogId, NodeId
from loomlog.wire.copyset import KnownNode

Losses: TypeAlias = tuple[tuple[LogId, Epoch], ...]


class CopysetNodes:
    """The storage nodes as copyset loglets see them."""

    def __init__(self, catalog: Catalog, members: ConnectedNodes, lost_nodes: LostNodes) -> None:
        self._catalog = catalog
        self._members = members
        self._lost_nodes = lost_nodes
        self._losses: dict[NodeId, tuple[Losses, dict[LogId, Epoch]]] = {}  # as in the records
        self.alive = members.alive
        self.reachable = members.reachable

    def known(self) -> list[KnownNode]:
        """Return all nodes of the cluster, in the form sent to nodes and clients."""
        return [
            KnownNode(node.node_id, node.address, self._members.alive(node.node_id), _leaves(node))
            for _, node in sorted(self._catalog.nodes.items())
        ]

    def usable(self) -> set[Member]:
        """Return the nodes that may be in a nodeset; one that is away for a moment may stay."""
        return {
            Member(node.node_id, node.location)
            for node in self._catalog.nodes.values()
            if not _leaves(node) and not self._is_unusable(node.node_id)
        }

    def leaves(self, node: NodeId | None) -> bool:
        """Return whether a node is drained, or not part of the cluster any more."""
        record = None if node is None else self._catalog.nodes.get(node)
        return record is None or _leaves(record)

    def lost_through(self, node: NodeId, loglet: LogId) -> Epoch:
        """Return the epoch up to which a node may have lost copies of a loglet; 0: none."""
        record = self._catalog.nodes.get(node)
        if record is None or not record.lost:
            return 0
        if node not in self._losses or self._losses[node][0] is not record.lost:
            self._losses[node] = record.lost, dict(record.lost)
        return self._losses[node][1].get(loglet, 0)

    def is_unfit(self, node: NodeId) -> bool:
        """Return whether a node has to leave the nodesets that it is in."""
        return self.leaves(node) or self._is_unusable(node)

    def _is_unusable(self, node: NodeId) -> bool:
        return self._lost_nodes.lost(node) or self._members.restrictions(node).stores_no_copies

    def lost_in_s(self, node: NodeId) -> float:
        return max(0.0, self._lost_nodes.lost_in_s(node))

    def first_nodeset(self, loglet: LogId, settings: Settings) -> tuple[Member, ...]:
        """Choose among the nodes that are there and have room."""
        there = {m for m in self.usable() if self._members.takes_more(m.node_id)}
        return choose_nodeset(loglet, there, size_of(settings))

    def sequencer(self, loglet: LogId, besides: Collection[NodeId] = ()) -> NodeId | None:
        """Return which reachable node is to sequence a loglet, if possible none of `besides`. Nodes
        and clients make the same choice."""
        there = [node for node in self._members.all_reachable() if node in self._catalog.nodes]
        staying = [node for node in there if not self.leaves(node)] or there
        others = [node for node in staying if node not in besides] or staying
        return sequencer_of(loglet, dict.fromkeys(others, 1.0))

    def alive_of(self, state: LogState) -> list[NodeId]:
        """Return the nodes of all nodesets of a loglet that are alive."""
        nodes = {node for metadata in state.history for node in metadata.nodes}
        return [node for node in sorted(nodes) if self._members.alive(node)]


def size_of(settings: Settings) -> int:
    """Return how many nodes the nodeset is to have."""
    return settings.nodeset or max(NODESET_DEFAULT, settings.replicas)


def _leaves(node: NodeRecord) -> bool:
    return node.draining or node.removing
