"""Finds nodes whose data may be an older copy, which proves nothing about the ends of logs.

Metadata and nodes may have been restored to copies of the same time. The nodes then agree with the
metadata, but nodes that were not restored know newer metadata.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from loomlog.core.history import outdated
from loomlog.core.registration import older_shards
from loomlog.metadata.catalog.records import HISTORY, HistoryRecord, NodeRecord, decode
from loomlog.metadata.offline.collector import Caller
from loomlog.metadata.rollback.gate import history_of, seen_from_wire
from loomlog.metadata.store.contract import StoredItem
from loomlog.types import NodeId


class Past:
    """The nodes and the runs according to stored metadata."""

    def __init__(self, items: Mapping[str, StoredItem]) -> None:
        item = items.get(HISTORY)
        self.record = decode(HistoryRecord, HISTORY, item.value) if item else HistoryRecord()
        version = item.version if item else 0
        self.history = history_of(self.record).stored_at(version)
        if self.record.rolled_back:  # under a running leader, perhaps: nodes knew more before that
            self.history = self.history.ended_at(version)
        stored = ((key, item.value) for key, item in items.items() if key.startswith("node/"))
        records = (decode(NodeRecord, key, value) for key, value in stored)
        self.nodes = {record.node_id: record for record in records}

    def outdated(
        self, callers: Mapping[NodeId, Caller], was_away: Collection[NodeId]
    ) -> dict[NodeId, str]:
        """Return the nodes whose data may be an older copy, and why; without those that an operator
        says were only away."""
        requests = {node: caller.registration for node, caller in callers.items()}
        seen = {node: seen_from_wire(request.known_run) for node, request in requests.items()}
        found: dict[NodeId, str] = {}
        if self.record.rolled_back and not any(map(self.history.contradiction, seen.values())):
            why = (
                f"it agrees with this metadata, which went back in time: {self.record.rolled_back}"
            )
            found |= dict.fromkeys(seen, why)
        for node, other in outdated(seen, self.history).items():
            found[node] = f"it lacks changes of the metadata that node {other} was told of"
        for node, request in requests.items():
            if older_shards(request, self.nodes.get(node)):
                found[node] = "it has an older copy of its data than the metadata"
        return {node: why for node, why in found.items() if node not in was_away}
