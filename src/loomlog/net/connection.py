"""One duplex connection: frames out, frames in, requests matched with their answers.

Knows nothing of the messages: a codec (wire.codec.Codec in production) turns them into bytes and
back. Both sides may send requests. Answers go to plain callbacks, because a Future per request
costs five times as much; `ask` and `request` make one where that does not matter.

Bounds: above SEND_BUFFER_BYTES `drain()` waits; a peer that lets SEND_BUFFER_BYTES_MAX pile up is
cut off.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, cast

from loomlog import limits
from loomlog.errors import Corrupt, LoomError, Unavailable
from loomlog.net.calls import Call
from loomlog.types import Buffer

logger = logging.getLogger(__name__)

Frame = Any  # a message of the codec with the fields `id` and `reply`
OnReply = Callable[[Frame | LoomError, memoryview], None]
_NOTHING = memoryview(b"")
_SILENCE_OPTIONS = [
    (getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", limits.TCP_SILENCE_S // 2),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", limits.TCP_SILENCE_S // 2),
        ("TCP_USER_TIMEOUT", limits.TCP_SILENCE_S * 1000),
    )
    if hasattr(socket, name)  # some are Linux's own
]


class FrameReader(Protocol):
    def writable(self) -> memoryview: ...

    def received(self, count: int) -> Iterator[tuple[Frame, memoryview]]: ...


class Codec(Protocol):
    def reader(self) -> FrameReader: ...

    def encode(self, frame: Frame, payload: Sequence[Buffer]) -> Sequence[Buffer]: ...

    def kind(self, frame: Frame) -> str: ...

    def greeting(self) -> Frame: ...

    def check_greeting(self, frame: Frame) -> str: ...

    def failure(self, frame: Frame) -> LoomError | None: ...

    def failure_frame(self, error: LoomError) -> Frame: ...


class Handler(Protocol):
    """What a connection tells its owner."""

    def frame_received(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        """A request or a one-way frame. The payload view may be kept."""

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        """Called once, after every open request has been told."""


class OnlyAnswers:
    """A handler, where the peer only answers."""

    def frame_received(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        """It asks nothing."""

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        """Requests under way are told."""


class Connection(asyncio.BufferedProtocol):
    """A connection from the moment it is made until it is lost."""

    def __init__(self, codec: Codec, handler: Handler) -> None:
        self._codec = codec
        self._handler = handler
        self._reader = codec.reader()
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, OnReply] = {}
        self._streams: set[int] = set()  # pending ids that take many answers
        self._last_id = 0
        self._writable: asyncio.Future[None] | None = None
        self._failure: LoomError | None = None
        self.greeted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.greeted.add_done_callback(_retrieve)
        self.peer = "?"

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=limits.SEND_BUFFER_BYTES)
        _detect_silence(transport.get_extra_info("socket"))
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else "?"
        self.send(self._codec.greeting())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.writable()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame, payload in self._reader.received(nbytes):
                if self.greeted.done():
                    self._received(frame, payload)
                else:
                    self.greeted.set_result(self._codec.check_greeting(frame))
                if self._failure is not None:
                    return
        except LoomError as error:
            if not isinstance(error, Corrupt):
                self.send(self._codec.failure_frame(error))
            self.close(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        detail = f": {exc}" if exc else ""
        self._fail(Unavailable(f"the connection to {self.peer} was lost{detail}"))

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        waiting, self._writable = self._writable, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # ---- our side

    @property
    def closed(self) -> bool:
        return self._failure is not None

    @property
    def congested(self) -> bool:
        """More is waiting to be sent than is good: slow down."""
        return self._writable is not None

    def send(self, frame: Frame, payload: Sequence[Buffer] = ()) -> None:
        """Queue a frame; on a closed connection it is dropped (its owner was told)."""
        transport = self._transport
        if transport is None or self._failure is not None:
            return
        transport.writelines(self._codec.encode(frame, payload))
        if self._writable is not None:
            self._check_bound(transport)

    def call(
        self,
        frame: Frame,
        payload: Sequence[Buffer],
        on_reply: OnReply,
        *,
        many: bool = False,
    ) -> int:
        """Send a request; `on_reply` gets its answer or the error. With `many` it stays until
        `forget(id)`, an error answer, or the end of the connection. Returns the id."""
        if self._failure is not None:
            asyncio.get_running_loop().call_soon(on_reply, self._failure, _NOTHING)
            return 0
        self._last_id += 1
        frame.id = self._last_id
        self._pending[self._last_id] = on_reply
        if many:
            self._streams.add(self._last_id)
        self.send(frame, payload)
        return self._last_id

    def forget(self, request_id: int) -> None:
        """Answers to this request are of no interest any more."""
        self._pending.pop(request_id, None)
        self._streams.discard(request_id)

    def ask(
        self,
        frame: Frame,
        payload: Sequence[Buffer] = (),
        *,
        timeout_s: float = limits.REQUEST_TIMEOUT_S,
    ) -> asyncio.Future[tuple[Frame, memoryview]]:
        """Send a request; its answer, or the error. Who ends the Future is not answered."""
        answer: asyncio.Future[tuple[Frame, memoryview]]
        answer = asyncio.get_running_loop().create_future()

        def on_reply(reply: Frame | LoomError, content: memoryview) -> None:
            if answer.done():
                return
            if isinstance(reply, LoomError):
                answer.set_exception(reply)
            else:
                answer.set_result((reply, content))

        call = Call(self, frame, payload, timeout_s, on_reply)
        answer.add_done_callback(lambda _: call.cancel())
        return answer

    async def request(
        self,
        frame: Frame,
        payload: Sequence[Buffer] = (),
        *,
        timeout_s: float = limits.REQUEST_TIMEOUT_S,
    ) -> tuple[Frame, memoryview]:
        """Send a request and wait for its answer; an error answer is raised."""
        return await self.ask(frame, payload, timeout_s=timeout_s)

    async def drain(self) -> None:
        """Wait while too much is queued for the peer."""
        while self._writable is not None and self._failure is None:
            await asyncio.shield(self._writable)

    def close(self, error: LoomError | None = None) -> None:
        """Close after what was sent; open requests fail with `error`."""
        if self._transport is not None:
            self._transport.close()
        self._fail(error or Unavailable(f"the connection to {self.peer} was closed"))

    def abort(self, error: LoomError) -> None:
        """Close at once, dropping what was not sent."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(error)

    # ---- inside

    def _received(self, frame: Frame, payload: memoryview) -> None:
        if not frame.reply:
            goodbye = None if frame.id else self._codec.failure(frame)
            if goodbye is not None:  # the peer says why it is about to close
                self.close(goodbye)
            else:
                self._handler.frame_received(self, frame, payload)
            return
        request_id = frame.id
        if request_id in self._streams:
            on_reply = self._pending.get(request_id)
        else:
            on_reply = self._pending.pop(request_id, None)
        if on_reply is None:
            return
        failure = self._codec.failure(frame)
        if failure is not None:
            self.forget(request_id)
        on_reply(failure or frame, payload)

    def _check_bound(self, transport: asyncio.Transport) -> None:
        if transport.get_write_buffer_size() > limits.SEND_BUFFER_BYTES_MAX:
            self.abort(Unavailable(f"{self.peer} reads too slowly: connection cut"))

    def _fail(self, error: LoomError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self.resume_writing()
        if not self.greeted.done():
            self.greeted.set_exception(error)
        pending, self._pending = self._pending, {}
        self._streams.clear()
        for on_reply in pending.values():
            try:
                on_reply(error, _NOTHING)
            except Exception:  # the others have to be told in any case
                logger.exception("who waited for %s cannot take that it is gone", self.peer)
        self._handler.connection_closed(self, error)


def _detect_silence(connected: Any) -> None:
    """Let the kernel end a connection whose peer's host is gone without a word."""
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _SILENCE_OPTIONS:
        connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _retrieve(greeted: asyncio.Future[str]) -> None:
    """A failed greeting is told to the handler; the Future's own warning would be noise."""
    if not greeted.cancelled():
        greeted.exception()
