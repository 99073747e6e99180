"""Detects peers that no longer answer.

A connection may stay open though nothing gets through: bytes were lost, or the peer hangs. While
this side waits for answers or sends one-way frames, it pings. A peer that does not answer is
disconnected; callers that need it reconnect.

A ping queues behind other traffic in both directions, so silence costs more than slowness: a peer
that sends bytes, or that has not received everything yet, gets more time. Intervals of the event
loop are counted instead of time, because this process may have been suspended.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from loomlog import limits
from loomlog.errors import LoomError, Unavailable

if TYPE_CHECKING:
    from loomlog.net.connection import Connection
    from loomlog.net.frames import Message

F = TypeVar("F", bound="Message")
_SILENCE_OPTIONS = [
    (getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", limits.TCP_SILENCE_S // 2),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", limits.TCP_SILENCE_S // 2),
        ("TCP_USER_TIMEOUT", limits.TCP_SILENCE_S * 1000),
    )
    if hasattr(socket, name)  # some exist only on Linux
]
_PATIENCE: Final = 15  # the budget of an unanswered ping
_SLOW, _SILENT = 1, 5  # cost of an interval with and without traffic


class Pinger(Generic[F]):
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
        connection.recheck()
        if connection.closed:
            return
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


def detect_silence(connected: Any) -> None:
    """Let the kernel close a connection whose peer's host has vanished."""
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _SILENCE_OPTIONS:
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
