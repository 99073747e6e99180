"""A batch on its way for the first time: from answer to answer, without a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from loomlog.client.chained.chains import Chains, View
from loomlog.client.chained.driving import Drive
from loomlog.client.chained.spinning import Spinning
from loomlog.client.chained.writing import placed
from loomlog.client.outgoing import Batch
from loomlog.client.targets import Stream
from loomlog.core.chained.appending import Appended, Overtaken, append_next
from loomlog.core.chained.block import Block
from loomlog.core.chained.messages import Ticket
from loomlog.core.chained.outcomes import Stop
from loomlog.errors import LoomError

Outcome: TypeAlias = Appended | Overtaken | Stop | Exception


class Encoding:
    """A batch as a block without a place: made in the next turn of the loop, while its ticket is on
    the way, or when it is needed."""

    def __init__(self, encode: Callable[[], Block], loop: asyncio.AbstractEventLoop) -> None:
        self._encode = encode
        self._made: Block | None = None
        self._soon = loop.call_soon(self._make)

    def result(self) -> Block:
        if self._made is None:
            self._made = self._encode()
        return self._made

    def stop(self) -> None:
        self._soon.cancel()

    def _make(self) -> None:
        with suppress(LoomError):  # who needs it is told
            self.result()


class FirstAttempt:
    """`ended` gets this and its outcome, or what was raised; nothing after `cancel`."""

    def __init__(
        self,
        chains: Chains,
        batch: Batch,
        target: Stream,
        view: View,
        ended: _Ended,
    ) -> None:
        self.batch = batch
        self.target = target
        self.view = view
        self.ticket: Ticket | None = None  # when it has its place ...
        self.block: Block | None = None  # ... and may have been written there
        self._encoding: Encoding | None = None
        self._ended = ended
        self._spinning: Spinning | None = None  # while it is under way
        steps = append_next(view.projection, batch.count, self._place)
        self._drive = Drive(partial(chains.ask, view), steps, self._end)

    def start(self, encoding: Callable[[Batch], Encoding], spinning: Spinning) -> None:
        self._spinning = spinning
        spinning.began()
        self._drive.start()
        # What follows is done while the ticket is on its way.
        self.batch.waiting = self
        self._encoding = encoding(self.batch)

    def cancel(self) -> None:
        if self._encoding is not None:
            self._encoding.stop()
        self._drive.cancel()
        self._rest()

    def _end(self, outcome: Outcome) -> None:
        self._rest()
        self._ended(self, outcome)

    def _rest(self) -> None:
        spinning, self._spinning = self._spinning, None
        if spinning is not None:
            spinning.ended()

    def _place(self, ticket: Ticket) -> Block:
        assert self._encoding is not None
        block = placed(self._encoding.result(), self.target.id, ticket)
        self._encoding.stop()
        self.ticket, self.block = ticket, block
        self.batch.waiting, self.batch.writing = None, self
        return block


_Ended: TypeAlias = Callable[[FirstAttempt, Outcome], None]
