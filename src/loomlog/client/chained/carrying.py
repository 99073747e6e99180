"""Batches of appends to chained streams: a ticket, then down the chain; a task for each batch.

A batch that may have been written is this carrier's until it knows what became of it. One that was
overtaken gets another ticket and another sequence number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from loomlog import batch as batches
from loomlog.client.carrying import Carrying
from loomlog.client.chained.chains import Chains, SegmentGoneError
from loomlog.client.chained.writing import next_ticket, placed, write
from loomlog.client.outgoing import Batch, Producer
from loomlog.client.sending import Outcomes
from loomlog.client.targets import Stream
from loomlog.core.chained.appending import Appended
from loomlog.core.chained.outcomes import Interrupted
from loomlog.errors import LoomError, NotFound, Unavailable


class ChainedCarrier(Carrying):
    """To chained streams."""

    def __init__(
        self,
        chains: Chains,
        producer: Producer,
        compression: str,
        outcomes: Outcomes,
        loop: asyncio.AbstractEventLoop,
        *,
        at_once: bool,
    ) -> None:
        super().__init__(producer, compression, outcomes, loop, at_once=at_once)
        self._chains = chains

    async def _carry(self, batch: Batch, attempt: int, target: Stream) -> None:
        try:
            await self._append(batch, target)
        except LoomError as error:
            if batch.attempts != attempt:
                return  # it did not wait for this
            written = batch.writing is not None
            batch.waiting = batch.writing = None
            if written:
                self._outcomes.unknown(batch, error)
            elif isinstance(error, SegmentGoneError):
                self._outcomes.refused(batch, NotFound(str(error)))
            else:
                self._outcomes.refused(batch, error)

    async def _append(self, batch: Batch, target: Stream) -> None:
        view = self._chains.view(target.id)
        while True:
            # Each time its own bytes: those of the last time may still be on their way.
            encoding = _Encoding(partial(self._encode, batch), self._loop)
            count = batch.count or batches.read_header(encoding.result()).count
            batch.waiting = asyncio.current_task()
            try:
                ticket, view = await next_ticket(self._chains, view, count)
            finally:
                encoding.stop()
            block = placed(encoding.result(), target.id, ticket)
            outcome, view = await write(
                *(self._chains, view, ticket, block),
                once=self._at_once,
                doubted=partial(self._doubted, batch, asyncio.current_task()),
            )
            batch.waiting = batch.writing = None
            if isinstance(outcome, Appended):
                self._outcomes.appended(batch, ticket.first, ticket.first)
                return
            if isinstance(outcome, Interrupted):
                if outcome.untouched:
                    self._outcomes.refused(batch, Unavailable(outcome.reason))
                else:
                    self._outcomes.lost(batch, outcome.reason)
                return

    def _doubted(self, batch: Batch, carrying: asyncio.Task[None] | None, refusal: str) -> None:
        """Whether it may be written at this moment, or was; no: it was refused each time."""
        if refusal:
            batch.refusal = Unavailable(refusal)
            batch.waiting, batch.writing = carrying, None
        else:
            batch.waiting, batch.writing = None, carrying

    def _encode(self, batch: Batch) -> bytearray:
        sequence = self._producer.next_sequence()
        encoded = batch.encode(self._producer.id, sequence, self._compression)
        return encoded if isinstance(encoded, bytearray) else bytearray(encoded)


class _Encoding:
    """The bytes of a batch: made in the next turn of the loop, while its ticket is on the way, or
    when they are needed."""

    def __init__(self, encode: Callable[[], bytearray], loop: asyncio.AbstractEventLoop) -> None:
        self._encode = encode
        self._made: bytearray | None = None
        self._soon = loop.call_soon(self._make)

    def result(self) -> bytearray:
        if self._made is None:
            self._made = self._encode()
        return self._made

    def stop(self) -> None:
        self._soon.cancel()

    def _make(self) -> None:
        with suppress(LoomError):  # who needs them is told
            self.result()
