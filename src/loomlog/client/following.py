"""What the parts of a subscription have in common, whatever the protocol: one consumer, who takes
what is here, waits for what is not, and is told what went wrong after all that came before it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from loomlog.client.pieces import Stored
from loomlog.errors import LoomError


class Following(ABC):
    """The numbers from `start` to `stop` inclusive, or to the end of the stretch."""

    def __init__(self, start: int, stop: int | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._next = start
        self._stop = stop
        self._failure: Exception | None = None
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> Stored | None:
        while True:
            piece = self.next_ready()
            if piece is not None:
                return piece
            if self._failure is not None:
                raise self._failure
            if self._at_end():
                return None
            await self._wait()

    @abstractmethod
    def next_ready(self) -> Stored | None: ...

    @property
    def last(self) -> int:
        assert self._stop is not None, "it goes on"
        return self._stop

    def close(self, error: LoomError | None = None) -> None:
        if error is not None:
            self.fail(error)
        self._closed = True
        self._release()
        self._notify()

    def fail(self, error: Exception) -> None:
        """Also with what nobody expected: a consumer must not wait for somebody who died of it."""
        if self._failure is None and not self._closed:
            self._failure = error
        self._notify()

    @abstractmethod
    async def _wait(self) -> None:
        """Until something may have changed; finds out why nothing does."""

    @abstractmethod
    def _release(self) -> None:
        """It is closed: nothing more is fetched."""

    def _at_end(self) -> bool:
        return self._closed or (self._stop is not None and self._next > self._stop)

    def _clipped(self, last: int) -> int:
        return last if self._stop is None else min(last, self._stop)

    async def _doze(self, until_s: float | None = None) -> None:
        """Until notified, or until then."""
        self._waiter = self._loop.create_future()
        timer = None if until_s is None else self._loop.call_at(until_s, self._notify)
        try:
            await self._waiter
        finally:
            if timer is not None:
                timer.cancel()
            self._waiter = None

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
