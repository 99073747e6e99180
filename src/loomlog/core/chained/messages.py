"""What the operations ask, and what they are answered. Pure words; the wire has its own.

A request names the epoch it is meant for. A replica serves the epoch it is sealed at and no other.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias, TypeVar

from loomlog.core.chained.block import Block, Extent
from loomlog.core.chained.projection import Projection, Replica
from loomlog.types import Glsn

# ---- to a replica


class Write(NamedTuple):
    """Stored, also when this very block is there already; Written if another is in its place."""

    epoch: int
    block: Block


class Read(NamedTuple):
    """Found, the block that covers the position; or Missing."""

    epoch: int
    position: Glsn


class Before(NamedTuple):
    """Found, the last block that begins at the position or before it; or Missing."""

    epoch: int
    position: Glsn


class List(NamedTuple):
    """Listed: extents from the first that ends behind `position` on, at most `blocks_max`."""

    epoch: int
    position: Glsn
    blocks_max: int


class Fetch(NamedTuple):
    """Fetched: like List, but the blocks themselves, until they have this many bytes."""

    epoch: int
    position: Glsn
    bytes_max: int


class Check(NamedTuple):
    """Done: the epoch still holds here."""

    epoch: int


class Trim(NamedTuple):
    """Done: positions up to this one are gone."""

    epoch: int
    position: Glsn


class Seal(NamedTuple):
    """SealedAt: from now on this epoch is served, and nothing older."""

    epoch: int


class Create(NamedTuple):
    """Done: the replica is there, empty, and serves no epoch yet. Refused if it was there."""


class Copy(NamedTuple):
    """Stored: a block of a tail, to a replica that is going to join. Without an epoch: what a tail
    holds is decided for good."""

    block: Block


class Remove(NamedTuple):
    """Done: the replica is gone. It must be in no projection."""


# ---- to the sequencer and the metadata repository


class Next(NamedTuple):
    """HandedOut, a new ticket."""

    epoch: int
    count: int  # type: ignore[assignment]  # nobody misses tuple.count


class Holding(NamedTuple):
    """HandedOut, the ticket that covers the position; Forgotten; or Beyond: not handed out yet."""

    epoch: int
    position: Glsn


class FindEnd(NamedTuple):
    """Beyond: the first position that is not handed out."""

    epoch: int


class Current(NamedTuple):
    """InForce: the newest projection."""


class Swap(NamedTuple):
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


class Stored(NamedTuple):
    pass


class Written(NamedTuple):
    """Another block is in the way."""


class Found(NamedTuple):
    block: Block


class Missing(NamedTuple):
    trimmed: Glsn  # all up to here is gone


class TrimmedTo(NamedTuple):
    position: Glsn


class Listed(NamedTuple):
    extents: Sequence[Extent]
    more: bool


class Fetched(NamedTuple):
    blocks: Sequence[Block]
    more: bool


class SealedAt(NamedTuple):
    end: Glsn  # behind the last block, or what was trimmed; 0 if there was never any
    trimmed: Glsn


class Done(NamedTuple):
    pass


class EpochOver(NamedTuple):
    """It is sealed at this newer epoch: learn of the newest projection."""

    epoch: int


class Refused(NamedTuple):
    """Nothing was done, and it will not be: the replica is not here, or its disk failed."""

    reason: str


class Lost(NamedTuple):
    """No answer: it may have happened, or may happen later."""


class Ticket(NamedTuple):
    """Positions that the sequencer gave to one writer."""

    first: Glsn
    count: int  # type: ignore[assignment]  # nobody misses tuple.count
    epoch: int

    @property
    def end(self) -> Glsn:
        return self.first + self.count


class HandedOut(NamedTuple):
    ticket: Ticket


class Forgotten(NamedTuple):
    pass


class Beyond(NamedTuple):
    end: Glsn


class InForce(NamedTuple):
    projection: Projection


class Swapped(NamedTuple):
    pass


Answer: TypeAlias = (
    Stored
    | Written
    | Found
    | Missing
    | TrimmedTo
    | Listed
    | Fetched
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
