"""What all carriers have in common that carry each batch in a task of its own."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any

from loomlog.client.outgoing import Batch, Producer
from loomlog.client.sending import Outcomes
from loomlog.client.targets import Stream


class Carrying(ABC):
    """Carries the batches of one client to the streams of one log that a protocol runs."""

    def __init__(
        self,
        producer: Producer,
        compression: str,
        outcomes: Outcomes,
        loop: asyncio.AbstractEventLoop,
        *,
        at_once: bool,
    ) -> None:
        """`at_once`: what may have been appended is not looked into."""
        self._producer = producer
        self._compression = compression
        self._outcomes = outcomes
        self._loop = loop
        self._at_once = at_once
        self._carrying: dict[asyncio.Task[None], None] = {}

    def dispatch(self, batch: Batch, target: Stream) -> None:
        self._start(self._carry_if_wanted(batch, batch.attempts, target))

    def _start(self, carry: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        carrying = self._loop.create_task(carry)
        self._carrying[carrying] = None
        carrying.add_done_callback(self._carrying.pop)
        return carrying

    def tasks(self) -> list[asyncio.Task[None]]:
        """What has to end with it."""
        return list(self._carrying)

    async def _carry_if_wanted(self, batch: Batch, attempt: int, target: Stream) -> None:
        if not batch.settled and batch.attempts == attempt:  # before this began
            await self._carry(batch, attempt, target)

    @abstractmethod
    async def _carry(self, batch: Batch, attempt: int, target: Stream) -> None:
        """Tell the outcomes what became of it."""
