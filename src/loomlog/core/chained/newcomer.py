"""Fill a replica that is not in force, or that forgot blocks, from another one. Pure.

Blocks go from node to node, in parts. A newcomer is filled while the log is in use, from the tail
of a projection in force, because all blocks at a tail are decided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from loomlog.core.chained.chain import Projection, Replica, crashed_between
from loomlog.core.chained.messages import (
    LIST_MAX,
    Answer,
    Copy,
    Create,
    Done,
    Fetch,
    Fetched,
    Found,
    Interrupted,
    List,
    Listed,
    NotWritten,
    Pull,
    Pulled,
    Steps,
    Stop,
    Stored,
    Trimmed,
    TrimmedTo,
    Written,
    stopped,
)
from loomlog.core.chained.read import decide, decide_at
from loomlog.core.requests import Ask
from loomlog.limits import COPY_PART_BYTES
from loomlog.types import Glsn


class Newcomer(NamedTuple):
    """A replica that is going to join.

    It has all blocks of its chain below `copied`, where everything is decided, except trimmed ones.
    If its node has crashed since, it may have forgotten some."""

    replica: Replica
    copied: Glsn
    trimmed: Glsn = 0
    life: int = 0  # of its node when it was made; 0: not known

    def has_crashed(self, life: int) -> bool:
        """Return whether its node has crashed since, given the node's present life."""
        return crashed_between(self.life, life)


def create(
    projection: Projection, replica: Replica, life: int = 0
) -> Steps[Newcomer | Interrupted]:
    """Create a replica that is going to join. `life` is that of its node."""
    [answer] = yield [Ask(replica, Create())]
    if not isinstance(answer, Done):
        return as_interrupted(stopped(answer))
    return Newcomer(replica, projection.first, life=life)


def decide_below(projection: Projection, address: Glsn) -> Steps[Glsn | Interrupted]:
    """Decide all addresses from this one to the start of the epoch, so that each has a block at its
    tail. This disturbs no writers: those of older epochs are fenced."""
    decided = yield from _first_address(projection, address)
    while isinstance(decided, int) and decided < projection.start:
        decided = yield from _decide_some(projection, decided)
    return decided


def _first_address(projection: Projection, address: Glsn) -> Steps[Glsn | Interrupted]:
    """Return the first address at or above this position that is not trimmed."""
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
    return as_interrupted(outcome)


def _decide_some(projection: Projection, address: Glsn) -> Steps[Glsn | Interrupted]:
    """Return the next address to decide: after the blocks in one listing of all tails, after one
    decided block, or after a trim that has reached some tails."""
    request = List(projection.epoch, address, LIST_MAX)
    answers = yield [Ask(tail, request) for tail in projection.tails]
    ends: dict[Glsn, Glsn] = {}
    for answer in answers:
        if isinstance(answer, TrimmedTo):
            return (yield from _first_address(projection, answer.position + 1))
        if not isinstance(answer, Listed):
            return as_interrupted(stopped(answer))
        ends.update((extent.first, extent.end) for extent in answer.extents)
    if address not in ends:
        outcome = yield from decide(projection, address)
        return outcome.block.end if isinstance(outcome, Found) else as_interrupted(outcome)
    while address in ends:
        address = ends[address]
    return address


def _ignore(newcomer: Newcomer) -> None:
    pass


def copy(
    epoch: int,
    source: Replica,
    newcomer: Newcomer,
    until: Glsn | None = None,
    *,
    salvage: bool = False,
    last: Glsn = 0,
    note: Callable[[Newcomer], None] = _ignore,
) -> Steps[Newcomer | Interrupted]:
    """Copy the blocks that the newcomer lacks, all or those below `until`, except blocks that end
    above `last`. `note` is called with the progress after each part."""
    more = True
    while more and (until is None or newcomer.copied < until):
        request = Pull(epoch, source, newcomer.copied, COPY_PART_BYTES, salvage, last)
        [answer] = yield [Ask(newcomer.replica, request)]
        match answer:
            case TrimmedTo(position):
                newcomer = newcomer._replace(copied=position + 1, trimmed=position)
            case Pulled():
                newcomer, more = newcomer._replace(copied=answer.end), answer.more
            case _:
                return as_interrupted(stopped(answer))
        note(newcomer)
    return newcomer


def pull(replica: Replica, request: Pull) -> Steps[Answer]:
    """Carry out a pull, on the node of the newcomer."""
    fetch = Fetch(request.epoch, request.position, request.bytes_max, request.salvage, request.last)
    [fetched] = yield [Ask(request.source, fetch)]
    if not isinstance(fetched, Fetched):
        return fetched
    blocks = fetched.blocks
    if not blocks:
        return Pulled(request.position, 0, fetched.more)
    expected = (Stored, TrimmedTo, Written) if request.salvage else (Stored, TrimmedTo)
    for answer in (yield [Ask(replica, Copy(block)) for block in blocks]):
        if not isinstance(answer, expected):
            return answer
    return Pulled(blocks[-1].end, sum(len(block.batch) for block in blocks), fetched.more)


def as_interrupted(outcome: Stop | NotWritten) -> Interrupted:
    """Return the outcome of a failed step as an interruption, for operations in which a trim is
    one, too."""
    if isinstance(outcome, Interrupted):
        return outcome
    return Interrupted("the log was trimmed meanwhile")
