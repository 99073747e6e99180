"""Appends to `chained` streams at a reserved position, for publications.

A ticket reserves one position, which is written once. So several processes may write the same
block with the same ticket at any time: it is stored once or, if all were too late, never.
"""

from __future__ import annotations

from loomlog.client.loglets.chained.chains import Chains
from loomlog.client.loglets.contract import Fixed
from loomlog.client.loglets.views import SegmentGoneError
from loomlog.core.chained.append import Appended, next_ticket, write
from loomlog.core.chained.chain import block_of, placed
from loomlog.core.chained.messages import Ticket
from loomlog.errors import AppendUnknown, Sealed
from loomlog.protocol_names import CHAINED
from loomlog.types import Glsn, StreamId


async def reserve(chains: Chains, stream: StreamId, count: int) -> Fixed:
    """Reserve positions for `count` records; raise Sealed if the segment has ended."""
    try:
        view = await chains.learn(stream)
        ticket, _ = await chains.run(view, next_ticket(view.projection, count))
    except SegmentGoneError as error:
        raise Sealed(str(error)) from error
    return Fixed(CHAINED, stream, ticket.first - 1, ticket.end - 1, list(ticket))


async def append_fixed(chains: Chains, fixed: Fixed, batch: bytearray) -> Glsn:
    """Return the batch's first position; 0 if it is not there and never will be."""
    ticket = Ticket(*fixed.place)
    block = placed(block_of(batch), fixed.stream, ticket.epoch, ticket.first)
    while True:
        try:
            view = await chains.learn(fixed.stream)
        except SegmentGoneError:
            return 0  # references are not trimmed before their writer records them
        try:
            outcome, _ = await chains.run(view, write(view.projection, ticket, block))
        except AppendUnknown:
            return 0  # it was trimmed: the same
        except SegmentGoneError:
            continue  # or this client has just lost what it knew of the log
        return ticket.first if isinstance(outcome, Appended) else 0
