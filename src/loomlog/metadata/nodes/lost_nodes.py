"""Storage nodes that are given up for lost, so that others take their places."""

from __future__ import annotations

from typing import Final

from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.types import NodeId

UNABLE_S: Final = 10.0  # a node that failed is not asked to do the same for this long


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
        return not self._nodes.alive(node) and self.lost_in_s(node) <= 0

    def lost_in_s(self, node: NodeId) -> float:
        """Return how long a silent node still has to come back."""
        return self._replace_after_s - self._nodes.silent_s(node)
