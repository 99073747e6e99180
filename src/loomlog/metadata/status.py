"""The status of the cluster for clients, also as JSON. Read-only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from loomlog.core.conditions import Condition
from loomlog.core.quorum.member import Leader
from loomlog.core.segments import Layout, Segment
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord, NodeRecord
from loomlog.metadata.conditions import ClusterConditions
from loomlog.metadata.groups import GroupStates
from loomlog.metadata.metrics import cluster_metrics
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.protocol import Keepers
from loomlog.metadata.rollback.gate import Gate
from loomlog.metrics import Metric
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.conditions import condition_to_wire
from loomlog.wire.info import cluster_status

LOGS_AT_ONCE: Final = 20  # per iteration of the loop: about a millisecond


class StatusView:
    """Describes logs, nodes and the metadata repository as they are now."""

    def __init__(
        self,
        catalog: Catalog,
        nodes: ConnectedNodes,
        keepers: Keepers,
        leader: Leader,
        metadata_members: Callable[[], Sequence[pb.MetadataMember]],
        conditions: ClusterConditions,
        gate: Gate,
        groups: GroupStates,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._catalog = catalog
        self._nodes = nodes
        self._keepers = keepers
        self._leader = leader
        self.members = metadata_members
        self.conditions = conditions
        self._gate = gate
        self._groups = groups
        self._started_at = self._loop.time()
        self.denials: Callable[[], int] = lambda: 0  # of this process
        self.audit_dropped: Callable[[], int] = lambda: 0  # entries missing in its audit trail
        self.refusals: Callable[[], pb.LimitRefusals] = pb.LimitRefusals

    # ---- logs

    def logs(self) -> list[LogRecord]:
        """Return the logs that users see, by name."""
        logs = (self._catalog.logs[name] for name in sorted(self._catalog.logs))
        return [log for log in logs if not log.unfinished]

    def now(self, log: LogRecord) -> LogRecord | None:
        """Return the newest record of a log; None: it was deleted."""
        now = self._catalog.logs.get(log.name)
        return now if now and now.log_id == log.log_id and not now.unfinished else None

    async def in_steps(self) -> AsyncIterator[LogRecord]:
        """Yield the same, in steps that let other tasks run: describing 10,000 logs takes
        seconds."""
        for number, log in enumerate(self.logs(), 1):
            if (now := self.now(log)) is not None:
                yield now
            if number % LOGS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def log(self, log: LogRecord) -> pb.Log:
        keeper, active = self._keepers.active(log), log.layout.active
        return pb.Log(
            log_id=log.log_id,
            name=log.name,
            protocol=log.protocol,
            replicas=log.replicas,
            head=log.trimmed + 1,
            tail=keeper.known_tail(log, active),
            tail_unknown=bool(self._gate.condition) or not keeper.is_tail_known(log, active),
            streams=self._streams(log),
            version=self.version_of(log),
            segments=map(self._segment, log.segments),
            switching=_switching(log.layout),
            retention_s=log.retention_s,
            retention_bytes=log.retention_bytes,
        )

    def _log_with_groups(self, log: LogRecord) -> pb.Log:
        description = self.log(log)
        description.groups.extend(self._groups.of_log(log.log_id, log.name))
        description.queues.extend(self._groups.queues_of_log(log.log_id, log.name))
        return description

    async def bounds(self, log: LogRecord) -> pb.Bounds:
        return pb.Bounds(head=log.trimmed + 1, tail=await self._keepers.find_tail(log))

    def version_of(self, log: LogRecord) -> int:
        """Return a number that grows with every change of the description of a log."""
        versions = (keeper.version_of(log) for keeper in self._keepers.values())
        return max(self._catalog.version_of(log), *versions)

    def _streams(self, log: LogRecord) -> list[pb.LogStream]:
        streams = [stream for keeper in self._keepers.values() for stream in keeper.streams(log)]
        if reason := self._gate.condition:
            for stream in streams:
                stream.condition = reason
                stream.ClearField("entries")  # this metadata may be old
                stream.ClearField("last")
                if self._gate.rolled_back is not None and stream.state == pb.RUNNING:
                    stream.state = pb.SEALING
        return streams

    # ---- the cluster

    def metadata_addresses(self) -> list[str]:
        """Return the addresses of all metadata repositories; none if there is only one."""
        members = self.members()
        return [member.address for member in members] if len(members) > 1 else []

    async def status(self) -> pb.Status:
        logs, of_logs = list[pb.Log](), list[Condition]()
        async for log in self.in_steps():
            logs.append(self._log_with_groups(log))
            of_logs += self.conditions.of_log(log)
        nodes = self._catalog.nodes
        members = self.members()
        epoch, leader, _ = self._leader
        status = pb.Status(
            cluster_id=self._catalog.cluster.cluster_id,
            metadata_address=next((m.address for m in members if m.member_id == leader), ""),
            nodes=[self._node(nodes[node]) for node in sorted(nodes)],
            logs=logs,
            uptime_s=self._loop.time() - self._started_at,
            leader_epoch=epoch,
            leader=leader,
            members=members,
            conditions=map(condition_to_wire, self.conditions.all(members, of_logs)),
            denials=self.denials(),
            audit_dropped=self.audit_dropped(),
            refusals=self.refusals(),
        )
        for keeper in self._keepers.values():
            keeper.extend_status(status)
        return status

    def _node(self, node: NodeRecord) -> pb.NodeStatus:
        node_id, keepers = node.node_id, self._keepers.values()
        connected = self._nodes.get(node_id)
        of_streams = sum(keeper.stored_bytes(node_id) for keeper in keepers)
        of_loglets = connected.loglet_bytes if connected else None
        heard_at = connected.heard_at if connected else None
        return pb.NodeStatus(
            storage_node_id=node_id,
            address=node.address,
            alive=self._nodes.reachable(node_id),
            last_report_s=None if heard_at is None else self._loop.time() - heard_at,
            sync_mode=node.sync_mode,
            replicas=sum(len(keeper.replicas_on(node_id)) for keeper in keepers),
            stored_bytes=None if of_loglets is None else of_streams + of_loglets,
            draining=node.draining,
            unknown_streams=[s for keeper in keepers for s in keeper.unknown_streams(node_id)],
            location=node.location,
            process=node.process,
            restarting=self._nodes.restart_left_s(node_id) > 0,
            volumes=connected.volumes if connected and connected.connection else (),
            scrub=connected.scrub if connected and connected.connection else None,
            denials=connected.denials if connected else None,
            audit_dropped=connected.audit_dropped if connected else None,
            refusals=connected.refusals if connected else None,
            held_back=""
            if connected and connected.connection
            else self._nodes.turned_away(node_id),
        )

    # ---- HTTP

    async def as_dict(self) -> dict[str, Any]:
        """Return the status as clients show it, ready for JSON."""
        return asdict(cluster_status(await self.status()))

    def _segment(self, segment: Segment) -> pb.Segment:
        settings = segment.settings
        return pb.Segment(
            loglet_id=segment.loglet,
            protocol=settings.protocol,
            streams=settings.streams,
            replicas=settings.replicas,
            nodeset=settings.nodeset,
            min_replicas=self._keepers.of(settings.protocol).replicas_least(settings),
            start=segment.start,
            end=segment.end,
            compression=settings.compression,
        )

    def metrics(self, status: pb.Status) -> list[Metric]:
        own = [metric for keeper in self._keepers.values() for metric in keeper.metrics(status)]
        return [*cluster_metrics(status), *own]


def _switching(layout: Layout) -> str:
    if layout.successor is None:
        return ""
    wanted = layout.successor.settings
    words = f"{wanted.protocol}, {wanted.streams} streams, {wanted.replicas} replicas"
    return f"{layout.switch}: {words}"
