"""The status of a cluster as JSON; the names are those of loomlog.client.info."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.translate import STATE_TO_WIRE

Details: TypeAlias = Callable[[pb.LogStream], dict[str, Any]]

_STATE_NAMES = {wire: str(state) for state, wire in STATE_TO_WIRE.items()}


def status_dict(status: pb.Status, details: Details) -> dict[str, Any]:
    """Return a status, ready for JSON. `details` gives what protocols add to a stream."""
    return {
        "cluster_id": status.cluster_id,
        "metadata_address": status.metadata_address,
        "leader_epoch": status.leader_epoch,
        "leader": status.leader,
        "members": [_member_dict(member, status.leader) for member in status.members],
        "uptime_s": round(status.uptime_s, 3),
        "conditions": list(status.conditions),
        "rounds": status.rounds,
        "nodes": [_node_dict(node) for node in status.nodes],
        "logs": [_log_dict(log, details) for log in status.logs],
    }


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
        "conditions": list(node.conditions),
    }


def _log_dict(log: pb.Log, details: Details) -> dict[str, Any]:
    return {
        "id": log.log_id,
        "name": log.name,
        "protocol": log.protocol,
        "replicas": log.replicas,
        "head": log.head,
        "tail": None if log.tail_unknown else log.tail,
        "reached": log.tail,
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
        "streams": [{**_stream_dict(stream), **details(stream)} for stream in log.streams],
    }


def _stream_dict(stream: pb.LogStream) -> dict[str, Any]:
    return {
        "id": stream.log_stream_id,
        "state": _STATE_NAMES[stream.state],
        "epoch": stream.seal_epoch,
        "replicas": [
            {"node": replica.storage_node_id, "address": replica.address}
            for replica in stream.replicas
        ],
        "entries": stream.entries if stream.HasField("entries") else None,
        "last": stream.last if stream.HasField("last") else None,
        "condition": stream.condition,
        "joining": stream.joining_node or None,
        "copied_entries": stream.copied_entries,
        "segment": stream.loglet_id,
        "protocol": stream.protocol,
    }
