"""How operations end, besides `Found`. Pure."""

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
    """Try again, after a look for a newer projection; whether anything was written is unknown."""

    reason: str
    epoch: int = 0  # the newest that was met; 0: none newer
    untouched: bool = False  # of an append: this attempt has certainly written nothing


Stop: TypeAlias = Trimmed | Interrupted
Reading: TypeAlias = Found | NotWritten | Stop


def stopped(answer: Answer) -> Stop:
    """What an answer that an operation cannot go on with means for its caller."""
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
    """Of the answers that are not what was expected, the one that says most."""
    stops = [stopped(answer) for answer in answers if not isinstance(answer, expected)]
    return min(stops, key=_is_vague, default=None)


def _is_vague(stop: Stop) -> bool:
    """A newer epoch says more than a silence."""
    return isinstance(stop, Interrupted) and not stop.epoch
