"""Connections of the console: those of uvicorn, with bounds on their time and number, and with JSON
for all errors.

A peer has to send the head of a request, and to read answers, in bounded time. If there are too
many connections, one without a request gives way, the oldest first; if all have one, the new
connection is refused.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import h11
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from loomlog.console.failures import answer_to
from loomlog.errors import Busy, InvalidArgument, LoomError

CONNECTIONS_MAX: Final = 1000
HEAD_S: Final = 10.0  # from the begin of a connection, or of a request, to the last header
UNREAD_S: Final = 60.0  # a peer that reads nothing for this long is cut off


class HttpProtocol(H11Protocol):
    """One connection of a console."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._idle_since_s = self.loop.time()

    @property
    def _is_idle(self) -> bool:
        """True if no request waits for its answer."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()
        if len(self.connections) > CONNECTIONS_MAX and not self._make_room():
            self.app = _refuse

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    def _make_room(self) -> bool:
        """Cut off another connection that has no request; return whether there was one."""
        others = [
            each
            for each in self.connections
            if isinstance(each, HttpProtocol) and each is not self and each._is_idle
        ]
        if not others:
            return False
        min(others, key=lambda each: each._idle_since_s).transport.abort()
        return True

    # ---- time

    def handle_events(self) -> None:
        super().handle_events()
        is_asking = self.conn.their_state is not h11.IDLE or bool(self.conn.trailing_data[0])
        if not self._is_idle or not is_asking:
            _cancel(self._head_timer)
            self._head_timer = None
        elif self._head_timer is None:
            self._expect_head()

    def on_response_complete(self) -> None:
        self._idle_since_s = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._unread_timer)

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self.transport.abort)

    def _expect_reading(self, unread: int) -> None:
        self._unread_timer = self.loop.call_later(UNREAD_S, partial(self._look, unread))

    def _look(self, unread: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= unread:
            self.transport.abort()
        else:
            self._expect_reading(left)

    def _stop_timers(self) -> None:
        _cancel(self._head_timer)
        _cancel(self._unread_timer)

    # ---- errors

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for what is no HTTP, while it handles the error that says why."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            reason = str(sys.exception() or msg).partition(": bytearray")[0]  # not what it sent
            error = InvalidArgument(f"this is no request of HTTP/1.1: {reason[:200]}")
            answer = _closing(error)
            status = HTTPStatus(answer.status_code)
            head = h11.Response(
                status_code=status, headers=answer.raw_headers, reason=status.phrase.encode()
            )
            is_head = self.conn.our_state is h11.SEND_RESPONSE and self.scope["method"] == "HEAD"
            body = b"" if is_head else bytes(answer.body)
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:  # what it would still send is not for this peer
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    error = Busy(f"all {CONNECTIONS_MAX:,} connections of this console are in use: try again soon")
    await _closing(error)(scope, receive, send)


def _closing(error: LoomError) -> Response:
    """Return an answer after which the connection is closed."""
    answer = answer_to(error, named=True)
    answer.headers["Connection"] = "close"
    return answer


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
