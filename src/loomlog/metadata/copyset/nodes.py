"""The storage nodes as copyset loglets see them: who may take records, who may sequence."""

from __future__ import annotations

from collections.abc import Collection

from loomlog.core.copyset.epoch_metadata import Member
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.placement import choose_nodeset, sequencer_of
from loomlog.core.segments import Settings
from loomlog.errors import InvalidArgument
from loomlog.limits import NODESET_DEFAULT
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.members import Members
from loomlog.metadata.node_choice import NodeChoice
from loomlog.metadata.records import NodeRecord
from loomlog.types import LogId, NodeId
from loomlog.wire.copyset import KnownNode


class CopysetNodes:
    def __init__(self, catalog: Catalog, members: Members, choice: NodeChoice) -> None:
        self._catalog = catalog
        self._members = members
        self._choice = choice
        self.alive = members.alive
        self.reachable = members.reachable

    def known(self) -> list[KnownNode]:
        """All nodes of the cluster, as nodes and clients are told of them."""
        return [
            KnownNode(node.node_id, node.address, self._members.alive(node.node_id), _leaves(node))
            for _, node in sorted(self._catalog.nodes.items())
        ]

    def usable(self) -> set[Member]:
        """Those that may be in a nodeset; one that is away for a moment stays in its own."""
        return {
            Member(node.node_id, node.location)
            for node in self._catalog.nodes.values()
            if not _leaves(node) and not self._choice.lost(node.node_id)
        }

    def leaves(self, node: NodeId | None) -> bool:
        """It is drained, or not part of the cluster any more."""
        record = None if node is None else self._catalog.nodes.get(node)
        return record is None or _leaves(record)

    def lost(self, node: NodeId) -> bool:
        return self._choice.lost(node)

    def lost_in_s(self, node: NodeId) -> float:
        return max(0.0, self._choice.lost_in_s(node))

    def first_nodeset(self, loglet: LogId, settings: Settings) -> tuple[Member, ...]:
        """Of nodes that are there; InvalidArgument if these are too few."""
        there = {m for m in self.usable() if self._members.reachable(m.node_id)}
        wanted = max(settings.replicas, settings.nodeset)
        if len(there) < wanted:
            whole = settings.nodeset > settings.replicas
            what = f"a nodeset of {wanted} needs" if whole else f"{wanted} replicas need"
            raise InvalidArgument(
                f"{what} as many nodes, and {len(there)} are alive and not drained: "
                f"ask for {'a smaller one' if whole else 'fewer replicas'} or start more nodes"
            )
        return choose_nodeset(loglet, there, size_of(settings))

    def sequencer(self, loglet: LogId, besides: Collection[NodeId] = ()) -> NodeId | None:
        """Who is to sequence it, of those that can be asked; rather not one of `besides`. Nodes
        and clients choose alike."""
        there = [node for node in self._members.all_reachable() if node in self._catalog.nodes]
        staying = [node for node in there if not self.leaves(node)] or there
        others = [node for node in staying if node not in besides] or staying
        return sequencer_of(loglet, dict.fromkeys(others, 1.0))

    def alive_of(self, state: LogState) -> list[NodeId]:
        """Those of all its nodesets that are alive."""
        nodes = {node for metadata in state.history for node in metadata.nodes}
        return [node for node in sorted(nodes) if self._members.alive(node)]


def size_of(settings: Settings) -> int:
    """How many nodes the nodeset is to have."""
    return settings.nodeset or max(NODESET_DEFAULT, settings.replicas)


def _leaves(node: NodeRecord) -> bool:
    return node.draining or node.removing
