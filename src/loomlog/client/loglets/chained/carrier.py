"""Appends to `chained` streams: gets a ticket for each batch, then writes down the chain.

An append (core/chained/append.py) is driven by callbacks, without a task, to keep the latency
of a lone append close to that of the disks. Only the search for a newer projection is a task. The
attempt itself finds out whether a doubtful batch was written; other batches continue meanwhile.
"""

from __future__ import annotations

import asyncio

from loomlog.client.append.appender import Attempt, Batch
from loomlog.client.append.carriers import Carrier, Outcomes
from loomlog.client.append.stream import Stream
from loomlog.client.context import Client
from loomlog.client.loglets.chained.chains import Chains
from loomlog.client.loglets.chained.requests import Drive
from loomlog.client.loglets.views import SegmentGoneError
from loomlog.core.chained.append import Appended, ChainKey, append_next
from loomlog.core.chained.chain import Block, placed
from loomlog.core.chained.messages import Interrupted, Ticket
from loomlog.errors import LoomError, NotFound, Sealed, Unavailable
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb


class ChainedCarrier(Carrier):
    """Appends batches to the `chained` streams of one log."""

    def __init__(self, chains: Chains, client: Client, outcomes: Outcomes) -> None:
        self.chains = chains
        self.outcomes = outcomes
        self.unreported = chains.unreported
        self.loop = client.loop
        self.spinning = client.spinning
        # Do not search for a doubtful batch.
        self.at_once = client.settings.retry == "at-once"
        self._producer = client.producer

    def attempt(self, batch: Batch, target: Stream) -> ChainedAppend:
        return ChainedAppend(self, batch, target)

    def width(self, stream: pb.LogStream) -> int:
        return sum(len(chain.replicas) for chain in stream.projection.chains) or 1

    def encode(self, batch: Batch, compression: str) -> Block:
        """Return the batch as a block without a position, under a new sequence number."""
        sequence = self._producer.next_sequence()
        encoded = batch.encode(self._producer.id, sequence, compression)
        batch_bytes = encoded if isinstance(encoded, bytearray) else bytearray(encoded)
        return Block(0, batch.count, self._producer.id, sequence, batch_bytes)


class ChainedAppend(Attempt):
    """Drives one append to a chain."""

    __slots__ = (
        "_block",
        "_carrier",
        "_chain",
        "_drive",
        "_encoding",
        "_reported",
        "_sent",
        "_spins",
        "_width",
    )

    def __init__(self, carrier: ChainedCarrier, batch: Batch, target: Stream) -> None:
        super().__init__(batch, target)
        self._carrier = carrier
        self._drive: Drive[tuple[Ticket, Appended | Interrupted]] | None = None
        self._encoding: asyncio.Handle | None = None  # encodes the batch while its ticket is asked
        self._block: Block | None = None  # encoded, without a position
        self._sent = False  # it may have been written
        self._spins = False
        self._width = 1  # the number of chains
        self._chain: ChainKey = target.id, 0, 0  # of the block
        self._reported: tuple[Glsn, ...] = ()  # with the block, of others that were acknowledged

    def start(self) -> None:
        carrier = self._carrier
        try:
            view = carrier.chains.view(self.target.id)
            if view.projection.closed:
                raise Sealed(f"the segment of stream {view.stream} has ended")
            if not self.batch.is_checked:  # a refused batch must not take positions
                self._block = carrier.encode(self.batch, self.target.compression)
        except LoomError as error:
            carrier.loop.call_soon(self._failed, error)
            return
        expected = self.batch.expected_tail
        steps = append_next(
            view.projection,
            self.batch.count,
            self._place,
            self._report,
            once=carrier.at_once and expected is None,
            expected=expected,
        )
        self._width = len(view.projection.chains)
        drive = self._drive = Drive(carrier.chains, view, steps, self._ended, self._interrupted)
        self._spins = True
        carrier.spinning.began()
        drive.start()
        if self._block is None:  # this is done while the ticket is on its way
            self._encoding = carrier.loop.call_soon(self._encode)

    def cancel(self) -> None:
        if self._encoding is not None:
            self._encoding.cancel()
        drive, self._drive = self._drive, None
        if drive is not None:
            drive.cancel()
            self._rest()
            self._tell_again()

    def _encode(self) -> None:
        self._encoding = None
        try:
            self._block = self._carrier.encode(self.batch, self.target.compression)
        except LoomError:
            pass  # raised again when the block is needed

    def _place(self, ticket: Ticket) -> Block:
        """Return the batch as a block for this ticket. After an overtaken block, encode the batch
        again: the bytes of the old block may still be in use by a connection."""
        block, self._block = self._block, None
        if block is None:
            if self._encoding is not None:
                self._encoding.cancel()
            block = self._carrier.encode(self.batch, self.target.compression)
        if self._reported:
            self._tell_again()
        stream, first = self.target.id, ticket.first
        epoch = ticket.epoch
        chain = self._chain = stream, epoch, first % self._width
        reports = self._reported = self._carrier.unreported.take(chain)
        return placed(block, stream, epoch, first, reports)

    def _tell_again(self) -> None:
        """Report with another block what this block may not have reported."""
        if self._reported:
            self._carrier.unreported.add(self._chain, *self._reported)
            self._reported = ()

    def _report(self, refusal: Interrupted | None) -> None:
        self._sent = refusal is None
        if refusal is None:
            self._carrier.outcomes.sent(self)
        else:
            self._carrier.outcomes.declined(self, Unavailable(refusal.reason))

    def _interrupted(self) -> None:
        """Report again with another block: this one may be completed without its reports."""
        self._tell_again()
        self._rest()

    def _rest(self) -> None:
        if self._spins:
            self._spins = False
            self._carrier.spinning.ended()

    def _ended(self, end: tuple[Ticket, Appended | Interrupted] | Exception) -> None:
        self._drive = None
        self._rest()
        if isinstance(end, LoomError):
            self._failed(end)
            return
        if isinstance(end, Exception):
            raise end
        ticket, outcome = end
        if isinstance(outcome, Appended):
            self._carrier.outcomes.appended(self, ticket.first, ticket.first)
            self._carrier.unreported.add(self._chain, ticket.first)
            return
        self._tell_again()
        if outcome.untouched:
            self._carrier.outcomes.refused(self, Unavailable(outcome.reason))
        else:
            self._carrier.outcomes.lost(self, outcome.reason)

    def _failed(self, error: LoomError) -> None:
        self._tell_again()
        if self._sent:
            self._carrier.outcomes.unknown(self, error)
        elif isinstance(error, SegmentGoneError):
            self._carrier.outcomes.refused(self, NotFound(str(error)))
        else:
            self._carrier.outcomes.refused(self, error)
