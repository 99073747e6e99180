"""Effects that a sequencer requests; its driver carries them out in order. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from loomlog.core.copyset.lsn import Epoch, Lsn
from loomlog.core.copyset.messages import Amend, Release, Store
from loomlog.types import NodeId

Token: TypeAlias = object  # by which the appender recognises its record


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request to a node. Answers to stores and amendments name the LSN and wave."""

    node: NodeId
    request: Store | Amend | Release


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The record is on R nodes and stays at [lsn, last] for good."""

    token: Token
    lsn: Lsn
    last: Lsn
    timestamp_us: int


class Rejection(StrEnum):
    BUSY = "too many records are under way"
    UNAVAILABLE = "too few storage nodes are there"
    STEPPED_DOWN = "the log has another sequencer"
    OFFSETS_USED_UP = "the epoch has no more room"


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
    """`node` has a record at `lsn` that this sequencer did not store: its epoch was taken twice.
    This one does nothing more."""

    node: NodeId
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class Drained:
    """Everything that could be stored is. This one does nothing more."""


@dataclass(frozen=True, slots=True)
class Reactivate:
    """The log needs a new epoch; this sequencer finishes what is under way."""


Effect: TypeAlias = (
    Send | Acknowledge | Reject | LeaveOpen | StepDown | Contradicted | Drained | Reactivate
)
