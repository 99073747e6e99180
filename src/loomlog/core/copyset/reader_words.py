"""Effects and options of a reader of a log. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from loomlog.core.copyset.lsn import Epoch, Lsn
from loomlog.core.copyset.messages import Read
from loomlog.core.copyset.record import Record
from loomlog.limits import MIB
from loomlog.types import NodeId


class GapKind(StrEnum):
    TRIM = "trim"  # records were here and are trimmed
    HOLE = "hole"  # nothing was acknowledged here
    BRIDGE = "bridge"  # the epoch ended before
    DATALOSS = "dataloss"  # records were here, and all copies are gone


@dataclass(frozen=True, slots=True)
class AskNode:
    """Ask a node; this replaces an earlier question that it has not answered. The node may wait
    while it has nothing to send."""

    node: NodeId
    question: int
    request: Read


@dataclass(frozen=True, slots=True)
class Deliver:
    """The next entries: those of the record from `first` to `last`. The record may have more, if
    reading begins or ends within it."""

    record: Record
    first: Lsn
    last: Lsn

    @property
    def skip(self) -> int:
        """The number of entries of the record to skip."""
        return self.first - self.record.first


@dataclass(frozen=True, slots=True)
class Gap:
    """There is nothing to read from `first` to `last`, for good."""

    first: Lsn
    last: Lsn
    kind: GapKind
    exact: bool = True  # False: of a loss whose extent is unknown


@dataclass(frozen=True, slots=True)
class NeedMetadata:
    """The state of the log is needed, with this epoch or a later one in it."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Wake the reader at this time; this replaces an earlier timer."""

    at: float


@dataclass(frozen=True, slots=True)
class Finished:
    """Everything wanted is delivered, or the log has ended."""


Effect: TypeAlias = AskNode | Deliver | Gap | NeedMetadata | SetTimer | Finished


class ReadSettings(NamedTuple):
    """Settings of a reader. Times are in seconds."""

    room_bytes: int = 8 * MIB  # for what is asked for, put in order, or waits for the consumer
    grace_s: float = 0.1  # for nodes that are late, when the others have answered
    graces: int = 2  # times that a late node is waited for
    listed_s: float = 1.0  # a node that failed stays known as down this long; doubles each time
    listed_s_max: float = 60.0
    answers_until_well: int = 16  # after this many in a row it begins with listed_s again
    retry_s: float = 0.05  # before a node without an answer or news is asked again; doubles
    retry_s_max: float = 5.0
    state_s_max: float = 1.0  # between questions for a log's state that has no epoch to read yet
    all_send_all: int = 256  # records, before single copy delivery is tried again
