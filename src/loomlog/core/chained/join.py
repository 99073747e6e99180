"""Fill a replica before it joins a chain, while the log goes on. Pure."""

from __future__ import annotations

from typing import NamedTuple

from loomlog.core.chained.fill import decide, decide_at
from loomlog.core.chained.messages import (
    Answer,
    Copy,
    Create,
    Done,
    Fetch,
    Fetched,
    Found,
    List,
    Listed,
    Pull,
    Pulled,
    Steps,
    Stored,
    TrimmedTo,
)
from loomlog.core.chained.outcomes import (
    Interrupted,
    NotWritten,
    Stop,
    Trimmed,
    stopped,
)
from loomlog.core.chained.projection import Projection, Replica
from loomlog.core.requests import Ask
from loomlog.limits import CHAIN_LIST_MAX, COPY_PART_BYTES
from loomlog.types import Glsn


class Newcomer(NamedTuple):
    """A replica that is going to join. It has all blocks of its chain below `copied`, where nothing
    is open any more, except trimmed ones."""

    replica: Replica
    copied: Glsn
    trimmed: Glsn = 0


def create(projection: Projection, replica: Replica) -> Steps[Newcomer | Interrupted]:
    [answer] = yield [Ask(replica, Create())]
    if not isinstance(answer, Done):
        return _as_interrupted(stopped(answer))
    return Newcomer(replica, projection.first)


def catch_up(projection: Projection, newcomer: Newcomer) -> Steps[Newcomer | Interrupted]:
    """Copy everything below the start of the epoch from the tail. The rest is copied while the log
    stands still; if that is much, begin a new epoch and catch up again first."""
    address = yield from settle(projection, newcomer.copied)
    if isinstance(address, Interrupted):
        return address
    tail = projection.chains[newcomer.replica.chain][-1]
    trimmed = yield from copy(projection.epoch, tail, newcomer, until=address)
    if isinstance(trimmed, Interrupted):
        return trimmed
    return Newcomer(newcomer.replica, address, trimmed)


def settle(projection: Projection, address: Glsn) -> Steps[Glsn | Interrupted]:
    """Decide all addresses from this one to the start of the epoch, so that each has a block at its
    tail. This disturbs no writer: those of older epochs are fenced."""
    settled = yield from _first_address(projection, address)
    while isinstance(settled, int) and settled < projection.start:
        settled = yield from _settle_some(projection, settled)
    return settled


def _first_address(projection: Projection, address: Glsn) -> Steps[Glsn | Interrupted]:
    """Return this address, or the next that is not trimmed."""
    if address >= projection.start:
        return address
    outcome = yield from decide_at(projection, address)
    if isinstance(outcome, Trimmed):
        return (yield from _first_address(projection, outcome.position + 1))
    match outcome:
        case Found(block):
            return block.end
        case NotWritten():
            return address
    return _as_interrupted(outcome)


def _settle_some(projection: Projection, address: Glsn) -> Steps[Glsn | Interrupted]:
    """Advance as far as one listing of all tails allows, or by one block."""
    request = List(projection.epoch, address, CHAIN_LIST_MAX)
    answers = yield [Ask(tail, request) for tail in projection.tails]
    ends: dict[Glsn, Glsn] = {}
    for answer in answers:
        if not isinstance(answer, Listed):
            return _as_interrupted(stopped(answer))
        ends.update((extent.first, extent.end) for extent in answer.extents)
    if address not in ends:
        outcome = yield from decide(projection, address)
        return outcome.block.end if isinstance(outcome, Found) else _as_interrupted(outcome)
    while address in ends:
        address = ends[address]
    return address


def copy(
    epoch: int, source: Replica, newcomer: Newcomer, until: Glsn | None = None
) -> Steps[Glsn | Interrupted]:
    """Copy every block that the newcomer lacks, or all below `until`. Return up to which position
    blocks were trimmed and therefore not copied."""
    position, trimmed, more = newcomer.copied, newcomer.trimmed, True
    while more and (until is None or position < until):
        request = Pull(epoch, source, position, COPY_PART_BYTES)
        [answer] = yield [Ask(newcomer.replica, request)]
        match answer:
            case TrimmedTo():
                trimmed = answer.position
                position = trimmed + 1
            case Pulled():
                position, more = answer.end, answer.more
            case _:
                return _as_interrupted(stopped(answer))
    return trimmed


def pull(replica: Replica, request: Pull) -> Steps[Answer]:
    """Carry out a pull on the node of the newcomer: blocks go from node to node."""
    fetch = Fetch(request.epoch, request.position, request.bytes_max)
    [fetched] = yield [Ask(request.source, fetch)]
    if not isinstance(fetched, Fetched):
        return fetched
    blocks = fetched.blocks
    if not blocks:
        return Pulled(request.position, 0, fetched.more)
    for answer in (yield [Ask(replica, Copy(block)) for block in blocks]):
        if not isinstance(answer, Stored | TrimmedTo):
            return answer
    return Pulled(blocks[-1].end, sum(len(block.batch) for block in blocks), fetched.more)


def _as_interrupted(outcome: Stop | NotWritten) -> Interrupted:
    if isinstance(outcome, Interrupted):
        return outcome
    return Interrupted("the log was trimmed meanwhile")
