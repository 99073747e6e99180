"""What a reader of a log wants done, and how it behaves. Pure words."""

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
    TRIM = "trim"  # there was something, and its time is over
    HOLE = "hole"  # nothing was acknowledged here
    BRIDGE = "bridge"  # the epoch ended before
    DATALOSS = "dataloss"  # there was something, and all its copies are gone


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask a node; it replaces the question before that it has not answered yet. The node may take
    its time while there is nothing to tell."""

    node: NodeId
    question: int
    request: Read


@dataclass(frozen=True, slots=True)
class Deliver:
    """The next entries: those of the record from `first` to `last`. It may have more of them, if
    reading begins or ends in its midst."""

    record: Record
    first: Lsn
    last: Lsn

    @property
    def skip(self) -> int:
        """How many entries of the record come before."""
        return self.first - self.record.first


@dataclass(frozen=True, slots=True)
class Gap:
    """Nothing is to be read from `first` to `last`, by anybody, for good."""

    first: Lsn
    last: Lsn
    kind: GapKind


@dataclass(frozen=True, slots=True)
class NeedMetadata:
    """The state of the log is needed with this epoch, or a later one, in it."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Tell when this time has come; it replaces the timer before."""

    at: float


@dataclass(frozen=True, slots=True)
class Finished:
    """All that was wanted is delivered, or the log has come to its end."""


Effect: TypeAlias = Ask | Deliver | Gap | NeedMetadata | SetTimer | Finished


class ReadSettings(NamedTuple):
    """Times are in seconds."""

    room_bytes: int = 8 * MIB  # for what is asked for, put in order, or waits for the consumer
    grace_s: float = 0.1  # for nodes that are late, when the others have answered
    graces: int = 2  # so often a node that stays late is waited for
    listed_s: float = 1.0  # a node that failed stays known as down so long; doubles each time
    listed_s_max: float = 60.0
    answers_until_well: int = 16  # after so many in a row it begins with listed_s again
    retry_s: float = 0.05  # before who failed, or had no news, is asked again; doubles each time
    retry_s_max: float = 5.0
    state_s_max: float = 1.0  # between questions for a log's state that has no epoch to read yet
    all_send_all: int = 256  # records, before single copy delivery is tried again
