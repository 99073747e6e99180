"""Conditions: everything about a cluster that operators should know, as one type. Pure.

If there is no condition, every acknowledged entry has all its copies, on connected nodes that have
reported them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from loomlog.types import NodeId, StreamId


class Severity(StrEnum):
    """The urgency of a condition, the most urgent first."""

    PROBLEM = "problem"  # entries are lost or cannot be read, or appends wait
    WARNING = "warning"  # all works, with fewer copies or less safety than wanted
    WORK = "work"  # in progress, and ends by itself


class Kind(StrEnum):
    """The kinds of conditions. Programs rely on these names: they do not change."""

    # logs
    UNDER_REPLICATED = "under-replicated"
    APPENDS_WAIT = "appends-wait"
    READS_WAIT = "reads-wait"
    DATA_LOST = "data-lost"
    ROUNDS_LOST = "rounds-lost"
    STREAM_STOPPED = "stream-stopped"
    STREAM_HELD = "stream-held"
    NOT_RECOVERED = "not-recovered"
    REPAIR = "repair"
    # nodes
    NODE_AWAY = "node-away"
    NODE_HELD_BACK = "node-held-back"
    NODE_TWICE = "node-twice"
    NODE_REPLACEMENT = "node-replacement"
    NODE_DRAINING = "node-draining"
    VOLUME_DRAINING = "volume-draining"
    REBUILD = "rebuild"
    NODE_AVOIDED = "node-avoided"
    CLOCK_SKEW = "clock-skew"
    VOLUME_MISSING = "volume-missing"
    VOLUME_FAILED = "volume-failed"
    VOLUME_FULL = "volume-full"
    VOLUME_NEARLY_FULL = "volume-nearly-full"
    STORE_CLOSED = "store-closed"
    DATA_DAMAGED = "data-damaged"
    DATA_REFUSED = "data-refused"
    DATA_LEFT_OVER = "data-left-over"
    CERTIFICATE_EXPIRES = "certificate-expires"  # also of a metadata repository
    # the metadata repository
    METADATA_WAITS = "metadata-waits"
    METADATA_ROLLED_BACK = "metadata-rolled-back"
    METADATA_DISK = "metadata-disk"
    METADATA_STORE = "metadata-store"
    METADATA_MEMBER_AWAY = "metadata-member-away"
    NODE_REFUSED = "node-refused"
    RETENTION_WAITS = "retention-waits"
    # reported by a newer node, and unknown to this metadata repository
    OTHER = "other"


LOG_KINDS: Final = frozenset(
    {
        Kind.UNDER_REPLICATED,
        Kind.APPENDS_WAIT,
        Kind.READS_WAIT,
        Kind.DATA_LOST,
        Kind.ROUNDS_LOST,
        Kind.STREAM_STOPPED,
        Kind.STREAM_HELD,
        Kind.NOT_RECOVERED,
        Kind.REPAIR,
    }
)

# Reasons why a node or one of its volumes takes no data.
DISK_KINDS: Final = frozenset(
    {
        Kind.VOLUME_MISSING,
        Kind.VOLUME_FAILED,
        Kind.VOLUME_FULL,
        Kind.VOLUME_NEARLY_FULL,
        Kind.STORE_CLOSED,
        Kind.OTHER,
    }
)

_SEVERITIES: Final = {
    Severity.PROBLEM: (
        Kind.APPENDS_WAIT,
        Kind.READS_WAIT,
        Kind.DATA_LOST,
        Kind.ROUNDS_LOST,
        Kind.NODE_HELD_BACK,
        Kind.VOLUME_FAILED,
        Kind.VOLUME_FULL,
        Kind.STORE_CLOSED,
        Kind.METADATA_WAITS,
        Kind.METADATA_ROLLED_BACK,
        Kind.METADATA_DISK,
        Kind.METADATA_STORE,
    ),
    Severity.WORK: (Kind.REPAIR, Kind.NODE_DRAINING, Kind.VOLUME_DRAINING, Kind.REBUILD),
}
_SEVERITY_OF: Final = {kind: severity for severity, kinds in _SEVERITIES.items() for kind in kinds}


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is not as it should be, and its subject. Without a node and a log, that is the
    metadata repository."""

    kind: Kind
    text: str  # one sentence, without its subject
    help: str = ""  # what to do, with the command if there is one; "": nothing, or `text` says it
    node: NodeId = 0
    volume: str = ""
    log: str = ""
    stream: StreamId = 0
    records: int | None = None  # how many are affected; None: not known, or not about records
    bytes: int | None = None

    @property
    def severity(self) -> Severity:
        return severity_of(self.kind)

    @property
    def sentence(self) -> str:
        """The condition, and what to do about it."""
        return f"{self.text}: {self.help}" if self.help else self.text


def severity_of(kind: Kind) -> Severity:
    return _SEVERITY_OF.get(kind, Severity.WARNING)


def in_order(conditions: Iterable[Condition]) -> list[Condition]:
    """Return the conditions sorted by severity, the most urgent first."""
    order = list(Severity)
    return sorted(conditions, key=lambda each: order.index(each.severity))


class Shortage(NamedTuple):
    """Entries of a stream that have fewer copies than wanted."""

    records: int | None  # at most; positions, if entries are not counted. None: not known
    bytes: int | None  # approximately; None: not known
    reasons: Sequence[str]
    help: str = ""


def under_replicated(log: str, shortages: Sequence[Shortage]) -> list[Condition]:
    """Return the condition of a log with these shortages, which have no entry in common; [] if no
    entry lacks copies."""
    short = [shortage for shortage in shortages if shortage.records != 0]
    if not short:
        return []
    size, records = _sum(s.bytes for s in short), _sum(s.records for s in short)
    entries = "entries" if records is None else f"up to {records:,} entries"
    reasons = "; ".join(dict.fromkeys(each for shortage in short for each in shortage.reasons))
    return [
        Condition(
            Kind.UNDER_REPLICATED,
            f"{entries} have fewer copies than wanted: {reasons}",
            "; ".join(dict.fromkeys(shortage.help for shortage in short if shortage.help)),
            log=log,
            records=records,
            bytes=size,
        )
    ]


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum; None if a number is not known."""
    listed = list(numbers)
    known = [number for number in listed if number is not None]
    return sum(known) if len(known) == len(listed) else None
