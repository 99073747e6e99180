"""Plan how to spread replicas and nodesets more evenly over the nodes."""

from __future__ import annotations

import asyncio

from loomlog.core.rebalance import imbalance, plan_moves
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.nodes.placement import ReplicaPlacement
from loomlog.metadata.protocol import Keepers
from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb


class Rebalancer:
    """Plans only: operators ask for each change."""

    def __init__(self, catalog: Catalog, keepers: Keepers, placement: ReplicaPlacement) -> None:
        self._catalog = catalog
        self._keepers = keepers
        self._placement = placement

    async def plan(self) -> pb.RebalancePlan:
        keepers = self._keepers.values()
        groups = [group for keeper in keepers for group in keeper.replica_groups()]
        usable, locations = self._placement.usable_nodes(), dict(self._catalog.locations)
        plan = await asyncio.to_thread(plan_moves, groups, usable, locations)
        logs = self._logs()
        return pb.RebalancePlan(
            moves=[
                pb.PlannedMove(
                    log=logs.get(move.stream_id, ""),
                    log_stream_id=move.stream_id,
                    part=move.part,
                    from_node=move.origin,
                    to_node=move.target,
                    stored_bytes=move.stored_bytes,
                )
                for move in plan.moves
            ],
            renewals=[
                pb.PlannedRenewal(
                    log=logs.get(renewal.stream_id, ""),
                    log_stream_id=renewal.stream_id,
                    nodes_before=renewal.before,
                    nodes_after=renewal.after,
                )
                for keeper in keepers
                for renewal in keeper.renewals()
            ],
            loads=[
                pb.PlannedLoad(
                    storage_node_id=node,
                    replicas_before=before.replicas,
                    replicas_after=plan.after[node].replicas,
                    bytes_before=before.stored_bytes,
                    bytes_after=plan.after[node].stored_bytes,
                )
                for node, before in plan.before.items()
            ],
            imbalance_before=imbalance(plan.before.values()),
            imbalance_after=imbalance(plan.after.values()),
        )

    def _logs(self) -> dict[StreamId, str]:
        """Return the names of the logs of all streams."""
        return {
            stream.log_stream_id: log.name
            for log in self._catalog.logs.values()
            for keeper in self._keepers.values()
            for stream in keeper.streams(log)
        }
