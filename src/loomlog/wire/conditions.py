"""Converts conditions between wire messages and core/conditions.py."""

from __future__ import annotations

from loomlog.core.conditions import Condition, Kind
from loomlog.wire import loomlog_pb2 as pb

_KINDS = {str(kind): kind for kind in Kind}


def condition_to_wire(condition: Condition) -> pb.Condition:
    return pb.Condition(
        kind=condition.kind,
        severity=condition.severity,
        text=condition.text,
        help=condition.help,
        storage_node_id=condition.node,
        volume=condition.volume,
        log=condition.log,
        log_stream_id=condition.stream,
        records=condition.records,
        bytes=condition.bytes,
    )


def condition_from_wire(message: pb.Condition) -> Condition:
    """Return a condition; one of an unknown kind, from a newer server, counts as `other`."""
    return Condition(
        _KINDS.get(message.kind, Kind.OTHER),
        message.text,
        message.help,
        node=message.storage_node_id,
        volume=message.volume,
        log=message.log,
        stream=message.log_stream_id,
        records=message.records if message.HasField("records") else None,
        bytes=message.bytes if message.HasField("bytes") else None,
    )
