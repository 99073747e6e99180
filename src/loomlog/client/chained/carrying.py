"""Batches of appends to chained streams: a ticket, then down the chain.

A batch that may have been written is this carrier's until it knows what became of it. One that was
overtaken gets another ticket and another sequence number.

The first attempt goes from answer to answer, without a task: a lone append must not take longer
than its way to the disks. Only what interrupts it is a task's matter.
"""

from __future__ import annotations

import asyncio
from functools import partial

from loomlog.client.carrying import Carrying
from loomlog.client.chained.chains import Chains, SegmentGoneError, View
from loomlog.client.chained.first_attempt import Encoding, FirstAttempt, Outcome
from loomlog.client.chained.spinning import Spinning
from loomlog.client.chained.writing import next_ticket, placed, require_open, write
from loomlog.client.outgoing import Batch, Producer
from loomlog.client.sending import Outcomes
from loomlog.client.targets import Stream
from loomlog.core.chained.appending import Appended, Overtaken
from loomlog.core.chained.block import Block, block_of
from loomlog.core.chained.messages import Ticket
from loomlog.core.chained.outcomes import Stop
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
        spinning: Spinning,
        *,
        at_once: bool,
    ) -> None:
        super().__init__(producer, compression, outcomes, loop, at_once=at_once)
        self._chains = chains
        self._spinning = spinning

    def dispatch(self, batch: Batch, target: Stream) -> None:
        if batch.count:
            try:
                view = self._chains.view(target.id)
                require_open(view)
            except LoomError:
                pass  # it is told below
            else:
                attempt = FirstAttempt(self._chains, batch, target, view, self._ended)
                attempt.start(self._encoding, self._spinning)
                return
        super().dispatch(batch, target)

    def _ended(self, attempt: FirstAttempt, outcome: Outcome) -> None:
        batch = attempt.batch
        if isinstance(outcome, Appended):
            assert attempt.block is not None
            batch.waiting = batch.writing = None
            self._outcomes.appended(batch, attempt.block.first, attempt.block.first)
        elif isinstance(outcome, LoomError):
            self._failed(batch, batch.attempts, outcome)
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            carrying = self._start(self._go_on(attempt, outcome))
            if attempt.block is None:
                batch.waiting = carrying
            else:
                batch.waiting, batch.writing = None, carrying

    async def _go_on(self, attempt: FirstAttempt, met: Overtaken | Stop) -> None:
        batch, number = attempt.batch, attempt.batch.attempts
        try:
            if not await self._is_written(attempt, met):
                await self._append(batch, attempt.target)
        except LoomError as error:
            self._failed(batch, number, error)

    async def _is_written(self, attempt: FirstAttempt, met: Overtaken | Stop) -> bool:
        ticket, block = attempt.ticket, attempt.block
        if ticket is None or block is None:
            return False
        return await self._write(attempt.batch, attempt.view, ticket, block, met)

    async def _carry(self, batch: Batch, attempt: int, target: Stream) -> None:
        try:
            await self._append(batch, target)
        except LoomError as error:
            self._failed(batch, attempt, error)

    async def _append(self, batch: Batch, target: Stream) -> None:
        told = False
        while not told:
            view = self._chains.view(target.id)
            # Each time its own bytes: those of the last time may still be on their way.
            encoding = self._encoding(batch)
            count = batch.count or encoding.result().count
            batch.waiting = asyncio.current_task()
            try:
                ticket, view = await next_ticket(self._chains, view, count)
            finally:
                encoding.stop()
            block = placed(encoding.result(), target.id, ticket)
            told = await self._write(batch, view, ticket, block)

    async def _write(
        self,
        batch: Batch,
        view: View,
        ticket: Ticket,
        block: Block,
        met: Overtaken | Stop | None = None,
    ) -> bool:
        """Whether its outcome was told; if not, it was overtaken. `met`: see `write`."""
        outcome, _ = await write(
            *(self._chains, view, ticket, block),
            once=self._at_once,
            doubted=partial(self._doubted, batch, asyncio.current_task()),
            met=met,
        )
        batch.waiting = batch.writing = None
        if isinstance(outcome, Overtaken):
            return False
        if isinstance(outcome, Appended):
            self._outcomes.appended(batch, ticket.first, ticket.first)
        elif outcome.untouched:
            self._outcomes.refused(batch, Unavailable(outcome.reason))
        else:
            self._outcomes.lost(batch, outcome.reason)
        return True

    def _doubted(self, batch: Batch, carrying: asyncio.Task[None] | None, refusal: str) -> None:
        """Whether it may be written at this moment, or was; no: it was refused each time."""
        if refusal:
            batch.refusal = Unavailable(refusal)
            batch.waiting, batch.writing = carrying, None
        else:
            batch.waiting, batch.writing = None, carrying

    def _failed(self, batch: Batch, attempt: int, error: LoomError) -> None:
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

    def _encoding(self, batch: Batch) -> Encoding:
        return Encoding(partial(self._encode, batch), self._loop)

    def _encode(self, batch: Batch) -> Block:
        sequence = self._producer.next_sequence()
        encoded = batch.encode(self._producer.id, sequence, self._compression)
        return block_of(encoded if isinstance(encoded, bytearray) else bytearray(encoded))
