"""What people and clients are told about the cluster. Reads only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loomlog.core.ordered.rounds import StreamRounds
from loomlog.core.quorum.member import Leader
from loomlog.core.segments import Chain, Segment
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.committer import Committer
from loomlog.metadata.keepers import LoneKeeper
from loomlog.metadata.members import Members
from loomlog.metadata.node_operator import NodeOperator
from loomlog.metadata.reconcile import Reconciler
from loomlog.metadata.records import LogRecord, NodeRecord
from loomlog.metadata.tails import Tails
from loomlog.types import NodeId, ReplicaState, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.translate import STATE_TO_WIRE

_STATE_NAMES = {wire: str(state) for state, wire in STATE_TO_WIRE.items()}


class View:
    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        members: Members,
        reconciler: Reconciler,
        operator: NodeOperator,
        keepers: Mapping[str, LoneKeeper],
        leader: Leader,
        metadata_members: Callable[[], Sequence[pb.MetadataMember]],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._catalog = catalog
        self._committer = committer
        self._members = members
        self._reconciler = reconciler
        self._operator = operator
        self._keepers = keepers
        self._tails = Tails(committer, keepers)
        self._leader = leader
        self._metadata_members = metadata_members
        self._started_at = self._loop.time()

    # ---- messages

    def logs(self) -> list[LogRecord]:
        """Those that exist for their users, by name."""
        found = (self._catalog.logs[name] for name in sorted(self._catalog.logs))
        return [log for log in found if log.log_id in self._committer.logs and not log.creating]

    def log(self, log: LogRecord) -> pb.Log:
        return pb.Log(
            log_id=log.log_id,
            name=log.name,
            protocol=log.protocol,
            replicas=log.replicas,
            head=log.trimmed + 1,
            tail=self._tails.known_tail(log),
            streams=self._streams(log),
            version=self._version_of(log),
            segments=map(_segment, log.chain.segments),
            switching=_switching(log.chain),
            retention_s=log.retention_s,
        )

    async def bounds(self, log: LogRecord) -> pb.Bounds:
        return pb.Bounds(head=log.trimmed + 1, tail=await self._tails.find_tail(log))

    def _version_of(self, log: LogRecord) -> int:
        versions = (keeper.version_of(log) for keeper in self._keepers.values())
        return max(self._catalog.version_of(log), *versions)

    def _streams(self, log: LogRecord) -> list[pb.LogStream]:
        streams = [s for stream_id in log.streams if (s := self._stream(stream_id))]
        for keeper in self._keepers.values():
            streams += keeper.streams(log)
        return streams

    def _stream(self, stream_id: StreamId) -> pb.LogStream | None:
        stream = self._committer.stream(stream_id)
        if stream is None:  # it is just being deleted
            return None
        return pb.LogStream(
            log_stream_id=stream_id,
            state=STATE_TO_WIRE[self.state(stream)],
            seal_epoch=stream.epoch,
            replicas=[
                pb.Replica(storage_node_id=node, address=self._catalog.nodes[node].address)
                for node in stream.replicas
            ],
            entries=stream.committed_llsn_end - 1,
            condition=self._reconciler.condition(stream),
            joining_node=stream.joining or 0,
            copied_entries=self._reconciler.copied_entries(stream),
            loglet_id=self._catalog.streams[stream_id].segment,
            protocol="ordered",
        )

    def state(self, stream: StreamRounds) -> ReplicaState:
        """SEALED once every replica that can be reached is."""
        if not stream.sealed:
            return ReplicaState.RUNNING
        reached = [n for n in stream.replicas if self._members.reachable(n) and n in stream.reports]
        reports = [stream.reports[node] for node in reached]
        if reports and all(
            r.state is ReplicaState.SEALED and r.epoch == stream.epoch for r in reports
        ):
            return ReplicaState.SEALED
        return ReplicaState.SEALING

    def metadata_addresses(self) -> list[str]:
        """Of all metadata repositories; none if there are no others to be learnt of."""
        members = self._metadata_members()
        return [member.address for member in members] if len(members) > 1 else []

    def status(self) -> pb.Status:
        nodes = self._catalog.nodes
        members = self._metadata_members()
        epoch, leader, _ = self._leader
        return pb.Status(
            cluster_id=self._catalog.cluster.cluster_id,
            metadata_address=next((m.address for m in members if m.member_id == leader), ""),
            nodes=[self._node(nodes[node]) for node in sorted(nodes)],
            logs=[self.log(log) for log in self.logs()],
            rounds=self._committer.rounds,
            uptime_s=self._loop.time() - self._started_at,
            leader_epoch=epoch,
            leader=leader,
            members=members,
        )

    def _node(self, node: NodeRecord) -> pb.NodeStatus:
        member = self._members.get(node.node_id)
        heard_at = member.heard_at if member else self._started_at
        streams = self._streams_on(node.node_id)
        stored = member.stored_bytes if member else {}
        return pb.NodeStatus(
            storage_node_id=node.node_id,
            address=node.address,
            alive=self._members.reachable(node.node_id),
            last_report_s=self._loop.time() - heard_at,
            sync_mode=node.sync_mode,
            replicas=len(streams) + self._lone_replicas(node.node_id),
            stored_bytes=sum(stored.get(s, 0) for s in streams)
            + (member.chain_bytes if member else 0),
            draining=node.draining,
            unknown_streams=self._operator.unknown_streams(node.node_id),
            location=node.location,
        )

    def _lone_replicas(self, node: NodeId) -> int:
        return sum(len(keeper.replicas_on(node)) for keeper in self._keepers.values())

    def _streams_on(self, node: NodeId) -> list[StreamId]:
        return [s.stream_id for s in self._catalog.streams.values() if node in s.replicas]

    # ---- for people and programs that speak HTTP

    def as_dict(self) -> dict[str, Any]:
        """The status, ready for JSON; the names are those of loomlog.client.info."""
        status = self.status()
        return {
            "cluster_id": status.cluster_id,
            "metadata_address": status.metadata_address,
            "leader_epoch": status.leader_epoch,
            "leader": status.leader,
            "members": [_member_dict(member, status.leader) for member in status.members],
            "uptime_s": round(status.uptime_s, 3),
            "rounds": status.rounds,
            "nodes": [_node_dict(node) for node in status.nodes],
            "logs": [_log_dict(log) for log in status.logs],
        }

    def metrics(self) -> str:
        """In Prometheus' text format."""
        status = self.status()
        lines = [
            "# TYPE loomlog_uptime_seconds gauge",
            f"loomlog_uptime_seconds {status.uptime_s:.3f}",
            *_leader_samples(1, status.leader_epoch),
            "# TYPE loomlog_metadata_member_reachable gauge",
            *(
                _sample("metadata_member_reachable", int(m.reachable), member=m.member_id)
                for m in status.members
            ),
            "# TYPE loomlog_metadata_member_lag gauge",
            *(_sample("metadata_member_lag", m.lag, member=m.member_id) for m in status.members),
            "# TYPE loomlog_rounds_total counter",
            f"loomlog_rounds_total {status.rounds}",
            "# TYPE loomlog_node_alive gauge",
            *(_sample("node_alive", int(n.alive), node=n.storage_node_id) for n in status.nodes),
            "# TYPE loomlog_node_stored_bytes gauge",
            *(
                _sample("node_stored_bytes", n.stored_bytes, node=n.storage_node_id)
                for n in status.nodes
            ),
            "# TYPE loomlog_log_tail counter",
            *(_sample("log_tail", log.tail, log=log.name) for log in status.logs),
            "# TYPE loomlog_node_draining gauge",
            *(
                _sample("node_draining", int(n.draining), node=n.storage_node_id)
                for n in status.nodes
            ),
            "# TYPE loomlog_node_unknown_streams gauge",
            *(
                _sample("node_unknown_streams", len(n.unknown_streams), node=n.storage_node_id)
                for n in status.nodes
            ),
            "# TYPE loomlog_nodes_silent gauge",
            f"loomlog_nodes_silent {sum(not n.alive for n in status.nodes)}",
            "# TYPE loomlog_streams_sealed gauge",
            f"loomlog_streams_sealed {sum(_is_missed(log, s) for log, s in _streams(status))}",
            "# TYPE loomlog_stream_running gauge",
            *(
                _stream_sample("stream_running", log, s, int(s.state == pb.RUNNING))
                for log, s in _streams(status)
            ),
            "# TYPE loomlog_stream_entries counter",
            *(_stream_sample("stream_entries", log, s, s.entries) for log, s in _streams(status)),
            "# TYPE loomlog_stream_copied_entries gauge",
            *(
                _stream_sample("stream_copied_entries", log, s, s.copied_entries)
                for log, s in _streams(status)
                if s.joining_node
            ),
            "# TYPE loomlog_copyset_epochs_unrecovered gauge",
            *(
                _stream_sample("copyset_epochs_unrecovered", log, s, _unrecovered(s.copyset))
                for log, s in _copysets(status)
            ),
            "# TYPE loomlog_copyset_nodes_missed gauge",
            *(
                _stream_sample("copyset_nodes_missed", log, s, _missed(s.copyset))
                for log, s in _copysets(status)
            ),
        ]
        return "\n".join(lines) + "\n"


def _segment(segment: Segment) -> pb.Segment:
    return pb.Segment(
        loglet_id=segment.loglet,
        protocol=segment.settings.protocol,
        streams=segment.settings.streams,
        replicas=segment.settings.replicas,
        nodeset=segment.settings.nodeset,
        start=segment.start,
        end=segment.end,
    )


def _switching(chain: Chain) -> str:
    if chain.successor is None:
        return ""
    protocol, streams, replicas, _ = chain.successor.settings
    return f"{chain.switch}: {protocol}, {streams} streams, {replicas} replicas"


def follower_metrics(leader_epoch: int) -> str:
    """Of a metadata repository that does not lead."""
    return "\n".join(_leader_samples(0, leader_epoch)) + "\n"


def _leader_samples(leads: int, epoch: int) -> list[str]:
    return [
        "# TYPE loomlog_metadata_leads gauge",
        f"loomlog_metadata_leads {leads}",
        "# TYPE loomlog_metadata_leader_epoch gauge",
        f"loomlog_metadata_leader_epoch {epoch}",
    ]


def _streams(status: pb.Status) -> list[tuple[pb.Log, pb.LogStream]]:
    return [(log, stream) for log in status.logs for stream in log.streams]


def _copysets(status: pb.Status) -> list[tuple[pb.Log, pb.LogStream]]:
    return [(log, stream) for log, stream in _streams(status) if stream.HasField("copyset")]


def _unrecovered(state: pb.CopysetState) -> int:
    """Epochs that are over and not clean."""
    return max(0, state.epoch - 1 - state.last_clean)


def _missed(state: pb.CopysetState) -> int:
    """Nodes of the newest nodeset that are not alive; of no interest once nothing is written."""
    alive = {node.storage_node_id for node in state.nodes if node.alive}
    return 0 if state.closed else len(set(state.history[-1].nodeset) - alive)


def _is_missed(log: pb.Log, stream: pb.LogStream) -> bool:
    """It should take appends and does not; streams of ended segments never do."""
    is_active = stream.loglet_id == log.segments[-1].loglet_id
    return is_active and stream.state != pb.RUNNING


def _stream_sample(name: str, log: pb.Log, stream: pb.LogStream, value: int) -> str:
    return _sample(name, value, log=log.name, stream=stream.log_stream_id)


def _sample(name: str, value: int, **labels: object) -> str:
    inside = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return f"loomlog_{name}{{{inside}}} {value}"


def _member_dict(member: pb.MetadataMember, leader: int) -> dict[str, Any]:
    return {
        "id": member.member_id,
        "address": member.address,
        "reachable": member.reachable,
        "lag": member.lag,
        "leaving": member.leaving,
        "leads": member.member_id == leader,
    }


def _node_dict(node: pb.NodeStatus) -> dict[str, Any]:
    return {
        "id": node.storage_node_id,
        "address": node.address,
        "alive": node.alive,
        "last_report_s": round(node.last_report_s, 3),
        "sync_mode": node.sync_mode,
        "replicas": node.replicas,
        "stored_bytes": node.stored_bytes,
        "draining": node.draining,
        "unknown_streams": list(node.unknown_streams),
        "location": node.location,
    }


def _log_dict(log: pb.Log) -> dict[str, Any]:
    return {
        "id": log.log_id,
        "name": log.name,
        "protocol": log.protocol,
        "replicas": log.replicas,
        "head": log.head,
        "tail": log.tail,
        "switching": log.switching,
        "retention_s": log.retention_s or None,
        "segments": [
            {
                "id": segment.loglet_id,
                "protocol": segment.protocol,
                "streams": segment.streams,
                "replicas": segment.replicas,
                "nodeset": segment.nodeset or None,
                "start": segment.start,
                "end": segment.end if segment.HasField("end") else None,
            }
            for segment in log.segments
        ],
        "streams": [
            {
                "id": stream.log_stream_id,
                "state": _STATE_NAMES[stream.state],
                "epoch": stream.seal_epoch,
                "replicas": [
                    {"node": replica.storage_node_id, "address": replica.address}
                    for replica in stream.replicas
                ],
                "entries": stream.entries,
                "condition": stream.condition,
                "joining": stream.joining_node or None,
                "copied_entries": stream.copied_entries,
                "segment": stream.loglet_id,
                "protocol": stream.protocol,
                "copyset": _copyset_dict(stream.copyset) if stream.HasField("copyset") else None,
            }
            for stream in log.streams
        ],
    }


def _copyset_dict(state: pb.CopysetState) -> dict[str, Any]:
    return {
        "sequencer": state.sequencer or None,
        "last_clean": state.last_clean,
        "closed": state.closed,
        "history": [
            {
                "since": epochs.since,
                "nodeset": list(epochs.nodeset),
                "replicas": epochs.replication,
            }
            for epochs in state.history
        ],
    }
