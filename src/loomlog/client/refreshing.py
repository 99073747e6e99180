"""Which streams a log has: asked anew when something shows that what is known is old."""

from __future__ import annotations

import asyncio
import random
from typing import Protocol

from loomlog.client import backoff
from loomlog.client.metadata import CachedLog
from loomlog.client.targets import Targets
from loomlog.errors import LoomError, Retryable


class Audience(Protocol):
    """Who waits for streams."""

    def streams_learned(self) -> bool:
        """Use them. True: somebody still waits for one that runs."""

    def give_up(self, error: LoomError) -> None:
        """The log cannot be found or used: nothing that waits can ever be sent."""


class Refresher:
    """Keeps the targets of one log as new as they are needed."""

    def __init__(
        self,
        log: CachedLog,
        targets: Targets,
        audience: Audience,
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._log = log
        self._targets = targets
        self._audience = audience
        self._rng = rng
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()

    def soon(self, *, at_once: bool) -> None:
        """`at_once`: something new was learned, so one that dozes has to wake up."""
        if self._task is None:
            self._task = self._loop.create_task(self._refresh())
        elif at_once:
            self._wanted.set()

    def tasks(self) -> list[asyncio.Task[None]]:
        """What has to end with it."""
        return [] if self._task is None else [self._task]

    async def _refresh(self) -> None:
        """Learn the streams anew; as long as somebody waits for one that runs, again and again."""
        attempts = 0
        try:
            while True:
                self._wanted.clear()
                try:
                    self._targets.adopt(await self._log.refresh())
                except Retryable:
                    pass  # batches have their deadlines
                except LoomError as error:
                    self._audience.give_up(error)
                    return
                if not self._audience.streams_learned():
                    return
                await self._doze(backoff.delay_s(attempts, self._rng))
                attempts += 1
        finally:
            self._task = None

    async def _doze(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wanted.wait()
        except TimeoutError:
            pass
