"""Writing down a chain. Pure.

The head decides who has an address; behind it only what the head took is ever written. So a block
on a replica is on all replicas before it, and a block at the tail is decided for good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loomlog.core.chained.block import Block
from loomlog.core.chained.messages import (
    Answer,
    Ask,
    EpochOver,
    HandedOut,
    Next,
    Refused,
    Service,
    Steps,
    Stored,
    Ticket,
    Write,
    Written,
)
from loomlog.core.chained.outcomes import Interrupted, Stop, stopped
from loomlog.core.chained.projection import Projection, Replica


@dataclass(frozen=True, slots=True)
class Appended:
    """Every replica of the chain has it."""


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Somebody filled the address before: nothing of this append was or will be seen there."""


def append_next(
    projection: Projection, count: int, place: Callable[[Ticket], Block]
) -> Steps[Appended | Overtaken | Stop]:
    """A ticket for so many records, and then the block that `place` makes for it."""
    [answer] = yield [Ask(Service.SEQUENCER, Next(projection.epoch, count))]
    if isinstance(answer, HandedOut):
        ticket = answer.ticket
        return (yield from append(projection, ticket, place(ticket)))
    return stopped(answer)


def append(
    projection: Projection, ticket: Ticket, block: Block
) -> Steps[Appended | Overtaken | Stop]:
    """Write a block where its ticket says. After an interruption it may be repeated as long as the
    epoch of the ticket lasts; when a newer one has begun, `resolve` tells what became of it."""
    if ticket.epoch != projection.epoch:
        return Interrupted(f"the ticket is of epoch {ticket.epoch}", ticket.epoch)
    chain = projection.chain_of(block.first)
    refusal = yield from write_down(projection.epoch, chain[:1], block)
    if isinstance(refusal, Written):
        return Overtaken()
    if isinstance(refusal, Refused | EpochOver):
        stop = stopped(refusal)
        return replace(stop, untouched=True) if isinstance(stop, Interrupted) else stop
    if refusal is None:
        refusal = yield from write_down(projection.epoch, chain[1:], block)
    return Appended() if refusal is None else stopped(refusal)


def write_down(epoch: int, replicas: Sequence[Replica], block: Block) -> Steps[Answer | None]:
    """Write to one replica after the other. None, or the answer that ended it."""
    for replica in replicas:
        [answer] = yield [Ask(replica, Write(epoch, block))]
        if not isinstance(answer, Stored):
            return answer
    return None
