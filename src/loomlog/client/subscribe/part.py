"""The parts of a subscription. Each follows one run of a log, using its protocol.

A part has one consumer, which gets an error only after everything that arrived before it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Protocol

from loomlog.client.subscribe.numbering import Numbering
from loomlog.client.subscribe.pieces import Pieces, Stored
from loomlog.errors import LoomError, Trimmed


class Part(Pieces[Stored], Protocol):
    """The pieces of one run, in ascending order. Numbers that it skips have no entry."""

    @property
    def last(self) -> int:
        """The last number of the run, once the part has ended."""

    def close(self, error: LoomError | None = None) -> None:
        """Stop; `error` is raised in a waiting consumer."""


class FollowedPart(ABC):
    """Base class of parts: follows the numbers from `start` to `stop` inclusive, or to the end of
    the run."""

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
        assert self._stop is not None, "the run has no end yet"
        return self._stop

    def close(self, error: LoomError | None = None) -> None:
        if error is not None:
            self.fail(error)
        self._closed = True
        self._release()
        self._notify()

    def fail(self, error: Exception) -> None:
        """End with an error, even an unexpected one: a consumer must never wait for a task that has
        failed."""
        if self._failure is None and not self._closed:
            self._failure = error
        self._notify()

    @abstractmethod
    async def _wait(self) -> None:
        """Wait until something may have changed; investigate if nothing changes for long."""

    @abstractmethod
    def _release(self) -> None:
        """Called on close: stop fetching."""

    def _at_end(self) -> bool:
        return self._closed or (self._stop is not None and self._next > self._stop)

    def _clipped(self, last: int) -> int:
        return last if self._stop is None else min(last, self._stop)

    async def _doze(self, until_s: float | None = None) -> None:
        """Wait until `_notify` is called, or until `until_s`."""
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


def trimmed(numbering: Numbering, number: int, log: str, head: int) -> Trimmed:
    return Trimmed(
        f"{numbering.describe(number)} of log {log!r} was trimmed; "
        f"the first one kept is {head}: subscribe from there or from 'earliest'"
    )
