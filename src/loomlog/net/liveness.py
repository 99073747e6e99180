"""Detects peers that no longer answer.

A connection may stay open though nothing gets through: bytes were lost, or the peer hangs. While
this side waits for answers or sends one-way frames, it pings. A peer that does not answer is
disconnected; whoever needs it reconnects.

A ping queues behind other traffic in both directions, so silence costs more than slowness: a peer
that sends bytes, or that has not received everything yet, gets more time. Intervals of the event
loop are counted instead of time, because this process may have been suspended.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from loomlog import limits
from loomlog.errors import LoomError, Unavailable

if TYPE_CHECKING:
    from loomlog.net.connection import Connection, Message

F = TypeVar("F", bound="Message")
_PATIENCE: Final = 15  # the budget of an unanswered ping
_SLOW, _SILENT = 1, 5  # cost of an interval with and without traffic


class Hearing(Generic[F]):
    """Pings the peer of one connection, from its greeting to its end."""

    def __init__(self, connection: Connection[F]) -> None:
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None
        self._waits = False  # a ping is unanswered
        self._cost = 0  # of the unanswered ping

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(limits.PING_S, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        connection = self._connection
        if self._waits:
            moves = connection.heard or connection.unsent_bytes
            self._cost += _SLOW if moves else _SILENT
        elif connection.expects or connection.said:
            self._waits, self._cost = True, 0
            connection.ping(self._answered)
        if self._cost >= _PATIENCE:
            connection.abort(Unavailable(f"{connection.peer} does not answer: connection cut"))
            return
        connection.heard = connection.said = False
        self.start()

    def _answered(self, answer: F | LoomError, payload: memoryview) -> None:
        self._waits, self._cost = False, 0
