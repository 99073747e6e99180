"""Turns of questions whose answers may be large, and are not counted while they wait.

What is read from a disk stays in memory until it is sent. So only a few of a connection look at
once, and none while its peer does not read what it was sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol


class Reader(Protocol):
    """The connection, as far as it matters here."""

    @property
    def congested(self) -> bool: ...

    @property
    def reads_max(self) -> int: ...

    def when_writable(self, callback: Callable[[], None]) -> None: ...


class Turns:
    """The turns of one connection."""

    def __init__(self, connection: Reader) -> None:
        self._connection = connection
        self._waiting: deque[Callable[[], None]] = deque()
        self._taken = 0
        self._is_going_on = False  # a turn may end before `begin` returns
        self._is_blocked = False

    def take(self, begin: Callable[[], None]) -> None:
        """Call `begin` when it is its turn; `end` has to be called once for it."""
        self._waiting.append(begin)
        self._go_on()

    def end(self) -> None:
        self._taken -= 1
        self._go_on()

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
