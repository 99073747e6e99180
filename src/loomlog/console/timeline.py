"""Events of a cluster, from two looks at its status. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from loomlog.wire.info import ClusterStatus, ConditionInfo, LogInfo, NodeInfo, StreamInfo

T = TypeVar("T")


class Event(NamedTuple):
    """Something that changed."""

    time_s: float
    severity: str  # problem, warning, work, good, info
    subject: str
    text: str


def subject_of(condition: ConditionInfo) -> str:
    """Name what a condition is about."""
    parts = [
        f"log {condition.log}" if condition.log else "",
        f"stream {condition.stream}" if condition.stream else "",
        f"node {condition.node}" if condition.node else "",
    ]
    return ", ".join(filter(None, parts)) or "metadata"


def changes(before: ClusterStatus, after: ClusterStatus, time_s: float) -> list[Event]:
    """Return what changed from one status to the next."""
    found = [*_leader(before, after), *_nodes(before, after), *_logs(before, after)]
    found += _conditions(before, after)
    return [Event(time_s, *each) for each in found]


_Change = tuple[str, str, str]


def _leader(before: ClusterStatus, after: ClusterStatus) -> Iterator[_Change]:
    if before.leader != after.leader:
        yield "info", "metadata", f"metadata repository {after.leader} leads now"
    elif after.uptime_s < before.uptime_s:
        yield "info", "metadata", "the metadata repository was started again"


def _nodes(before: ClusterStatus, after: ClusterStatus) -> Iterator[_Change]:
    old, new = _by_id(before.nodes), _by_id(after.nodes)
    for number in old.keys() - new.keys():
        yield "info", f"node {number}", "was removed"
    for number, node in new.items():
        subject = f"node {number}"
        if number not in old:
            yield "good", subject, f"joined at {node.address}"
        else:
            for severity, text in _node(old[number], node):
                yield severity, subject, text


def _node(old: NodeInfo, new: NodeInfo) -> Iterator[tuple[str, str]]:
    if old.alive and not new.alive:
        yield "problem", "is away"
    elif new.alive and not old.alive:
        yield "good", "is back"
    elif new.process != old.process:
        yield "info", "was restarted"
    if new.draining != old.draining:
        yield "work", "is being drained" if new.draining else "is used again"
    elif new.draining and old.replicas and not new.replicas:
        yield "good", "is empty: it may be stopped"


def _logs(before: ClusterStatus, after: ClusterStatus) -> Iterator[_Change]:
    old, new = _by_id(before.logs), _by_id(after.logs)
    for number in old.keys() - new.keys():
        yield "info", f"log {old[number].name}", "was deleted"
    for number, log in new.items():
        subject = f"log {log.name}"
        if number not in old:
            yield "good", subject, f"was created: {log.protocol}, {log.replicas} replicas"
        else:
            for text in _log(old[number], log):
                yield "info", subject, text


def _log(old: LogInfo, new: LogInfo) -> Iterator[str]:
    if len(new.segments) > len(old.segments):
        active = new.segments[-1]
        yield f"switched to {active.protocol}, from position {active.start:,} on"
    if new.head > old.head:
        yield f"was trimmed: its first position is {new.head:,}"
    streams = _by_id(old.streams)
    for stream in new.streams:
        if stream.id not in streams:
            yield f"got stream {stream.id}"
        else:
            yield from _stream(streams[stream.id], stream)


def _stream(old: StreamInfo, new: StreamInfo) -> Iterator[str]:
    if new.epoch > old.epoch:
        yield f"stream {new.id} began epoch {new.epoch}"
    if new.state != old.state:
        yield f"stream {new.id} is {new.state}"
    if new.placement != old.placement:
        yield f"nodes of stream {new.id}: {new.placement}"
    if new.sequencer != old.sequencer and new.sequencer is not None:
        yield f"stream {new.id} is sequenced by node {new.sequencer}"


def _conditions(before: ClusterStatus, after: ClusterStatus) -> Iterator[_Change]:
    old, new = ({_key(each): each for each in status.conditions} for status in (before, after))
    for key, each in new.items():
        if key not in old:
            yield each.severity, subject_of(each), each.text
    for key, each in old.items():
        if key not in new:
            yield "good", subject_of(each), f"{each.kind} is over"


def _key(condition: ConditionInfo) -> tuple[object, ...]:
    return condition.kind, condition.node, condition.volume, condition.log, condition.stream


def _by_id(items: tuple[Any, ...]) -> Mapping[int, Any]:
    return {item.id: item for item in items}
