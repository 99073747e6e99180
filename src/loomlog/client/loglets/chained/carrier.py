"""Appends to `chained` streams: gets a ticket for each batch, then writes down the chain.

An append (core/chained/whole_append.py) is driven by callbacks, without a task, to keep the latency
of a lone append close to that of the disks. Only the search for a newer projection is a task. The
attempt itself finds out whether a doubtful batch was written; other batches continue meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from loomlog.client.append.batches import Attempt, Batch, Producer
from loomlog.client.append.carriers import Outcomes
from loomlog.client.append.spin import Spinning
from loomlog.client.append.targets import Stream
from loomlog.client.loglets.chained.chains import Chains, LatestView, SegmentGoneError
from loomlog.client.loglets.chained.requests import Answered, Drive, PendingRequest
from loomlog.core.chained.append import Appended
from loomlog.core.chained.block import Block, block_of, placed
from loomlog.core.chained.messages import ChainedAsk, Ticket
from loomlog.core.chained.outcomes import Interrupted
from loomlog.core.chained.whole_append import append_next
from loomlog.core.requests import Service
from loomlog.errors import LoomError, NotFound, Sealed, Unavailable


class ChainedCarrier:
    """Appends batches to the `chained` streams of one log."""

    def __init__(
        self,
        chains: Chains,
        producer: Producer,
        compression: str,
        outcomes: Outcomes,
        loop: asyncio.AbstractEventLoop,
        spinning: Spinning,
        *,
        at_once: bool,
    ) -> None:
        """`at_once`: do not find out whether a doubtful batch was written."""
        self.chains = chains
        self.outcomes = outcomes
        self.loop = loop
        self.spinning = spinning
        self.at_once = at_once
        self._producer = producer
        self._compression = compression

    def attempt(self, batch: Batch, target: Stream) -> ChainedAppend:
        return ChainedAppend(self, batch, target)

    def silent(self, target: Stream) -> None:
        """Do nothing: requests have their own timeouts."""

    def tasks(self) -> list[asyncio.Task[None]]:
        return []

    def encode(self, batch: Batch) -> Block:
        """Return the batch as a block without a position, under a new sequence number."""
        sequence = self._producer.next_sequence()
        encoded = batch.encode(self._producer.id, sequence, self._compression)
        return block_of(encoded if isinstance(encoded, bytearray) else bytearray(encoded))


class ChainedAppend(Attempt):
    """Drives one append to a chain."""

    __slots__ = ("_carrier", "_drive", "_encoding", "_sent", "_spinning", "_view")

    def __init__(self, carrier: ChainedCarrier, batch: Batch, target: Stream) -> None:
        super().__init__(batch, target)
        self._carrier = carrier
        self._drive: Drive[tuple[Ticket, Appended | Interrupted]] | None = None
        self._encoding: _Encoding | None = None
        self._sent = False  # it may have been written
        self._spinning: Spinning | None = None
        self._view: LatestView | None = None

    def start(self) -> None:
        carrier = self._carrier
        try:
            view = carrier.chains.view(self.target.id)
            if view.projection.closed:
                raise Sealed(f"the segment of stream {view.stream} has ended")
        except LoomError as error:
            carrier.loop.call_soon(self._failed, error)
            return
        self._view = LatestView(carrier.chains, view)
        steps = append_next(
            view.projection, self.batch.count, self._place, self._report, once=carrier.at_once
        )
        self._drive = Drive(self._ask, steps, self._ended)
        self._spinning = carrier.spinning
        self._spinning.began()
        self._drive.start()
        # The rest is done while the ticket is on its way.
        self._encoding = _Encoding(lambda: carrier.encode(self.batch), carrier.loop)

    def cancel(self) -> None:
        if self._encoding is not None:
            self._encoding.stop()
        if self._drive is not None:
            self._drive.cancel()
        self._rest()

    def _ask(self, ask: ChainedAsk, answered: Answered) -> PendingRequest:
        if ask.target is Service.METADATA:
            self._rest()
        assert self._view is not None
        return self._view.ask(ask, answered)

    def _place(self, ticket: Ticket) -> Block:
        """Return the batch as a block for this ticket. After an overtaken block, encode the batch
        again: the bytes of the old block may still be in use by a connection."""
        encoding, self._encoding = self._encoding, None
        if encoding is None:
            unplaced = self._carrier.encode(self.batch)
        else:
            encoding.stop()
            unplaced = encoding.result()
        return placed(unplaced, self.target.id, ticket.epoch, ticket.first)

    def _report(self, refusal: Interrupted | None) -> None:
        self._sent = refusal is None
        if refusal is None:
            self._carrier.outcomes.sent(self)
        else:
            self._carrier.outcomes.declined(self, Unavailable(refusal.reason))

    def _rest(self) -> None:
        spinning, self._spinning = self._spinning, None
        if spinning is not None:
            spinning.ended()

    def _ended(self, end: tuple[Ticket, Appended | Interrupted] | Exception) -> None:
        self._rest()
        if isinstance(end, LoomError):
            self._failed(end)
            return
        if isinstance(end, Exception):
            raise end
        ticket, outcome = end
        if isinstance(outcome, Appended):
            self._carrier.outcomes.appended(self, ticket.first, ticket.first)
        elif outcome.untouched:
            self._carrier.outcomes.refused(self, Unavailable(outcome.reason))
        else:
            self._carrier.outcomes.lost(self, outcome.reason)

    def _failed(self, error: LoomError) -> None:
        if self._sent:
            self._carrier.outcomes.unknown(self, error)
        elif isinstance(error, SegmentGoneError):
            self._carrier.outcomes.refused(self, NotFound(str(error)))
        else:
            self._carrier.outcomes.refused(self, error)


class _Encoding:
    """A batch that is encoded in the next turn of the event loop, while its ticket is on the way,
    or when it is needed."""

    def __init__(self, encode: Callable[[], Block], loop: asyncio.AbstractEventLoop) -> None:
        self._encode = encode
        self._block: Block | None = None
        self._soon: Final = loop.call_soon(self._make)

    def result(self) -> Block:
        if self._block is None:
            self._block = self._encode()
        return self._block

    def stop(self) -> None:
        self._soon.cancel()

    def _make(self) -> None:
        with suppress(LoomError):  # raised again when the block is needed
            self.result()
