"""Append a block by writing it down a chain. Pure.

The head decides which block gets an address; the replicas behind it only ever take that block. So
a block on a replica is on all replicas before it, and a block at the tail is decided for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loomlog.core.chained.block import Block
from loomlog.core.chained.messages import (
    Answer,
    EpochOver,
    Refused,
    Steps,
    Stored,
    Ticket,
    Write,
    Written,
)
from loomlog.core.chained.outcomes import Interrupted, Stop, stopped
from loomlog.core.chained.projection import Projection, Replica
from loomlog.core.requests import Ask


@dataclass(frozen=True, slots=True)
class Appended:
    """Every replica of the chain has the block."""


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
    chain = projection.chain_of(block.first)
    write = Write(projection.epoch, block)
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


def write_down(epoch: int, replicas: Sequence[Replica], block: Block) -> Steps[Answer | None]:
    """Write to one replica after the other. Return the answer that ended it early, or None."""
    for replica in replicas:
        [answer] = yield [Ask(replica, Write(epoch, block))]
        if not isinstance(answer, Stored):
            return answer
    return None
