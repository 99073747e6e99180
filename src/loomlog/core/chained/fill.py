"""Fill holes: positions that were given to a writer and never written. Pure.

A hole is filled with junk at the address where its ticket begins, from the head down, in a race
with the writer and other fillers: one of them gets the head, and the others bring its block down.

Only addresses are filled: where the log begins, or where a decided block ends. Tickets follow on
one another, and a new epoch begins behind all that was written; so a ticket begins there, or one
of an older epoch that is over. A fill must not be longer than that ticket, or its end would lie
within the next one, on another chain:

    below the start of the epoch    all tickets are void: up to the next block at any head
    in the epoch                    as long as the ticket that the sequencer remembers; else 1

Where another chain lost its blocks, a hole must not cover what they were: there it is 1 long. A
place on the chain that lost them is filled up to the next block, and counts as lost.
"""

from __future__ import annotations

from loomlog.core.chained.append import write_down
from loomlog.core.chained.block import junk
from loomlog.core.chained.messages import (
    Before,
    Beyond,
    Forgotten,
    Found,
    HandedOut,
    Holding,
    List,
    Listed,
    Missing,
    Steps,
    Written,
)
from loomlog.core.chained.outcomes import (
    Interrupted,
    NotWritten,
    Reading,
    Stop,
    Trimmed,
    first_stop,
    stopped,
)
from loomlog.core.chained.projection import Projection
from loomlog.core.chained.read import read, read_at
from loomlog.core.requests import Ask, Service
from loomlog.errors import InvalidArgument
from loomlog.limits import REFERENCE_RECORDS_MAX
from loomlog.types import Glsn


def fill(projection: Projection, address: Glsn) -> Steps[Reading]:
    """Fill an address with junk; return the block there, or NotWritten if not handed out."""
    count = yield from _length(projection, address)
    if not isinstance(count, int):
        return count
    if not count:
        return (yield from read(projection, address))
    block = junk(address, count)
    chain = projection.chain_of(address)
    refusal = yield from write_down(projection.epoch, chain[:1], block)
    if isinstance(refusal, Written):
        return (yield from read(projection, address))
    if refusal is None:
        refusal = yield from write_down(projection.epoch, chain[1:], block)
    return Found(block) if refusal is None else stopped(refusal)


def decide(projection: Projection, address: Glsn) -> Steps[Reading]:
    """Read an address, and fill it if nothing is there."""
    outcome = yield from read(projection, address)
    if isinstance(outcome, NotWritten):
        outcome = yield from fill(projection, address)
    return outcome


def decide_at(projection: Projection, position: Glsn) -> Steps[Reading]:
    """Return the block that covers a position, after filling all holes up to it."""
    outcome = yield from read_at(projection, position)
    if not isinstance(outcome, NotWritten):
        return outcome
    address = yield from _address_before(projection, position)
    while isinstance(address, int):
        outcome = yield from decide(projection, address)
        if isinstance(outcome, Trimmed) and outcome.position < position:
            return Interrupted("the log was trimmed meanwhile")
        if not isinstance(outcome, Found) or outcome.block.end > position:
            return outcome
        address = outcome.block.end
    return address


def _length(projection: Projection, address: Glsn) -> Steps[int | NotWritten | Stop]:
    """Return the length of the hole at an address; 0 if there is a block."""
    if address < projection.start:
        return (yield from _length_of_old(projection, address))
    if projection.closed:
        return NotWritten()
    [answer] = yield [Ask(Service.SEQUENCER, Holding(projection.epoch, address))]
    match answer:
        case HandedOut(ticket) if ticket.first == address:
            return ticket.count
        case HandedOut(ticket):
            raise InvalidArgument(f"{address} is no address: a ticket begins at {ticket.first}")
        case Forgotten():
            return 1
        case Beyond():
            return NotWritten()
    return stopped(answer)


def _length_of_old(projection: Projection, address: Glsn) -> Steps[int | Stop]:
    request = List(projection.epoch, address, 1)
    answers = yield [Ask(head, request) for head in projection.heads]
    end = projection.start
    for answer in answers:
        if not isinstance(answer, Listed):
            return stopped(answer)
        end = min([end, *(extent.first for extent in answer.extents)])
    if projection.lost_end(address) <= address < max(projection.lost, default=0):
        end = min(end, address + 1)
    return min(max(0, end - address), REFERENCE_RECORDS_MAX)


def _address_before(projection: Projection, position: Glsn) -> Steps[Glsn | Stop]:
    """Return the last address at or before a position that is known for certain."""
    request = Before(projection.epoch, position)
    answers = yield [Ask(head, request) for head in projection.heads]
    if (stop := first_stop(answers, Found, Missing)) is not None:
        return stop
    trimmed = max((a.trimmed for a in answers if isinstance(a, Missing)), default=0)
    address = max(projection.first, trimmed + 1)
    found = [a.block for a in answers if isinstance(a, Found)]
    nearest = max(found, key=lambda block: block.end, default=None)
    if nearest is None or nearest.end <= address:
        return address
    outcome = yield from read(projection, nearest.first)
    match outcome:
        case Found(block):
            return block.end if block.end <= position else block.first
        case NotWritten():
            return Interrupted("a block was there, and is not any more")
        case Trimmed(position=trimmed) if trimmed <= nearest.last < position:
            return nearest.end  # it was decided: only decided blocks are trimmed
        case Trimmed():
            return Interrupted("the log was trimmed meanwhile")
    return outcome
