"""Effects that a sequencer or a reader requests; its driver carries them out in order. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from loomlog.core.copyset.messages import Amend, Read, Release, Store
from loomlog.core.copyset.record import Epoch, Lsn, Record
from loomlog.types import ShardId

Token: TypeAlias = object  # by which the appender recognises its record


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request to a shard. Answers to stores and amendments name the LSN and wave."""

    shard: ShardId
    request: Store | Amend | Release


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The record is on R nodes and stays at [lsn, last] for good."""

    token: Token
    lsn: Lsn
    last: Lsn
    timestamp_us: int


class Rejection(StrEnum):
    """The reason why a sequencer does not take a record."""

    BUSY = "too many records are under way"
    UNAVAILABLE = "too few storage nodes are there"
    FULL = "too few storage nodes have room"
    STEPPED_DOWN = "the log has another sequencer"
    OFFSETS_USED_UP = "the epoch has no more room"
    CONFLICT = "other records stand behind the expected position"
    BEYOND = "the expected position is not given yet"


@dataclass(frozen=True, slots=True)
class Reject:
    """The record is nowhere, and never will be."""

    token: Token
    why: Rejection


@dataclass(frozen=True, slots=True)
class LeaveOpen:
    """Recovery decides whether the record is at `lsn`."""

    token: Token
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class StepDown:
    """There is a sequencer of an epoch above `seal`. This one does nothing more."""

    seal: Epoch


@dataclass(frozen=True, slots=True)
class Contradicted:
    """`shard` has a record at `lsn` that this sequencer did not store: its epoch was taken twice.
    This one does nothing more."""

    shard: ShardId
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class Drained:
    """Everything that could be stored is. This one does nothing more."""


SequencerEffect: TypeAlias = (
    Send | Acknowledge | Reject | LeaveOpen | StepDown | Contradicted | Drained
)


class GapKind(StrEnum):
    """The reason why there is nothing to read."""

    TRIM = "trim"  # records were here and are trimmed
    HOLE = "hole"  # nothing was acknowledged here
    BRIDGE = "bridge"  # the epoch ended before
    DATALOSS = "dataloss"  # records were here, and all copies are gone


@dataclass(frozen=True, slots=True)
class AskShard:
    """Ask a shard; this replaces an earlier question that it has not answered. It may wait while it
    has nothing to send."""

    shard: ShardId
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
class ReadGap:
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


ReaderEffect: TypeAlias = AskShard | Deliver | ReadGap | NeedMetadata | SetTimer | Finished
