"""Outcomes of operations, besides `Found`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from loomlog.core.chained.messages import (
    Answer,
    EpochOver,
    Found,
    Refused,
    TrimmedTo,
    Written,
)
from loomlog.errors import Corrupt
from loomlog.types import Glsn


@dataclass(frozen=True, slots=True)
class NotWritten:
    """Nothing is there, and nothing was when the operation began."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    position: Glsn


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Look for a newer projection and try again; it is unknown whether anything was written."""

    reason: str
    epoch: int = 0  # the newest epoch seen; 0: none newer
    untouched: bool = False  # of an append: this attempt has certainly written nothing


Stop: TypeAlias = Trimmed | Interrupted
Reading: TypeAlias = Found | NotWritten | Stop


def stopped(answer: Answer) -> Stop:
    """Return what an unexpected answer means for the caller of an operation."""
    match answer:
        case TrimmedTo(position):
            return Trimmed(position)
        case EpochOver(epoch):
            return Interrupted(f"epoch {epoch} has begun", epoch)
        case Refused(reason):
            return Interrupted(reason)
        case Written():
            raise Corrupt("two replicas of a chain hold different blocks at one address")
    return Interrupted("no answer")


def first_stop(answers: Iterable[Answer], *expected: type[Answer]) -> Stop | None:
    """Return the most telling of the answers that were not expected, if there are any."""
    stops = [stopped(answer) for answer in answers if not isinstance(answer, expected)]
    return min(stops, key=_is_vague, default=None)


def _is_vague(stop: Stop) -> bool:
    """Return whether it is less informative than a newer epoch."""
    return isinstance(stop, Interrupted) and not stop.epoch
