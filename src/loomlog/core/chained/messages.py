"""Requests of operations, their answers, and what an answer means for an operation. Pure.

The docstring of a request describes its answers. Most requests name an epoch, and a replica serves
only the epoch at which it is sealed. Answers are not tuples, because `Stored()` must not equal
`Written()`.
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
ACKNOWLEDGED_MAX: Final = 64  # addresses in one report of a writer; fits a frame's header, too

# ---- to a replica


@dataclass(frozen=True, slots=True)
class Write:
    """Stored if this block is there, now or before; Written if another block is in its place."""

    epoch: int
    block: Block
    proof: bytes = b""  # of the block's ticket; empty: there is none


@dataclass(frozen=True, slots=True)
class Read:
    """Found with the block that covers the position; or Missing."""

    epoch: int
    position: Glsn
    with_acknowledged: bool = False  # include `Block.acknowledged`


@dataclass(frozen=True, slots=True)
class Before:
    """Found with the last block that begins at or before the position; or Missing."""

    epoch: int
    position: Glsn


@dataclass(frozen=True, slots=True)
class List:
    """Listed with the extents of blocks, from the first that ends above `position`, at most
    `blocks_max`. With `before_us`, the list ends before the first block with an entry that is not
    older."""

    epoch: int
    position: Glsn
    blocks_max: int
    before_us: int | None = None
    without_junk: bool = False
    with_acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """MeasuredBlocks of the blocks that begin from `position` to `last`, at most `blocks_max`."""

    epoch: int
    position: Glsn
    last: Glsn
    blocks_max: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetched with blocks, from the first that ends above `position`, until they have this many
    bytes. With `salvage`, damaged blocks are left out."""

    epoch: int
    position: Glsn
    bytes_max: int
    salvage: bool = False
    last: Glsn = 0  # blocks that end above it are left out; 0: none are


@dataclass(frozen=True, slots=True)
class Check:
    """Done if the replica still serves this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Store that the blocks at these addresses were acknowledged. Sent by a writer that has no
    further block to report it with. Done, or Missing if some of the blocks are neither there nor
    trimmed."""

    epoch: int
    addresses: tuple[Glsn, ...]


@dataclass(frozen=True, slots=True)
class Trim:
    """Done when positions up to this one are deleted."""

    epoch: int
    position: Glsn


@dataclass(frozen=True, slots=True)
class Seal:
    """SealedAt: the replica serves this epoch from now on, and no older one. With `salvage`, a
    replica that is an older copy of itself obeys, too: its chain is lost, and what it has is
    copied."""

    epoch: int
    salvage: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """Done: the replica exists, is empty and serves no epoch yet. Refused if it existed before."""


@dataclass(frozen=True, slots=True)
class Pull:
    """Pulled: the replica has stored blocks that it fetched from the source; otherwise the answer
    of the source. With `salvage`, damaged blocks are left out, and blocks that were copied from
    another source stay."""

    epoch: int  # the epoch that the source serves
    source: Replica
    position: Glsn
    bytes_max: int
    salvage: bool = False
    last: Glsn = 0  # as in Fetch


@dataclass(frozen=True, slots=True)
class Copy:
    """Stored: a block for a replica that pulls. It needs no epoch: blocks at a tail are decided."""

    block: Block


@dataclass(frozen=True, slots=True)
class Remove:
    """Done: the replica is deleted. It must be in no projection."""


# ---- to the sequencer and the metadata repository


@dataclass(frozen=True, slots=True)
class Next:
    """HandedOut with a new ticket; Beyond if it would not begin directly after `expected`."""

    epoch: int
    count: int
    expected: Glsn | None = None  # None: any
    proves: bool = True  # the writer will show the ticket's proof with the block


@dataclass(frozen=True, slots=True)
class FindTicket:
    """HandedOut with the ticket that covers the position; Forgotten; or Beyond if the position is
    not handed out yet."""

    epoch: int
    position: Glsn


@dataclass(frozen=True, slots=True)
class FindEnd:
    """Beyond with the first position that is not handed out. A replica answers with the first
    position after its last block or its trim; 0 if it never had any."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Current:
    """InForce with the newest projection."""


@dataclass(frozen=True, slots=True)
class Renew:
    """InForce with the newest projection that is known; after a pause if it is not newer."""

    epoch: int
    met: int  # the newest epoch named in answers; 0: none
    attempts: int  # failed ones so far; they determine the length of the pause


@dataclass(frozen=True, slots=True)
class Swap:
    """Swapped if the previous epoch was in force, else InForce with the newer projection. `unheard`
    are recorded along with it."""

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
    """The replica has the block."""


@dataclass(frozen=True, slots=True)
class Written:
    """Another block is in its place."""


@dataclass(frozen=True, slots=True)
class Found:
    """The requested block."""

    block: Block


@dataclass(frozen=True, slots=True)
class Missing:
    """No block covers the position."""

    trimmed: Glsn  # everything up to here is trimmed


@dataclass(frozen=True, slots=True)
class TrimmedTo:
    """The requested position was trimmed, along with everything up to this one."""

    position: Glsn


@dataclass(frozen=True, slots=True)
class Listed:
    """The extents of blocks, in order."""

    extents: Sequence[Extent]
    more: bool
    young: Glsn = 0  # where the next block begins, if it is too young to be listed
    acknowledged: Sequence[Glsn] = ()  # `Block.acknowledged` of all of them, if requested


@dataclass(frozen=True, slots=True)
class MeasuredBlocks:
    """The total size of the blocks that begin up to `through`."""

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

    end: Glsn  # it has all blocks that its source had from the requested position to here
    size: int  # of the batches, in bytes
    more: bool


@dataclass(frozen=True, slots=True)
class SealedAt:
    """The replica is sealed, and has this."""

    end: Glsn  # one past the last block or the trim; 0: it never had any
    trimmed: Glsn
    life: int = 0  # of its node


@dataclass(frozen=True, slots=True)
class Done:
    """The request was carried out."""


@dataclass(frozen=True, slots=True)
class EpochOver:
    """The replica is sealed at this newer epoch: get the newest projection."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was or will be done: the replica does not exist, its disk has failed or is slow, or
    the request is invalid."""

    reason: str


class Ticket(NamedTuple):
    """Positions that the sequencer gave to one writer."""

    first: Glsn
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    epoch: int
    proof: bytes = b""  # proves to replicas that the ticket was given; empty: not needed

    @property
    def end(self) -> Glsn:
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class HandedOut:
    """The ticket of the positions."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The position was handed out, but the sequencer has forgotten the ticket."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """Positions from `end` on are not handed out (sequencer) or not written (replica)."""

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

# Yields requests that are sent concurrently, and receives their answers in the same order.
Steps: TypeAlias = requests.Steps[list[ChainedAsk], list[Answer], Outcome]


@dataclass(frozen=True, slots=True)
class NotWritten:
    """Nothing is written there, and nothing was when the operation began."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Positions up to this one are trimmed."""

    position: Glsn


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The operation was interrupted, and may have written something: get the newest projection and
    try again."""

    reason: str
    epoch: int = 0  # the newest epoch seen; 0: none newer
    untouched: bool = False  # of an append: this attempt has certainly written nothing


Stop: TypeAlias = Trimmed | Interrupted
Reading: TypeAlias = Found | NotWritten | Stop


def stopped(answer: Answer) -> Stop:
    """Return the outcome of an operation that an unexpected answer ends."""
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
    """Return the most informative outcome of the unexpected answers, if there are any."""
    stops = [stopped(answer) for answer in answers if not isinstance(answer, expected)]
    return min(stops, key=_is_vague, default=None)


def _is_vague(stop: Stop) -> bool:
    """Return whether the outcome names neither a trim nor a newer epoch."""
    return isinstance(stop, Interrupted) and not stop.epoch
