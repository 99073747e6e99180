"""Read blocks, and fill holes: positions that were handed out and never written. Pure.

A block is read at the tail of its chain, in one round trip. A block that has not reached the tail
is written down to it first. `NotWritten` is returned only after every replica of a chain has
confirmed the epoch: a newer epoch would have sealed at least one of them.

A hole is filled with junk at the address where its ticket begins, from the head down. Fillers race
with the writer and with each other: one block gets the head, and all of them write that one down.

Only addresses are filled: the beginning of the log, or the end of a decided block. Tickets are
contiguous, and a new epoch begins above everything that was written; so a ticket begins at such an
address, or one of an older epoch did. A fill must not be longer than that ticket: its end would lie
within the next ticket, which may be on another chain. Its length is

    below the start of the epoch    up to the next block at any head: all tickets there are void
    in the epoch                    up to the end of the ticket, if that is remembered; else 1

A hole must not cover addresses where another chain may have lost a block: it ends before the first
of them. On the chain that lost blocks, junk extends up to the next block and counts as lost.
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
    """Read the block at an address: the end of another block, or the beginning of the log."""
    return (yield from _read(projection, address, [projection.chain_of(address)]))


def read_at(projection: Projection, position: Glsn) -> Steps[Reading]:
    """Read the block that covers a position, wherever it begins. Asks all tails at once."""
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
    """Write a block down to the tail of its chain, with the addresses that its writer reported."""
    chain = projection.chain_of(found.block.first)
    missing = [replica for replica in chain if replica not in holders]
    refusal = yield from write_down(projection.epoch, missing, found.block)
    return found if refusal is None else stopped(refusal)


def find_tail(projection: Projection) -> Steps[Glsn | Stop]:
    """Return the last position that is decided, or void because its epoch is over.

    All acknowledged entries are at or below it. It never decreases: a block at a tail is on every
    replica, so each later epoch begins above it."""
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
    """Return the first position that was not handed out. It may decrease if the sequencer is
    lost."""
    if projection.closed:
        return projection.start
    [answer] = yield [Ask(Service.SEQUENCER, FindEnd(projection.epoch))]
    if not isinstance(answer, Beyond):
        return stopped(answer)
    request = Check(projection.epoch)
    checks = yield [Ask(replica, request) for replica in projection.chains[0]]
    return first_stop(checks, Done) or answer.end


def fill(projection: Projection, address: Glsn, *, certain: bool = False) -> Steps[Reading]:
    """Fill an address with junk. Return the block that is there, or NotWritten if the address is
    not handed out. `certain`: a decided block ends at this address."""
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
    """Read an address, and fill it if it is empty."""
    outcome = yield from read(projection, address)
    if isinstance(outcome, NotWritten):
        outcome = yield from fill(projection, address, certain=certain)
    return outcome


def decide_at(projection: Projection, position: Glsn) -> Steps[Reading]:
    """Return the block that covers a position, filling holes up to it if it is empty."""
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
    """Return the length of the hole at an address; 0 if there is a block. If the address is
    `certain`, a ticket that covers it may begin before it: its block is shorter than the ticket."""
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
    """Return the end of the loss that begins with this block of junk.

    The length of a fill is limited, so a longer loss may consist of several. Its real extent is
    unknown, and it may be too long to be filled completely."""
    end = least = block.end
    until = projection.lost_end(block.first)
    while block.count == REFERENCE_RECORDS_MAX and end < projection.start:
        begin = yield from _next_block(projection, end)
        if not isinstance(begin, int):
            return begin
        end = begin
        if end < projection.start:
            outcome = yield from read(projection, end)
            if not isinstance(outcome, Found) or not projection.is_lost(outcome.block):
                break
            block, end = outcome.block, outcome.block.end
    return max(least, min(end, until))


def _next_block(projection: Projection, address: Glsn) -> Steps[Glsn | Stop]:
    """Return where the first block at or above an address begins; at most the epoch's start."""
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
    """Return the last certain address at or before a position: a decided block ends there, or the
    log begins."""
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
            return nearest.end  # it was decided, because only decided blocks are trimmed
        case Trimmed():
            return Interrupted("the log was trimmed meanwhile")
    return outcome


def write_down(epoch: int, replicas: Sequence[Replica], block: Block) -> Steps[Answer | None]:
    """Write a block to one replica after the other. Return the first answer that is not Stored, or
    None."""
    for replica in replicas:
        [answer] = yield [Ask(replica, Write(epoch, block))]
        if not isinstance(answer, Stored):
            return answer
    return None
