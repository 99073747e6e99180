"""Read at the tail, in one round trip; a block on its way there is brought there first. Pure.

The answer that nothing is written is given only after every replica of a chain has confirmed the
epoch: a newer one would have sealed at least one of them, and may have written since.
"""

from __future__ import annotations

from collections.abc import Sequence

from loomlog.core.chained.append import write_down
from loomlog.core.chained.messages import Beyond, Check, Done, FindEnd, Found, Missing, Read, Steps
from loomlog.core.chained.outcomes import NotWritten, Reading, Stop, first_stop, stopped
from loomlog.core.chained.projection import Chain, Projection, Replica
from loomlog.core.requests import Ask, Service
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
    answers = (yield [Ask(replica, request) for replica in others]) if others else []
    holders = {r for r, answer in zip(others, answers, strict=True) if isinstance(answer, Found)}
    for answer in answers:
        if isinstance(answer, Found):
            return (yield from _complete(projection, answer, holders))
    return first_stop(answers, Found, Missing) or NotWritten()


def _complete(projection: Projection, found: Found, holders: set[Replica]) -> Steps[Reading]:
    """Bring a block down to the tail of its chain."""
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
