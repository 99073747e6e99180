"""Appends whose place is decided first, and which whoever finds them decided carries out.

A ticket is one place, and a block is written there once: so several processes may write the same
block with the same ticket, at any time, and it stands there once or, if it was too late, never.
"""

from __future__ import annotations

from loomlog.client.chained.chains import Chains, SegmentGoneError
from loomlog.client.chained.writing import next_ticket, placed, write
from loomlog.core.chained.appending import Appended
from loomlog.core.chained.block import block_of
from loomlog.core.chained.messages import Ticket
from loomlog.errors import AppendUnknown, Sealed
from loomlog.types import Glsn, StreamId


class ReservedAppends:
    """Such appends of one client to the chained streams of one log."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains

    async def reserve(self, stream: StreamId, count: int) -> Ticket:
        """A place for so many records. Sealed: the stream's segment has ended."""
        try:
            view = await self._chains.learn(stream)
            ticket, _ = await next_ticket(self._chains, view, count)
        except SegmentGoneError as error:
            raise Sealed(str(error)) from error
        return ticket

    async def append(self, stream: StreamId, ticket: Ticket, batch: bytearray) -> Glsn:
        """Its first position; 0: it is not there, and never will be."""
        block = placed(block_of(batch), stream, ticket)
        try:
            view = await self._chains.learn(stream)
            outcome, _ = await write(self._chains, view, ticket, block)
        except (AppendUnknown, SegmentGoneError):
            # Nobody trims a reference before its writer knows of it: so it was not there.
            return 0
        return ticket.first if isinstance(outcome, Appended) else 0
