"""What a sequencer wants done. Pure words; whoever runs it does them, in order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from loomlog.core.copyset.lsn import Epoch, Lsn
from loomlog.core.copyset.messages import Amend, Release, Store
from loomlog.types import NodeId

Token: TypeAlias = object  # by which whoever appends knows it again


@dataclass(frozen=True, slots=True)
class Send:
    """The answer to a store or an amendment comes back with its LSN and wave."""

    node: NodeId
    request: Store | Amend | Release


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The record is on R nodes, and stays at [lsn, last] for ever."""

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
    """Whether the record is at `lsn` is up to recovery."""

    token: Token
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class StepDown:
    """Another sequencer is there, of an epoch above `seal`. Nothing more comes from this one."""

    seal: Epoch


@dataclass(frozen=True, slots=True)
class Drained:
    """All that could be stored is. Nothing more comes from this one."""


@dataclass(frozen=True, slots=True)
class Reactivate:
    """The log needs a new epoch; this sequencer finishes what is under way."""


Effect: TypeAlias = Send | Acknowledge | Reject | LeaveOpen | StepDown | Drained | Reactivate
