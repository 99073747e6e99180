"""Append a block by writing it down a chain, across failures and epochs. Pure.

The head decides which block gets an address; the replicas behind it only ever take that block. So
a block on a replica is on all replicas before it, and a block at the tail is decided for good.

While the epoch of its ticket lasts, an interrupted block is written again. Once a newer epoch has
begun, the block is where the new projection can see it, or will never be seen: looking decides it.

A block counts as appended only where its chain has as many replicas as appends need. On a shorter
chain it may be decided, and readers see it; its writer waits for a later epoch, with more replicas.

Only the writer of a block knows that it was acknowledged. Its next block on the same chain tells
the replicas. If all others forget the block, one can prove later that it is lost. In a later epoch
the replicas may have forgotten it already: then no block tells them, but a request, and they say
what they lack.
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
    """Every replica of the chain has the block, and there are as many as appends need."""


@dataclass(frozen=True, slots=True)
class Overtaken:
    """The address was filled first: nothing of this append was or will ever be seen there."""


def append(
    projection: Projection, ticket: Ticket, block: Block
) -> Steps[Appended | Overtaken | Stop]:
    """Write a block where its ticket says. An interrupted append may be repeated as long as the
    epoch of the ticket lasts; after that `resolve` finds the outcome."""
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
    """Find out whether an interrupted block was appended, once a newer epoch has begun. A block at
    a head only is brought down; a block that is nowhere is filled, unless its place is given to
    others now. Trimmed: it is too late to tell. Interrupted, too: the block is there, but on too
    few replicas."""
    outcome = yield from _look_back(projection, block.first)
    match outcome:
        case Found(decided) if not decided.is_same(block):
            return Overtaken()
        case Found():
            shortage = projection.shortage(block.first % len(projection.chains))
            return Interrupted(f"appends wait: {shortage}") if shortage else Appended()
        case NotWritten():
            return Overtaken()
    return outcome


def _look_back(projection: Projection, position: Glsn) -> Steps[Reading]:
    """Return what became of a position that an older epoch gave: it is written for good, or never
    will be, since all replicas serve a newer epoch. Below its start holes are filled."""
    look = decide_at if position < projection.start else read_at
    return (yield from look(projection, position))


def settle(
    projection: Projection, ticket: Ticket, producer_id: int, *, fill: bool
) -> Steps[bool | NotWritten | Stop]:
    """Find out whether the block that a producer was to write with a ticket is there for good, or
    never will be. NotWritten: that is not decided yet, unless it is to `fill` what is empty. Holes
    before it are left to their writers. DataLoss: a block was there, or there may have been one."""
    if projection.epoch < ticket.epoch:
        return Interrupted(f"the ticket is of epoch {ticket.epoch}", ticket.epoch)
    if projection.closed or projection.epoch > ticket.epoch:
        outcome = yield from _look_back(projection, ticket.first)
        if isinstance(outcome, NotWritten):
            return False
    else:
        outcome = yield from read_at(projection, ticket.first)
        if isinstance(outcome, NotWritten) and fill:  # a ticket begins there: it is an address
            outcome = yield from fill_at(projection, ticket.first)
    if not isinstance(outcome, Found):
        return outcome
    if projection.is_lost(outcome.block):
        raise DataLoss(f"position {ticket.first} is lost with all its replicas")
    return not outcome.block.is_junk and outcome.block.producer_id == producer_id


Report: TypeAlias = Callable[[Interrupted | None], None]
"""Called with None before a block is sent: from then on it may be written. Called with the last
interruption when everything that was sent was refused, so that nothing was written; when the block
was overtaken, so that it never will be; and when no position is given for it."""


def append_next(
    projection: Projection,
    count: int,
    place: Callable[[Ticket], Block],
    report: Report,
    *,
    once: bool,
    expected: Glsn | None = None,
) -> Steps[tuple[Ticket, Appended | Interrupted]]:
    """Take a ticket for `count` records and write the block that `place` makes for it; if that is
    overtaken, take another one. Interrupted only if it is tried `once`. Conflict: no ticket begins
    directly behind the `expected` position any more, and nothing was written."""
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
    """Return a ticket, and the projection of its epoch. Sealed: the segment has ended. Conflict:
    it would not begin directly behind the `expected` position."""
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
    """Write a block where its ticket says. Return the outcome and the newest projection.

    Interrupted only if it is tried `once`, or if nobody else writes the block (`alone`) and its
    head refused it until its epoch was over: then it is nowhere. AppendUnknown: the position was
    trimmed before the outcome was known."""
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
    """Return the newest projection; if it is not newer, after a pause."""
    [answer] = yield [Ask(Service.METADATA, Renew(projection.epoch, stop.epoch, attempts))]
    assert isinstance(answer, InForce)
    return answer.projection


ChainKey: TypeAlias = tuple[StreamId, int, int]  # a chain of a segment in an epoch


class Untold:
    """Addresses of acknowledged blocks that the replicas of their chains were not told yet. Blocks
    of the same epoch tell of them."""

    __slots__ = ("_by_chain", "_seen", "_watch", "is_watched")

    def __init__(self, watch: Callable[[], None]) -> None:
        """`watch` is called when there is something to tell and nobody watches. Whoever watches
        calls `take_idle` now and then."""
        self.is_watched = False
        self._watch = watch
        self._by_chain: dict[ChainKey, list[Glsn]] = {}
        self._seen: dict[ChainKey, list[Glsn]] = {}  # the last time

    def __bool__(self) -> bool:
        return bool(self._by_chain)

    def add(self, chain: ChainKey, *addresses: Glsn) -> None:
        self._by_chain.setdefault(chain, []).extend(addresses)
        if not self.is_watched:
            self.is_watched = True
            self._watch()

    def take(self, chain: ChainKey) -> tuple[Glsn, ...]:
        """Return what to tell with the next block; add it again if that is not written."""
        found = self._by_chain.pop(chain, None)
        if found is None:
            return ()
        if len(found) > ACKNOWLEDGED_MAX:
            self._by_chain[chain] = found[ACKNOWLEDGED_MAX:]
        return tuple(found[:ACKNOWLEDGED_MAX])

    def take_idle(self) -> Iterator[tuple[ChainKey, tuple[Glsn, ...]]]:
        """Yield what to tell by itself: no block could tell it since this was called last."""
        for chain, found in list(self._by_chain.items()):
            if self._seen.get(chain) is found:
                yield chain, self.take(chain)
        self._seen = dict(self._by_chain)

    def take_all(self) -> Iterator[tuple[ChainKey, tuple[Glsn, ...]]]:
        for chain in list(self._by_chain):
            while found := self.take(chain):
                yield chain, found
