"""Append a block by writing it down a chain, across failures and epochs. Pure.

The head decides which block gets an address; the replicas after it only ever receive that block. So
a block on a replica is also on all replicas before it, and a block at the tail is decided.

While the epoch of its ticket lasts, an interrupted write is repeated. Once a newer epoch has begun,
reading the address decides the outcome: either the new projection has the block, or no reader will
ever see it.

A block counts as appended only if its chain has as many replicas as appends need. On a shorter
chain it may be decided and visible to readers, while its writer waits for a later epoch with more
replicas.

Only the writer of a block knows that it was acknowledged. It reports that to the replicas with its
next block on the same chain. If all other replicas forget the block, the one that remembers it can
prove the loss. In a later epoch, replicas may have forgotten the block already. It is then reported
with a request instead (`Acknowledge`), and they answer if they lack the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from loomlog.core.chained.chain import Block, Projection
from loomlog.core.chained.messages import (
    ACKNOWLEDGED_MAX,
    Answer,
    Beyond,
    EpochOver,
    Found,
    HandedOut,
    InForce,
    Interrupted,
    Next,
    NotWritten,
    Reading,
    Refused,
    Renew,
    Steps,
    Stop,
    Stored,
    Ticket,
    Trimmed,
    Write,
    Written,
    stopped,
)
from loomlog.core.chained.read import decide_at, read_at
from loomlog.core.chained.read import fill as fill_at
from loomlog.core.requests import Ask, Service
from loomlog.errors import AppendUnknown, Conflict, DataLoss, Sealed
from loomlog.types import Glsn, StreamId


@dataclass(frozen=True, slots=True)
class Appended:
    """Every replica of the chain has the block, and the chain has as many as appends need."""


@dataclass(frozen=True, slots=True)
class Overtaken:
    """The address was filled first: no reader has seen or will see this block there."""


def append(
    projection: Projection, ticket: Ticket, block: Block
) -> Steps[Appended | Overtaken | Stop]:
    """Write a block at the address of its ticket. An interrupted append may be repeated as long as
    the epoch of the ticket lasts; after that, `resolve` finds the outcome."""
    if ticket.epoch != projection.epoch:
        return Interrupted(f"the ticket is of epoch {ticket.epoch}", ticket.epoch)
    if shortage := projection.shortage(block.first % len(projection.chains)):
        return Interrupted(f"appends wait: {shortage}", untouched=True)
    chain = projection.chain_of(block.first)
    write = Write(projection.epoch, block, ticket.proof)
    for replica in chain:
        [answer] = yield [Ask(replica, write)]
        if not isinstance(answer, Stored):
            return _stopped_at_head(answer) if replica is chain[0] else stopped(answer)
    return Appended()


def _stopped_at_head(answer: Answer) -> Overtaken | Stop:
    if isinstance(answer, Written):
        return Overtaken()
    stop = stopped(answer)
    if isinstance(stop, Interrupted) and isinstance(answer, Refused | EpochOver):
        return replace(stop, untouched=True)
    return stop


def resolve(projection: Projection, block: Block) -> Steps[Appended | Overtaken | Stop]:
    """Find out whether an interrupted block was appended, once a newer epoch has begun.

    A block that only some replicas have is written down to the tail. If no replica has it, its
    address is filled, unless the new epoch gives it to other writers. The outcome is Trimmed if it
    cannot be known any more, and Interrupted also if the chain has too few replicas for appends."""
    outcome = yield from _read_old(projection, block.first)
    match outcome:
        case Found(decided) if not decided.is_same(block):
            return Overtaken()
        case Found():
            shortage = projection.shortage(block.first % len(projection.chains))
            return Interrupted(f"appends wait: {shortage}") if shortage else Appended()
        case NotWritten():
            return Overtaken()
    return outcome


def _read_old(projection: Projection, position: Glsn) -> Steps[Reading]:
    """Read a position that was handed out in an older epoch. What is not written there now never
    will be, since all replicas serve a newer epoch. Holes below its start are filled."""
    read_or_fill = decide_at if position < projection.start else read_at
    return (yield from read_or_fill(projection, position))


def settle(
    projection: Projection, ticket: Ticket, producer_id: int, *, fill: bool
) -> Steps[bool | NotWritten | Stop]:
    """Return whether a producer has written the block of its ticket.

    NotWritten: the writer may still do it. With `fill`, its empty address is filled instead, so
    that it cannot. Holes before it are left to their writers. Raise DataLoss if a block was lost
    there, or may have been."""
    if projection.epoch < ticket.epoch:
        return Interrupted(f"the ticket is of epoch {ticket.epoch}", ticket.epoch)
    if projection.closed or projection.epoch > ticket.epoch:
        outcome = yield from _read_old(projection, ticket.first)
        if isinstance(outcome, NotWritten):
            return False
    else:
        outcome = yield from read_at(projection, ticket.first)
        if isinstance(outcome, NotWritten) and fill:  # where a ticket begins is an address
            outcome = yield from fill_at(projection, ticket.first)
    if not isinstance(outcome, Found):
        return outcome
    if projection.is_lost(outcome.block):
        raise DataLoss(f"position {ticket.first} is lost with all its replicas")
    return not outcome.block.is_junk and outcome.block.producer_id == producer_id


Report: TypeAlias = Callable[[Interrupted | None], None]
"""Called with None before a block is sent, which may be written from then on. Called with an
interruption when the block is certainly not written: all requests were refused, it was overtaken,
or the sequencer gave no ticket."""


def append_next(
    projection: Projection,
    count: int,
    place: Callable[[Ticket], Block],
    report: Report,
    *,
    once: bool,
    expected: Glsn | None = None,
) -> Steps[tuple[Ticket, Appended | Interrupted]]:
    """Take a ticket for `count` records and write the block that `place` returns for it; if it is
    overtaken, take another ticket.

    The outcome is Interrupted only with `once`. Raise Conflict if no ticket can begin directly
    after the `expected` position; nothing was written then."""
    while True:
        ticket, projection = yield from next_ticket(projection, count, expected, report)
        outcome, projection = yield from write(
            projection, ticket, place(ticket), report, once=once, alone=True
        )
        if isinstance(outcome, Overtaken):
            report(Interrupted(f"position {ticket.first} was filled before it was written"))
        elif once or isinstance(outcome, Appended):
            return ticket, outcome


def next_ticket(
    projection: Projection,
    count: int,
    expected: Glsn | None = None,
    report: Report = lambda interrupted: None,
) -> Steps[tuple[Ticket, Projection]]:
    """Return a ticket, and the projection of its epoch. Raise Sealed if the segment has ended,
    Conflict if the ticket would not begin directly after the `expected` position."""
    attempts = 0
    while True:
        if projection.closed:
            raise Sealed(f"segment {projection.log_id} has ended")
        [answer] = yield [Ask(Service.SEQUENCER, Next(projection.epoch, count, expected))]
        if isinstance(answer, HandedOut):
            return answer.ticket, projection
        if isinstance(answer, Beyond):
            raise Conflict(f"positions up to {answer.end - 1} are given, {expected} was expected")
        stop = stopped(answer)
        assert isinstance(stop, Interrupted)
        is_refused = not isinstance(answer, EpochOver)
        if is_refused:
            report(stop)
        projection = yield from _renew(projection, stop, attempts)
        attempts += is_refused


def write(
    projection: Projection,
    ticket: Ticket,
    block: Block,
    report: Report = lambda interrupted: None,
    *,
    once: bool = False,
    alone: bool = False,
) -> Steps[tuple[Appended | Overtaken | Interrupted, Projection]]:
    """Write a block at the address of its ticket. Return the outcome and the newest projection.

    The outcome is Interrupted only with `once`, or if no other party writes the block (`alone`) and
    the head refused it until its epoch was over, so that it is certainly not written. Raise
    AppendUnknown if the position was trimmed before the outcome was known."""
    attempts = 0
    untouched = True
    while True:
        if projection.epoch == ticket.epoch:
            report(None)
            outcome = yield from append(projection, ticket, block)
        else:
            outcome = yield from resolve(projection, block)
        if isinstance(outcome, Trimmed):
            raise AppendUnknown(f"position {block.first} was trimmed meanwhile")
        if not isinstance(outcome, Interrupted) or once:
            return outcome, projection
        if projection.epoch == ticket.epoch:
            untouched = untouched and outcome.untouched
            if untouched:
                report(outcome)
        projection = yield from _renew(projection, outcome, attempts)
        if alone and untouched and projection.epoch > ticket.epoch:
            return outcome, projection
        attempts += 1


def _renew(projection: Projection, stop: Interrupted, attempts: int) -> Steps[Projection]:
    """Return the newest projection, after a pause if it is not newer."""
    [answer] = yield [Ask(Service.METADATA, Renew(projection.epoch, stop.epoch, attempts))]
    assert isinstance(answer, InForce)
    return answer.projection


ChainKey: TypeAlias = tuple[StreamId, int, int]  # a chain of a segment in an epoch


class UnreportedBlocks:
    """Addresses of acknowledged blocks that were not reported to the replicas of their chains yet.
    They are reported with later blocks of the same epoch."""

    __slots__ = ("_by_chain", "_seen", "_watch", "is_watched")

    def __init__(self, watch: Callable[[], None]) -> None:
        """`watch` is called when an address is added and `is_watched` is False. It starts a task
        that calls `take_idle` periodically."""
        self.is_watched = False
        self._watch = watch
        self._by_chain: dict[ChainKey, list[Glsn]] = {}
        self._seen: dict[ChainKey, list[Glsn]] = {}  # by the last call of `take_idle`

    def __bool__(self) -> bool:
        return bool(self._by_chain)

    def add(self, chain: ChainKey, *addresses: Glsn) -> None:
        self._by_chain.setdefault(chain, []).extend(addresses)
        if not self.is_watched:
            self.is_watched = True
            self._watch()

    def take(self, chain: ChainKey) -> tuple[Glsn, ...]:
        """Return addresses to report with the next block. If it is not written, `add` them
        again."""
        addresses = self._by_chain.pop(chain, None)
        if addresses is None:
            return ()
        if len(addresses) > ACKNOWLEDGED_MAX:
            self._by_chain[chain] = addresses[ACKNOWLEDGED_MAX:]
        return tuple(addresses[:ACKNOWLEDGED_MAX])

    def take_idle(self) -> Iterator[tuple[ChainKey, tuple[Glsn, ...]]]:
        """Yield addresses that need a request of their own: no block was written to their chain
        since the last call."""
        for chain, addresses in list(self._by_chain.items()):
            if self._seen.get(chain) is addresses:
                yield chain, self.take(chain)
        self._seen = dict(self._by_chain)

    def take_all(self) -> Iterator[tuple[ChainKey, tuple[Glsn, ...]]]:
        for chain in list(self._by_chain):
            while addresses := self.take(chain):
                yield chain, addresses
