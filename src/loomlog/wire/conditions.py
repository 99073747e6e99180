"""Converts conditions of core/conditions.py to wire messages, and those to the form for users."""

from __future__ import annotations

from dataclasses import dataclass

from loomlog.core.conditions import Condition, Kind
from loomlog.types import NodeId, StreamId
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


@dataclass(frozen=True, slots=True)
class ConditionInfo:
    """Something that is not as it should be. Without a node and a log, it is about the metadata
    repository."""

    kind: str  # for programs: docs/operations.md lists them
    severity: str  # problem: act; warning: less safe than wanted; work: under way
    text: str
    help: str = ""  # what to do; empty: nothing, or `text` says it
    node: NodeId | None = None
    volume: str | None = None
    log: str | None = None
    stream: StreamId | None = None
    records: int | None = None  # how many it concerns, at most; None: not known
    bytes: int | None = None  # about

    @property
    def sentence(self) -> str:
        """A problem, and what to do about it."""
        return f"{self.text}: {self.help}" if self.help else self.text


def condition_info(condition: pb.Condition) -> ConditionInfo:
    return ConditionInfo(
        kind=condition.kind,
        severity=condition.severity,
        text=condition.text,
        help=condition.help,
        node=condition.storage_node_id or None,
        volume=condition.volume or None,
        log=condition.log or None,
        stream=condition.log_stream_id or None,
        records=condition.records if condition.HasField("records") else None,
        bytes=condition.bytes if condition.HasField("bytes") else None,
    )
