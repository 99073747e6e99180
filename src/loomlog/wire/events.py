"""Events of a cluster: changes between two of its states, and operators' actions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from loomlog.core.conditions import Condition, Kind
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.conditions import ConditionInfo
from loomlog.wire.info import LogInfo, StreamInfo

ACTION_CHARS_MAX: Final = 250  # the outcome follows, and is not cut off


@dataclass(frozen=True, slots=True)
class EventInfo:
    """Something that happened in a cluster."""

    id: int  # grows; may skip numbers
    time_s: float  # since 1970, by the clock of the leading metadata repository
    severity: str  # problem, warning, work, good, info, or action: what an operator did
    subject: str  # what or whom it is about
    text: str
    log: str = ""  # that it is about, if any


@dataclass(frozen=True, slots=True)
class Change:
    """An event before it has a time and a number."""

    severity: str
    subject: str
    text: str
    log: str = ""


def event_info(event: pb.Event) -> EventInfo:
    return EventInfo(event.id, event.time_s, event.severity, event.subject, event.text, event.log)


# ---- what changed


class NodeState(NamedTuple):
    """The state of a storage node, as far as there are events about it."""

    address: str
    process: str  # that registered last
    draining: bool
    is_empty: bool  # drained, and nothing is left


def subject_of(condition: Condition | ConditionInfo) -> str:
    """Return the name of a condition's subject."""
    parts = [
        f"log {condition.log}" if condition.log else "",
        f"stream {condition.stream}" if condition.stream else "",
        f"node {condition.node}" if condition.node else "",
    ]
    return ", ".join(filter(None, parts)) or "metadata"


def node_changes(
    before: Mapping[NodeId, NodeState], after: Mapping[NodeId, NodeState]
) -> Iterator[Change]:
    """Return the changes of storage nodes, except for absences, which are conditions."""
    for number in before.keys() - after.keys():
        yield Change("info", f"node {number}", "was removed")
    for number, node in after.items():
        subject = f"node {number}"
        if number not in before:
            yield Change("good", subject, f"joined at {node.address}")
        else:
            for severity, text in _node(before[number], node):
                yield Change(severity, subject, text)


def _node(old: NodeState, new: NodeState) -> Iterator[tuple[str, str]]:
    if new.process != old.process:
        yield "info", "was restarted"
    if new.draining != old.draining:
        yield "work", "is being drained" if new.draining else "is used again"
    if new.is_empty and not old.is_empty:
        yield "good", "is empty: it may be stopped"


def log_changes(old: LogInfo | None, new: LogInfo) -> Iterator[Change]:
    """Return the changes of a log; `old` is None if it is new."""
    subject = f"log {new.name}"
    if old is None:
        copies = "1 replica" if new.replicas == 1 else f"{new.replicas} replicas"
        text = f"was created: {new.protocol}, {copies}"
        yield Change("good", subject, text, new.name)
    else:
        for text in _log(old, new):
            yield Change("info", subject, text, new.name)


def log_deleted(log: LogInfo) -> Change:
    return Change("info", f"log {log.name}", "was deleted", log.name)


def _log(old: LogInfo, new: LogInfo) -> Iterator[str]:
    if len(new.segments) > len(old.segments):
        active = new.segments[-1]
        yield f"switched to {active.protocol}, from position {active.start:,} on"
    streams = {stream.id: stream for stream in old.streams}
    for number in sorted(streams.keys() - {stream.id for stream in new.streams}):
        yield f"stream {number} was removed"
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


_OVER: Final = MappingProxyType(
    {
        Kind.UNDER_REPLICATED: "no longer lacks copies",
        Kind.APPENDS_WAIT: "appends no longer wait",
        Kind.READS_WAIT: "reads no longer wait",
        Kind.STREAM_STOPPED: "is no longer stopped",
        Kind.STREAM_HELD: "is no longer sealed by an operator",
        Kind.NOT_RECOVERED: "the recovery has ended",
        Kind.REPAIR: "the repair has ended",
        Kind.NODE_AWAY: "is back",
        Kind.NODE_HELD_BACK: "is no longer held back",
        Kind.NODE_REPLACEMENT: "the replacement has ended",
        Kind.NODE_DRAINING: "is no longer drained",
        Kind.VOLUME_DRAINING: "the volume is no longer drained",
        Kind.REBUILD: "the rebuild has ended",
        Kind.NODE_AVOIDED: "is no longer avoided",
        Kind.CLOCK_SKEW: "the clock no longer differs",
        Kind.VOLUME_FULL: "the volume is no longer full",
        Kind.VOLUME_NEARLY_FULL: "the volume is no longer nearly full",
        Kind.METADATA_MEMBER_AWAY: "is back",
    }
)
"""What an event says when a condition is over, even if its log was deleted; for other kinds, their
name."""


def condition_changes(before: Iterable[Condition], after: Iterable[Condition]) -> Iterator[Change]:
    """Return the conditions that began, and those that ended."""
    old, new = ({_key(each): each for each in found} for found in (before, after))
    for key, each in new.items():
        if key not in old:
            yield Change(each.severity, subject_of(each), each.text, each.log)
    for key, each in old.items():
        if key not in new:
            text = _OVER.get(each.kind, f"{each.kind} is over")
            yield Change("good", subject_of(each), text, each.log)


def _key(condition: Condition) -> tuple[object, ...]:
    return condition.kind, condition.node, condition.volume, condition.log, condition.stream


# ---- what operators did


def _word(actions: Any, number: int) -> str:
    """Return the name of an action as in commands; a peer may send an unknown number."""
    known = number in actions.values()
    return str(actions.Name(number)).lower().replace("_", "-") if known else f"action {number}"


def _stream_words(request: pb.ChangeStream) -> str:
    action = _word(pb.ChangeStream.Action, request.action)
    stream = f" {request.log_stream_id}" if request.log_stream_id else ""
    return f"stream {action}{stream}" + (f" of log {request.log}" if request.log else "")


def _node_words(request: pb.ChangeNode) -> str:
    action = _word(pb.ChangeNode.Action, request.action)
    volume = f" --volume {request.volume}" if request.volume else ""
    return f"node {action} {request.storage_node_id}{volume}"


def _metadata_words(request: pb.ChangeMetadata) -> str:
    return f"metadata {_word(pb.ChangeMetadata.Action, request.action)} {request.member_id}"


_ACTIONS: Final[Mapping[str, Callable[[Any], str]]] = MappingProxyType(
    {
        "create_log": lambda request: f"log create {request.name}",
        "delete_log": lambda request: f"log delete {request.name}",
        "trim_log": lambda request: f"log trim {request.name}",
        "set_retention": lambda request: f"log retention {request.name}",
        "switch_log": lambda request: f"log switch {request.name}",
        "change_stream": _stream_words,
        "change_node": _node_words,
        "change_metadata": _metadata_words,
        "change_access": lambda request: "change of permissions",
        "create_token": lambda request: f"token create {request.name}",
    }
)
_OF_LOGS: Final = frozenset({"create_log", "delete_log", "trim_log", "set_retention", "switch_log"})


def action(kind: str, frame: pb.Frame, who: str, outcome: str) -> Change | None:
    """Return the event for an operator's request, or None if it is not recorded."""
    if kind not in _ACTIONS:
        return None
    request = getattr(frame, kind)
    if kind == "change_stream" and request.tell_only:
        return None
    log = request.name if kind in _OF_LOGS else getattr(request, "log", "")
    what = _ACTIONS[kind](request)
    if len(what) > ACTION_CHARS_MAX:
        what = f"{what[:ACTION_CHARS_MAX]}…"
    return Change("action", who, f"{what}{outcome}", log)
