"""Requests that may take only so long, answered by plain callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from loomlog.errors import LoomError, Timeout
from loomlog.types import Buffer

if TYPE_CHECKING:
    from loomlog.net.connection import Connection, Frame, OnReply

_NOTHING = memoryview(b"")


class Call:
    """A request that is under way. `on_reply` gets its answer or the error, once."""

    __slots__ = ("_connection", "_on_reply", "_request_id", "_timeout_s", "_timer")

    def __init__(
        self,
        connection: Connection,
        frame: Frame,
        payload: Sequence[Buffer],
        timeout_s: float,
        on_reply: OnReply,
    ) -> None:
        self._connection = connection
        self._on_reply: OnReply | None = on_reply
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._request_id = connection.call(frame, payload, self._replied)
        # From here on the peer is at work: whatever else is to be done costs no time.
        if not self.ended:
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._time_is_over)

    @property
    def ended(self) -> bool:
        return self._on_reply is None

    def cancel(self) -> None:
        """Nobody is told anything any more. Fine if it is answered."""
        if self._on_reply is not None:
            self._on_reply = None
            self._connection.forget(self._request_id)
            self._stop_timer()

    def _replied(self, reply: Frame | LoomError, content: memoryview) -> None:
        on_reply, self._on_reply = self._on_reply, None
        if on_reply is not None:
            on_reply(reply, content)
            self._stop_timer()  # now: the answer may have asked for the next thing

    def _time_is_over(self) -> None:
        if self._on_reply is not None:
            self._connection.forget(self._request_id)
            peer = self._connection.peer
            self._replied(Timeout(f"{peer} did not answer within {self._timeout_s:g} s"), _NOTHING)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
