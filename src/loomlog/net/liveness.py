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
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

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
_AT_ONCE: Final = 100  # connections checked before other callbacks get a turn
_SLOW, _SILENT = 1, 5  # cost of an interval with and without traffic


class _Rounds:
    """One timer of an event loop for all its connections: an idle process wakes up once for all of
    them."""

    def __init__(self) -> None:
        self.pingers: dict[Pinger[Any], None] = {}  # an ordered set
        self._timer: asyncio.TimerHandle | None = None

    def add(self, pinger: Pinger[Any]) -> None:
        self.pingers[pinger] = None
        if self._timer is None:
            self._wait()

    def remove(self, pinger: Pinger[Any]) -> None:
        self.pingers.pop(pinger, None)
        if not self.pingers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(limits.PING_S, self._begin)

    def _begin(self) -> None:
        self._wait()
        self._look(deque(self.pingers))

    def _look(self, pingers: deque[Pinger[Any]]) -> None:
        for _ in range(min(_AT_ONCE, len(pingers))):
            pinger = pingers.popleft()
            if pinger in self.pingers:
                pinger.look()
        if pingers:
            asyncio.get_running_loop().call_soon(self._look, pingers)


_rounds: WeakKeyDictionary[asyncio.AbstractEventLoop, _Rounds] = WeakKeyDictionary()


class Pinger(Generic[F]):
    """Pings the peer of one connection, from its greeting to its end."""

    def __init__(self, connection: Connection[F]) -> None:
        self._connection = connection
        self._rounds: _Rounds | None = None
        self._waits = False  # a ping is unanswered
        self._cost = 0  # of the unanswered ping

    def start(self) -> None:
        self._rounds = _rounds.setdefault(asyncio.get_running_loop(), _Rounds())
        self._rounds.add(self)

    def stop(self) -> None:
        if self._rounds is not None:
            self._rounds.remove(self)
            self._rounds = None

    def look(self) -> None:
        """Called once in each interval."""
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

    def _answered(self, answer: F | LoomError, payload: memoryview) -> None:
        self._waits, self._cost = False, 0


def detect_silence(connected: Any) -> None:
    """Let the kernel close a connection whose peer's host has vanished."""
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _SILENCE_OPTIONS:
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
