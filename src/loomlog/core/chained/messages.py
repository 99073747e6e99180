"""What the operations ask, and what they are answered. Pure words; the wire has its own.

A request names the epoch it is meant for. A replica serves the epoch it is sealed at and no other.
They are no tuples: `Stored()` must not equal `Written()`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias, TypeVar

from loomlog.core.chained.block import Block, Extent
from loomlog.core.chained.projection import Projection, Replica
from loomlog.types import Glsn

# ---- to a replica


@dataclass(frozen=True, slots=True)
class Write:
    """Stored, also when this very block is there already; Written if another is in its place."""

    epoch: int
    block: Block


@dataclass(frozen=True, slots=True)
class Read:
    """Found, the block that covers the position; or Missing."""

    epoch: int
    position: Glsn


@dataclass(frozen=True, slots=True)
class Before:
    """Found, the last block that begins at the position or before it; or Missing."""

    epoch: int
    position: Glsn


@dataclass(frozen=True, slots=True)
class List:
    """Listed: extents from the first that ends behind `position` on, at most `blocks_max`."""

    epoch: int
    position: Glsn
    blocks_max: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetched: like List, but the blocks themselves, until they have this many bytes."""

    epoch: int
    position: Glsn
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Check:
    """Done: the epoch still holds here."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Trim:
    """Done: positions up to this one are gone."""

    epoch: int
    position: Glsn


@dataclass(frozen=True, slots=True)
class Seal:
    """SealedAt: from now on this epoch is served, and nothing older."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Create:
    """Done: the replica is there, empty, and serves no epoch yet. Refused if it was there."""


@dataclass(frozen=True, slots=True)
class Pull:
    """Pulled: the replica, which is going to join, has what a Fetch of its source gave; or whatever
    else the source answered."""

    epoch: int  # that the source serves
    source: Replica
    position: Glsn
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Stored: a block of its source, to a replica that pulls. Without an epoch: what a tail holds
    is decided for good."""

    block: Block


@dataclass(frozen=True, slots=True)
class Remove:
    """Done: the replica is gone. It must be in no projection."""


# ---- to the sequencer and the metadata repository


@dataclass(frozen=True, slots=True)
class Next:
    """HandedOut, a new ticket."""

    epoch: int
    count: int


@dataclass(frozen=True, slots=True)
class Holding:
    """HandedOut, the ticket that covers the position; Forgotten; or Beyond: not handed out yet."""

    epoch: int
    position: Glsn


@dataclass(frozen=True, slots=True)
class FindEnd:
    """Beyond: the first position that is not handed out. Of a replica: the first behind its last
    block, or behind what was trimmed; 0 if there was never any."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Current:
    """InForce: the newest projection."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Swapped, if a projection of the epoch before was in force; else InForce, the newer one."""

    projection: Projection


Request: TypeAlias = (
    Write
    | Read
    | Before
    | List
    | Fetch
    | Check
    | Trim
    | Seal
    | Create
    | Pull
    | Copy
    | Remove
    | Next
    | Holding
    | FindEnd
    | Current
    | Swap
)


class Service(Enum):
    SEQUENCER = "sequencer"
    METADATA = "metadata"


class Ask(NamedTuple):
    target: Replica | Service
    request: Request


# ---- answers


@dataclass(frozen=True, slots=True)
class Stored:
    pass


@dataclass(frozen=True, slots=True)
class Written:
    """Another block is in the way."""


@dataclass(frozen=True, slots=True)
class Found:
    block: Block


@dataclass(frozen=True, slots=True)
class Missing:
    trimmed: Glsn  # all up to here is gone


@dataclass(frozen=True, slots=True)
class TrimmedTo:
    position: Glsn


@dataclass(frozen=True, slots=True)
class Listed:
    extents: Sequence[Extent]
    more: bool


@dataclass(frozen=True, slots=True)
class Fetched:
    blocks: Sequence[Block]
    more: bool


@dataclass(frozen=True, slots=True)
class Pulled:
    end: Glsn  # it has all that its source had from the position to here
    size: int  # of the batches
    more: bool


@dataclass(frozen=True, slots=True)
class SealedAt:
    end: Glsn  # behind the last block, or what was trimmed; 0 if there was never any
    trimmed: Glsn


@dataclass(frozen=True, slots=True)
class Done:
    pass


@dataclass(frozen=True, slots=True)
class EpochOver:
    """It is sealed at this newer epoch: learn of the newest projection."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was done, and it will not be: the replica is not here, its disk failed or is too
    slow, or the request makes no sense."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer: it may have happened, or may happen later."""


class Ticket(NamedTuple):
    """Positions that the sequencer gave to one writer."""

    first: Glsn
    count: int  # type: ignore[assignment]  # nobody misses tuple.count
    epoch: int

    @property
    def end(self) -> Glsn:
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class HandedOut:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Forgotten:
    pass


@dataclass(frozen=True, slots=True)
class Beyond:
    end: Glsn


@dataclass(frozen=True, slots=True)
class InForce:
    projection: Projection


@dataclass(frozen=True, slots=True)
class Swapped:
    pass


Answer: TypeAlias = (
    Stored
    | Written
    | Found
    | Missing
    | TrimmedTo
    | Listed
    | Fetched
    | Pulled
    | SealedAt
    | Done
    | EpochOver
    | Refused
    | Lost
    | HandedOut
    | Forgotten
    | Beyond
    | InForce
    | Swapped
)

Outcome = TypeVar("Outcome")

# An operation: yields what to ask, all at once; is sent the answers, in the order of the questions.
Steps: TypeAlias = Generator[list[Ask], list[Answer], Outcome]
