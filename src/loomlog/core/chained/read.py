"""Read blocks, and fill holes: positions that were given to a writer and never written. Pure.

A block is read at the tail, in one round trip; a block on its way there is brought there first. The
answer that nothing is written is given only after every replica of a chain has confirmed the epoch:
a newer one would have sealed at least one of them, and may have written since.

A hole is filled with junk at the address where its ticket begins, from the head down, in a race
with the writer and other fillers: one of them gets the head, and the others bring its block down.

Only addresses are filled: where the log begins, or where a decided block ends. Tickets follow one
another, and a new epoch begins behind all that was written; so a ticket begins there, or one
of an older epoch that is over. A fill must not be longer than that ticket, or its end would lie
within the next one, on another chain:

    below the start of the epoch    all tickets are void: up to the next block at any head
    in the epoch                    up to the end of the ticket, if that is remembered; else 1

Where another chain lost its blocks, a hole must not cover what they were: there it ends where one
of them may have begun. A place on the chain that lost them is filled up to the next block, and
counts as lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from loomlog.core.chained.chain import Block, Chain, Projection, Replica, junk
from loomlog.core.chained.messages import (
    Answer,
    Before,
    Beyond,
    Check,
    Done,
    FindEnd,
    FindTicket,
    Forgotten,
    Found,
    HandedOut,
    Interrupted,
    List,
    Listed,
    Missing,
    NotWritten,
    Read,
    Reading,
    Steps,
    Stop,
    Stored,
    Trimmed,
    Write,
    Written,
    first_stop,
    stopped,
)
from loomlog.core.requests import Ask, Service
from loomlog.errors import InvalidArgument
from loomlog.limits import REFERENCE_RECORDS_MAX
from loomlog.types import Glsn


def read(projection: Projection, address: Glsn) -> Steps[Reading]:
    """Read the block at an address: the end of another block, or where the log begins."""
    return (yield from _read(projection, address, [projection.chain_of(address)]))


def read_at(projection: Projection, position: Glsn) -> Steps[Reading]:
    """Read the block that covers a position, wherever it begins. All tails are asked at once."""
    return (yield from _read(projection, position, projection.chains))


def _read(projection: Projection, position: Glsn, chains: Sequence[Chain]) -> Steps[Reading]:
    request = Read(projection.epoch, position)
    tails = yield [Ask(chain[-1], request) for chain in chains]
    for answer in tails:
        if isinstance(answer, Found):
            return answer
    if (stop := first_stop(tails, Found, Missing)) is not None:
        return stop
    others = [replica for chain in chains for replica in chain[:-1]]
    request = Read(projection.epoch, position, with_acknowledged=True)
    answers = (yield [Ask(replica, request) for replica in others]) if others else []
    holders = {r for r, answer in zip(others, answers, strict=True) if isinstance(answer, Found)}
    for answer in answers:
        if isinstance(answer, Found):
            return (yield from _complete(projection, answer, holders))
    return first_stop(answers, Found, Missing) or NotWritten()


def _complete(projection: Projection, found: Found, holders: set[Replica]) -> Steps[Reading]:
    """Bring a block down to the tail of its chain, with what its writer told."""
    chain = projection.chain_of(found.block.first)
    missing = [replica for replica in chain if replica not in holders]
    refusal = yield from write_down(projection.epoch, missing, found.block)
    return found if refusal is None else stopped(refusal)


def find_tail(projection: Projection) -> Steps[Glsn | Stop]:
    """Return the last position that is decided, or void because its epoch is over: everything
    acknowledged is at or below it. It never falls, because a block at a tail is on every replica,
    so each later epoch begins behind it."""
    if projection.closed:
        return projection.start - 1
    request, others = FindEnd(projection.epoch), projection.chains[0][:-1]
    answers = yield [
        *(Ask(tail, request) for tail in projection.tails),
        *(Ask(replica, Check(projection.epoch)) for replica in others),
    ]
    if (stop := first_stop(answers, Beyond, Done)) is not None:
        return stop
    return max([projection.start, *(a.end for a in answers if isinstance(a, Beyond))]) - 1


def find_end(projection: Projection) -> Steps[Glsn | Stop]:
    """Return the first position that was not handed out. It may fall if the sequencer is lost."""
    if projection.closed:
        return projection.start
    [answer] = yield [Ask(Service.SEQUENCER, FindEnd(projection.epoch))]
    if not isinstance(answer, Beyond):
        return stopped(answer)
    request = Check(projection.epoch)
    checks = yield [Ask(replica, request) for replica in projection.chains[0]]
    return first_stop(checks, Done) or answer.end


def fill(projection: Projection, address: Glsn, *, certain: bool = False) -> Steps[Reading]:
    """Fill an address with junk; return the block there, or NotWritten if not handed out.
    `certain`: a decided block ends there."""
    count = yield from _length(projection, address, certain)
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


def decide(projection: Projection, address: Glsn, *, certain: bool = False) -> Steps[Reading]:
    """Read an address, and fill it if nothing is there."""
    outcome = yield from read(projection, address)
    if isinstance(outcome, NotWritten):
        outcome = yield from fill(projection, address, certain=certain)
    return outcome


def decide_at(projection: Projection, position: Glsn) -> Steps[Reading]:
    """Return the block that covers a position, after filling all holes up to it."""
    outcome = yield from read_at(projection, position)
    if not isinstance(outcome, NotWritten):
        return outcome
    address = yield from _address_before(projection, position)
    while isinstance(address, int):
        outcome = yield from decide(projection, address, certain=True)
        if isinstance(outcome, Trimmed) and outcome.position < position:
            return Interrupted("the log was trimmed meanwhile")
        if not isinstance(outcome, Found) or outcome.block.end > position:
            return outcome
        address = outcome.block.end
    return address


def _length(projection: Projection, address: Glsn, certain: bool) -> Steps[int | NotWritten | Stop]:
    """Return the length of the hole at an address; 0 if there is a block. A ticket that began
    before a `certain` address was not used up by its writer, and will not be."""
    if address < projection.start:
        return (yield from _length_of_old(projection, address))
    if projection.closed:
        return NotWritten()
    [answer] = yield [Ask(Service.SEQUENCER, FindTicket(projection.epoch, address))]
    match answer:
        case HandedOut(ticket) if certain or ticket.first == address:
            return ticket.end - address
        case HandedOut(ticket):
            raise InvalidArgument(f"{address} is not an address: a ticket begins at {ticket.first}")
        case Forgotten():
            return 1
        case Beyond():
            return NotWritten()
    return stopped(answer)


def find_end_of_loss(projection: Projection, block: Block) -> Steps[Glsn | Stop]:
    """Return the end of the loss that begins with this block. A fill has a limited length. A loss
    that is longer is one of which nobody knows the extent: it may be too long to be filled."""
    end = least = block.end
    until = projection.lost_end(block.first)
    while block.count == REFERENCE_RECORDS_MAX and end < projection.start:
        found = yield from _next_block(projection, end)
        if not isinstance(found, int):
            return found
        end = found
        if end < projection.start:
            outcome = yield from read(projection, end)
            if not isinstance(outcome, Found) or not projection.is_lost(outcome.block):
                break
            block, end = outcome.block, outcome.block.end
    return max(least, min(end, until))


def _next_block(projection: Projection, address: Glsn) -> Steps[Glsn | Stop]:
    """Return where the first block at or behind an address begins, or the epoch."""
    request = List(projection.epoch, address, 1)
    answers = yield [Ask(head, request) for head in projection.heads]
    end = projection.start
    for answer in answers:
        if not isinstance(answer, Listed):
            return stopped(answer)
        end = min([end, *(extent.first for extent in answer.extents)])
    return end


def _length_of_old(projection: Projection, address: Glsn) -> Steps[int | Stop]:
    end = yield from _next_block(projection, address)
    if not isinstance(end, int):
        return end
    if not projection.may_be_lost(address):
        end = min([end, *projection.losses_behind(address)])
    return min(max(0, end - address), REFERENCE_RECORDS_MAX)


def _address_before(projection: Projection, position: Glsn) -> Steps[Glsn | Stop]:
    """Return the last address at or before a position that is known for certain."""
    request = Before(projection.epoch, position)
    answers = yield [Ask(head, request) for head in projection.heads]
    if (stop := first_stop(answers, Found, Missing)) is not None:
        return stop
    trimmed = max((a.trimmed for a in answers if isinstance(a, Missing)), default=0)
    address = max(projection.first, trimmed + 1)
    blocks = [a.block for a in answers if isinstance(a, Found)]
    nearest = max(blocks, key=lambda block: block.end, default=None)
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


def write_down(epoch: int, replicas: Sequence[Replica], block: Block) -> Steps[Answer | None]:
    """Write to one replica after the other. Return the answer that ended it early, or None."""
    for replica in replicas:
        [answer] = yield [Ask(replica, Write(epoch, block))]
        if not isinstance(answer, Stored):
            return answer
    return None
