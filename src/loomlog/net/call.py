"""A request that waits for its answer for a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Generic

from loomlog.errors import LoomError, Timeout, seconds
from loomlog.net.frames import F, OnReply
from loomlog.types import Buffer

if TYPE_CHECKING:
    from loomlog.net.connection import Connection

_NOTHING: Final = memoryview(b"")


class Call(Generic[F]):
    """A pending request with a time limit. `on_reply` is called once, with the answer or the
    error."""

    __slots__ = ("_connection", "_on_reply", "_request_id", "_timeout_s", "_timer")

    def __init__(
        self,
        connection: Connection[F],
        frame: F,
        payload: Sequence[Buffer],
        timeout_s: float,
        on_reply: OnReply[F],
    ) -> None:
        self._connection = connection
        self._on_reply: OnReply[F] | None = on_reply
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._request_id = connection.call(frame, payload, self._replied)
        # Start the timer after sending, so that it costs the request no time.
        if not self.ended:
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._time_is_over)

    @property
    def ended(self) -> bool:
        return self._on_reply is None

    def cancel(self) -> None:
        """Drop the callback. Does nothing if the request was answered."""
        if self._on_reply is not None:
            self._on_reply = None
            self._connection.forget(self._request_id)
            self._stop_timer()

    def _replied(self, reply: F | LoomError, content: memoryview) -> None:
        on_reply, self._on_reply = self._on_reply, None
        if on_reply is not None:
            on_reply(reply, content)
            self._stop_timer()  # last: the callback may have sent the next request

    def _time_is_over(self) -> None:
        if self._on_reply is not None:
            self._connection.forget(self._request_id)
            peer = self._connection.peer
            self._replied(
                Timeout(f"{peer} did not answer within {seconds(self._timeout_s)}"), _NOTHING
            )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
