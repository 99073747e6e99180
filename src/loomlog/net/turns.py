"""Limits concurrent look-ups with possibly large answers on one connection.

An answer stays in memory until it is sent. So only a few look-ups of a connection run at once, and
none begins while the peer does not read its answers. A turn covers the look-up and the sending; a
request that waits for something else must not hold one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Backpressure(Protocol):
    """The methods of a connection that turns depend on."""

    congested: bool

    @property
    def reads_max(self) -> int: ...

    def when_writable(self, callback: Callable[[], None]) -> None: ...


class Turns:
    """The turns of one connection. `async with` takes one."""

    def __init__(self, connection: Backpressure) -> None:
        self._connection = connection
        self._waiting: deque[Callable[[], None]] = deque()
        self._taken = 0
        self._is_going_on = False  # a turn may end before `begin` returns
        self._is_blocked = False

    def take(self, begin: Callable[[], None]) -> None:
        """Call `begin` when a turn is free; the caller has to call `end` once."""
        self._waiting.append(begin)
        self._go_on()

    def end(self) -> None:
        self._taken -= 1
        self._go_on()

    @property
    def is_shared(self) -> bool:
        """Return whether more than one look-up is running."""
        return self._taken > 1

    async def __aenter__(self) -> None:
        if not self._waiting and self._is_free:
            self._taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self.take(lambda: self.end() if turn.cancelled() else turn.set_result(None))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had just begun
                self.end()
            raise

    async def __aexit__(self, *_: object) -> None:
        # Later, because the answer may be sent directly after the block.
        asyncio.get_running_loop().call_soon(self.end)

    @property
    def _is_free(self) -> bool:
        connection = self._connection
        return self._taken < connection.reads_max and not connection.congested

    def _go_on(self) -> None:
        if self._is_going_on or self._is_blocked:
            return
        self._is_going_on = True
        try:
            while self._waiting and self._taken < self._connection.reads_max:
                if self._connection.congested:
                    self._is_blocked = True
                    self._connection.when_writable(self._unblock)
                    break
                self._taken += 1
                self._waiting.popleft()()
        finally:
            self._is_going_on = False

    def _unblock(self) -> None:
        self._is_blocked = False
        self._go_on()
