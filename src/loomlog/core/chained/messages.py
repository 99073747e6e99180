"""Requests of operations, the answers, and what they mean for an operation. Pure.

The docstring of a request says how it is answered. A request names the epoch it is meant for; a
replica serves the epoch it is sealed at and no other. They are not tuples: `Stored()` must not
equal `Written()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from loomlog.core import requests
from loomlog.core.chained.chain import Block, Extent, Projection, Replica, Unheard
from loomlog.core.requests import Ask, Lost, Outcome, Service
from loomlog.errors import Corrupt
from loomlog.types import Glsn

LIST_MAX: Final = 4096  # extents in one answer; fits a frame's header
ACKNOWLEDGED_MAX: Final = 64  # addresses that a writer tells at a time; the same holds for these

# ---- to a replica


@dataclass(frozen=True, slots=True)
class Write:
    """Stored, also if this block is there already; Written if another is in its place."""

    epoch: int
    block: Block
    proof: bytes = b""  # of the ticket for this block; empty: there is none


@dataclass(frozen=True, slots=True)
class Read:
    """Found, the block that covers the position; or Missing."""

    epoch: int
    position: Glsn
    with_acknowledged: bool = False  # with what its writer told with it


@dataclass(frozen=True, slots=True)
class Before:
    """Found, the last block that begins at the position or before it; or Missing."""

    epoch: int
    position: Glsn


@dataclass(frozen=True, slots=True)
class List:
    """Listed: extents from the first that ends behind `position`, at most `blocks_max`. With
    `before_us` only as long as all entries are older than that time."""

    epoch: int
    position: Glsn
    blocks_max: int
    before_us: int | None = None
    without_junk: bool = False
    with_acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """MeasuredBlocks: those that begin from `position` to `last`, at most `blocks_max`."""

    epoch: int
    position: Glsn
    last: Glsn
    blocks_max: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetched: like List, but the blocks themselves, until they have this many bytes. With
    `salvage` damaged blocks are left out."""

    epoch: int
    position: Glsn
    bytes_max: int
    salvage: bool = False
    last: Glsn = 0  # blocks that end behind it are left out; 0: none are


@dataclass(frozen=True, slots=True)
class Check:
    """Done: the epoch still holds here."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Done: it is stored of the blocks at these addresses that they were acknowledged, except of
    those that are trimmed. Missing: the same, but some are not there. A writer says so if it has no
    more blocks that could tell it."""

    epoch: int
    addresses: tuple[Glsn, ...]


@dataclass(frozen=True, slots=True)
class Trim:
    """Done: positions up to this one are deleted."""

    epoch: int
    position: Glsn


@dataclass(frozen=True, slots=True)
class Seal:
    """SealedAt: from now on this epoch is served, and no older one. With `salvage` also by a
    replica that is an older copy: no other has more, and what it has is copied."""

    epoch: int
    salvage: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """Done: the replica exists, is empty and serves no epoch yet. Refused if it existed."""


@dataclass(frozen=True, slots=True)
class Pull:
    """Pulled: the joining replica has what its source fetched; else the answer of the source. With
    `salvage` damaged blocks are left out, and blocks that were copied from another source stay."""

    epoch: int  # that the source serves
    source: Replica
    position: Glsn
    bytes_max: int
    salvage: bool = False
    last: Glsn = 0  # as in Fetch


@dataclass(frozen=True, slots=True)
class Copy:
    """Stored: a block for a replica that pulls. It has no epoch: blocks at a tail are decided."""

    block: Block


@dataclass(frozen=True, slots=True)
class Remove:
    """Done: the replica is deleted. It must be in no projection."""


# ---- to the sequencer and the metadata repository


@dataclass(frozen=True, slots=True)
class Next:
    """HandedOut, a new ticket; Beyond: it would not begin directly behind the expected position."""

    epoch: int
    count: int
    expected: Glsn | None = None  # None: any
    proves: bool = True  # the proof of the ticket will be shown with the block


@dataclass(frozen=True, slots=True)
class FindTicket:
    """HandedOut, the ticket that covers the position; Forgotten; or Beyond: not handed out yet."""

    epoch: int
    position: Glsn


@dataclass(frozen=True, slots=True)
class FindEnd:
    """Beyond: the first position that is not handed out. Asked of a replica: the first behind its
    last block or its trim; 0 if there never was any."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Current:
    """InForce: the newest projection."""


@dataclass(frozen=True, slots=True)
class Renew:
    """InForce, the newest projection that can be learned; if it is not newer, after a pause."""

    epoch: int
    met: int  # the newest epoch named in answers; 0: none
    attempts: int  # failed before; determine the length of the pause


@dataclass(frozen=True, slots=True)
class Swap:
    """Swapped if the previous epoch was in force, else InForce with the newer projection. The
    replicas that the new epoch did without are noted with it."""

    projection: Projection
    unheard: tuple[Unheard, ...] = ()


Request: TypeAlias = (
    Write
    | Read
    | Before
    | List
    | Measure
    | Fetch
    | Check
    | Acknowledge
    | Trim
    | Seal
    | Create
    | Pull
    | Copy
    | Remove
    | Next
    | FindTicket
    | FindEnd
    | Current
    | Renew
    | Swap
)


ChainedAsk: TypeAlias = Ask[Replica | Service, Request]

# ---- answers


@dataclass(frozen=True, slots=True)
class Stored:
    """The block is there."""


@dataclass(frozen=True, slots=True)
class Written:
    """Another block is in the way."""


@dataclass(frozen=True, slots=True)
class Found:
    """The block that was asked for."""

    block: Block


@dataclass(frozen=True, slots=True)
class Missing:
    """No block covers the position."""

    trimmed: Glsn  # all up to here is gone


@dataclass(frozen=True, slots=True)
class TrimmedTo:
    """The position was trimmed, with all up to this one."""

    position: Glsn


@dataclass(frozen=True, slots=True)
class Listed:
    """The extents of blocks, in order."""

    extents: Sequence[Extent]
    more: bool
    young: Glsn = 0  # where the block behind them begins, if it is too young to be listed
    acknowledged: Sequence[Glsn] = ()  # addresses that their writers told, if that was asked


@dataclass(frozen=True, slots=True)
class MeasuredBlocks:
    """The size of the blocks that begin up to a position."""

    through: Glsn
    size: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """Blocks, in order."""

    blocks: Sequence[Block]
    more: bool


@dataclass(frozen=True, slots=True)
class Pulled:
    """The replica has stored a part of what it pulls."""

    end: Glsn  # it has all that its source had from the position to here
    size: int  # of the batches
    more: bool


@dataclass(frozen=True, slots=True)
class SealedAt:
    """The replica is sealed; this is what it has."""

    end: Glsn  # behind the last block, or what was trimmed; 0 if there was never any
    trimmed: Glsn
    life: int = 0  # of its node


@dataclass(frozen=True, slots=True)
class Done:
    """The request was carried out, or the epoch holds."""


@dataclass(frozen=True, slots=True)
class EpochOver:
    """The replica is sealed at this newer epoch: get the newest projection."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was or will be done: no such replica, a failed or slow disk, an invalid request."""

    reason: str


class Ticket(NamedTuple):
    """Positions that the sequencer gave to one writer."""

    first: Glsn
    count: int  # type: ignore[assignment]  # nobody misses tuple.count
    epoch: int
    proof: bytes = b""  # that it was given, for the replicas; empty: nobody needs it

    @property
    def end(self) -> Glsn:
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class HandedOut:
    """The ticket of the positions."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The position was handed out, but nobody remembers with which ticket."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """Positions from `end` on are not handed out, or not written."""

    end: Glsn


@dataclass(frozen=True, slots=True)
class InForce:
    """The newest projection."""

    projection: Projection


@dataclass(frozen=True, slots=True)
class Swapped:
    """The projection is in force."""


Answer: TypeAlias = (
    Stored
    | Written
    | Found
    | Missing
    | TrimmedTo
    | Listed
    | MeasuredBlocks
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

# Yields requests that are sent all at once, and gets their answers in the same order.
Steps: TypeAlias = requests.Steps[list[ChainedAsk], list[Answer], Outcome]


@dataclass(frozen=True, slots=True)
class NotWritten:
    """Nothing is there, and nothing was when the operation began."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Positions up to this one are gone."""

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
