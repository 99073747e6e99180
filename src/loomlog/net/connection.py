"""A duplex connection that sends and receives frames and matches answers with requests.

It knows nothing about messages: a codec (wire.codec.Codec) converts them to bytes and back. Both
sides may send requests. Answers go to plain callbacks, because a Future per request costs five
times as much; `request` creates one where this does not matter.

Bounds: above SEND_BUFFER_BYTES `drain()` waits; a peer that falls behind by a multiple of that is
disconnected. On an accepted connection, requests are not read while the peer does not read its
answers, or while READS_PER_CONNECTION_MAX requests for content are pending. The connecting side
always reads, so two servers never wait for each other.

A peer that owes answers, or gets one-way frames, is pinged, and disconnected if it stays silent.
Damaged bytes and frames that break a handler close this connection only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, cast

from loomlog import limits
from loomlog.core.principal import ANONYMOUS
from loomlog.errors import (
    Corrupt,
    InvalidArgument,
    LoomError,
    Timeout,
    Unauthorized,
    Unavailable,
    seconds,
)
from loomlog.meters import OpenRequests, Traffic
from loomlog.net.credentials import HandshakeFailed
from loomlog.net.frames import BODY, ERROR, Codec, F, OnReply
from loomlog.net.identified import Identified
from loomlog.net.liveness import Pinger, detect_silence
from loomlog.net.shutdown import Shutdown
from loomlog.net.timers import Timers
from loomlog.net.turns import Turns
from loomlog.types import Buffer

logger = logging.getLogger(__name__)


_NOTHING = memoryview(b"")
_CLOSING_TURNS: Final = 10  # of the event loop, more than closing takes


class Handler(Protocol[F]):
    """The owner of a connection."""

    def frame_received(
        self, connection: Connection[F], kind: str, frame: F, payload: memoryview
    ) -> None:
        """Called with a request or one-way frame and the kind of its message (`Codec.kind`). The
        payload view may be kept."""

    def connection_closed(self, connection: Connection[F], error: LoomError) -> None:
        """Called once, after the callbacks of all pending requests."""


class Damaged(Unavailable):
    """The connection was closed because of what the peer sent."""


class Connection(Identified[F], asyncio.BufferedProtocol):
    """A connection from the moment it is made until it is lost."""

    # With more than thirty attributes, Python would look up all of them in a dict.
    __slots__ = (
        *("_accept", "_admit", "_answer_bytes", "_answering", "_content", "_encode", "_failure"),
        *("_handler", "_has", "_held", "_last_id", "_may_stop", "_open", "_paused", "_pending"),
        *("_pinger", "_reader", "_received", "_shutdown", "_streams", "_take_reply"),
        *("_take_request", "_timers", "_unsent_bytes_max", "_watch", "_which", "_writable"),
        *("closed", "congested", "get_buffer", "greeted", "heard", "said", "turns"),
    )

    def __init__(
        self,
        codec: Codec[F],
        handler: Handler[F],
        accept: Callable[[Connection[F]], None] | None = None,
        admit: Callable[[Connection[F]], None] = lambda connection: None,
        *,
        peer: str = "",
        traffic: Traffic | None = None,
        watch: Callable[[Connection[F]], None] | None = None,
    ) -> None:
        """`peer` is the address to which this process connected. A listening server passes
        `accept`, which is called when the connection is made (after any TLS handshake) and may
        abort it. `admit` is called when the peer has greeted over TLS, and raises to refuse it.
        `watch` is called every few seconds to measure the memory that the connection uses."""
        accepted = accept is not None
        super().__init__(codec, peer, accepted=accepted)
        self._admit = admit
        self._watch = watch
        self._handler = handler
        self._accept = accept
        self._unsent_bytes_max = (
            limits.ANSWERS_BYTES_MAX if accepted else limits.SEND_BUFFER_BYTES_MAX
        )
        self._answering: set[int] = set()  # pending requests for content, if accepted
        self._open = None if traffic is None else OpenRequests(traffic)  # of the peer, if measured
        self._paused = False  # reading from the peer is paused
        self._answer_bytes = limits.SEND_BUFFER_BYTES  # of a large answer; the first one is alone
        self.turns = Turns(self)  # of look-ups whose answers may be large
        self._reader = codec.reader()
        self._received = self._reader.received
        # A call less for each read.
        self.get_buffer = self._reader.writable  # type: ignore[method-assign]
        self._encode = codec.writer().encode
        self._which, self._has, self._content = codec.which, codec.has, codec.content
        self._shutdown = Shutdown(codec.credentials)
        self._pending: dict[int, OnReply[F]] = {}
        self._streams: set[int] = set()  # ids of pending requests with many answers
        self._timers = Timers()  # of pending requests with a time limit
        self._last_id = 0
        self._writable: asyncio.Future[None] | None = None
        self.congested = False  # callers should slow down: too much is waiting to be sent
        self._failure: LoomError | None = None
        self.closed = False
        self._pinger = Pinger(self)
        self.heard = False  # bytes arrived since this was reset
        self.said = False  # a one-way frame was sent since this was reset
        self.greeted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.greeted.add_done_callback(_retrieve)
        self._take_reply = self._take_request = self._greet  # until the peer has greeted
        self._held = False
        # Set when reading fails or may have to pause, so that nothing else is checked per frame.
        self._may_stop = False

    # ---- asyncio protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._identify(transport)
        transport.set_write_buffer_limits(high=limits.SEND_BUFFER_BYTES)
        detect_silence(transport.get_extra_info("socket"))
        if self._accept is not None:
            self._accept(self)
        try:
            self._check_certificate(transport)
            greeting = self.codec.greeting()
            if self.codec.token_in(greeting) and not self.is_private:
                raise InvalidArgument(f"no token is sent to {self.peer} over plain TCP: use TLS")
            self.send(greeting)
        except LoomError as error:
            self.send(self.codec.failure_frame(error))
            self._fail(error)  # first, because closing may deliver received bytes
            self._shutdown.begin(transport)

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frames that are complete now; with 0, those that arrived before a pause."""
        if self.closed:
            return
        if nbytes:
            self.heard = True
        try:
            for frame, payload in self._received(nbytes):
                if frame.reply:
                    self._take_reply(frame, payload)
                else:
                    self._take_request(frame, payload)
                if self._may_stop:
                    if self._failure is not None:
                        return
                    if self._has_enough():
                        self._pause()
                        return
                    self._may_stop = False
        except Corrupt as error:
            self.abort(Damaged(f"what {self.peer} sent is damaged: {error}"))
        except LoomError as error:
            self.send(self.codec.failure_frame(error))
            self.close(error)
        except Exception as error:
            damaged = Damaged(f"what {self.peer} sent cannot be handled: connection closed")
            damaged.__cause__ = error
            self.abort(damaged)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._shutdown.end()
        if self.greeted.done():
            detail = f": {exc}" if exc else ""
            self._fail(Unavailable(f"the connection to {self.peer} was lost{detail}"))
        else:
            self._fail(HandshakeFailed(self._why_no_greeting(exc)))

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()
        self.congested = True
        if self._accepted:
            self._may_stop = True
            self._pause()

    def resume_writing(self) -> None:
        waiting, self._writable = self._writable, None
        self.congested = False
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
        if self._paused:
            self._resume()

    # ---- backpressure

    def _has_enough(self) -> bool:
        many = len(self._answering) >= limits.READS_PER_CONNECTION_MAX
        return self._held or many or (self._accepted and self._writable is not None)

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if not self._has_enough():
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Handle the frames that arrived before the pause, then resume reading."""
        if not self._paused or self._failure is not None or self._has_enough():
            return
        self._paused = False
        self.buffer_updated(0)
        if not self._paused and self._transport is not None and self._failure is None:
            self._transport.resume_reading()

    def hold(self) -> None:
        """Stop reading requests until `release`, because the last one cannot be handled yet."""
        self._held = self._may_stop = True

    def release(self) -> None:
        self._held = False
        if self._paused:
            self._resume()

    # ---- sending

    @property
    def reads_max(self) -> int:
        """The number of concurrent look-ups: the larger their answers, the fewer."""
        fitting = limits.SEND_BUFFER_BYTES // max(self._answer_bytes, 1)
        return max(1, min(fitting, limits.READS_PER_CONNECTION_MAX))

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call `callback` once few bytes are queued for the peer, or the connection is closed."""
        if self._writable is None:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._writable.add_done_callback(lambda _: callback())

    @property
    def expects(self) -> int:
        """The number of pending requests."""
        return len(self._pending)

    @property
    def held_bytes(self) -> int:
        """The bytes in memory: of an incomplete frame, and of answers not yet read by the peer."""
        return self._reader.held_bytes + self.unsent_bytes

    def recheck(self) -> None:
        super().recheck()
        if not self.heard:
            self._reader.shrink()
        if self._watch is not None and self._failure is None:
            self._watch(self)

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, frame: F, payload: Sequence[Buffer] = ()) -> None:
        """Queue a frame. On a closed connection it is dropped: the owner knows."""
        if self.closed or (self.congested and not self._has_room()):
            return
        encoded = self._encode(frame, payload)
        self._writelines(encoded)
        if not frame.reply:
            self.said = True
        elif payload or self._accepted:
            self._answered(frame.id, payload, encoded)

    def _answered(self, request_id: int, payload: Sequence[Buffer], sent: Sequence[Buffer]) -> None:
        if self._open is not None:
            self._open.answer(request_id, payload)
        if payload or request_id in self._answering:
            self._answer_bytes = max(sum(map(len, sent)), self._answer_bytes // 2)
        if self._counted:
            self.settle(request_id)
        if self._answering:
            self._answering.discard(request_id)
            if self._paused:
                self._resume()

    def end_request(self, request_id: int) -> None:
        """Forget a request that gets no more answers."""
        self.settle(request_id)
        if self._open is not None:
            self._open.forget(request_id)

    def refuse(self, request_id: int, error: LoomError) -> None:
        """Answer a request with an error."""
        if self._open is not None:
            self._open.refuse(request_id, error)
        frame = self.codec.failure_frame(error)
        frame.id, frame.reply = request_id, True
        self.send(frame)

    @property
    def unanswered(self) -> int:
        """The number of requests of the peer that are measured and not answered."""
        return 0 if self._open is None else len(self._open)

    def call(
        self,
        frame: F,
        payload: Sequence[Buffer],
        on_reply: OnReply[F],
        many: bool = False,
        timeout_s: float | None = None,
    ) -> int:
        """Send a request and return its id. `on_reply` is called with the answer or the error; with
        `many`, for every answer until `forget(id)`, an error or the end of the connection. After
        `timeout_s` the error is Timeout."""
        if self._failure is not None:
            asyncio.get_running_loop().call_soon(on_reply, self._failure, _NOTHING)
            return 0
        self._last_id = request_id = self._last_id + 1
        frame.id = request_id
        self._pending[request_id] = on_reply
        if many:
            self._streams.add(request_id)
        self.send(frame, payload)
        # Last: it costs the request no time.
        if timeout_s is not None and request_id in self._pending:
            self._timers.set(request_id, timeout_s, partial(self._time_out, request_id, timeout_s))
        return request_id

    def forget(self, request_id: int) -> None:
        """Ignore further answers to this request."""
        self._pending.pop(request_id, None)
        self._streams.discard(request_id)
        self._timers.cancel(request_id)

    def _time_out(self, request_id: int, timeout_s: float) -> None:
        if (on_reply := self._pending.pop(request_id, None)) is not None:
            error = Timeout(f"{self.peer} did not answer within {seconds(timeout_s)}")
            on_reply(error, _NOTHING)

    def request(
        self,
        frame: F,
        payload: Sequence[Buffer] = (),
        *,
        timeout_s: float = limits.REQUEST_TIMEOUT_S,
    ) -> asyncio.Future[tuple[F, memoryview]]:
        """Send a request and return a Future of its answer, which raises an error answer;
        cancelling it drops the answer."""
        answer: asyncio.Future[tuple[F, memoryview]]
        answer = asyncio.get_running_loop().create_future()

        def on_reply(reply: F | LoomError, content: memoryview) -> None:
            if answer.done():
                return
            if isinstance(reply, LoomError):
                answer.set_exception(reply)
            else:
                answer.set_result((reply, content))

        request_id = self.call(frame, payload, on_reply, timeout_s=timeout_s)
        answer.add_done_callback(lambda _: self.forget(request_id))
        return answer

    async def drain(self) -> None:
        """Wait until the send buffer has room."""
        while self._writable is not None and self._failure is None:
            await asyncio.shield(self._writable)

    def close(self, error: LoomError | None = None) -> None:
        """Close after sending what is queued; pending requests fail with `error`."""
        if self._transport is not None:
            self._shutdown.begin(self._transport)
        self._fail(error or Unavailable(f"the connection to {self.peer} was closed"))

    async def wait_closed(self) -> None:
        """Wait until the transport is closed; with TLS, `closed` becomes true earlier."""
        if self._transport is not None:
            await self._shutdown.wait_closed()

    def abort(self, error: LoomError) -> None:
        """Close at once and drop unsent data."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(error)

    async def give_up(self, error: LoomError) -> None:
        """Abort, and wait until the transport is closed, since the loop may end then. It takes a
        few iterations; uvloop does not report the end of an attempt that was cancelled late."""
        if self._transport is not None:
            self.abort(error)
        for _ in range(_CLOSING_TURNS):
            if self._transport is None:
                return
            await asyncio.sleep(0)

    def ping(self, on_reply: OnReply[F]) -> None:
        """Ask whether the peer is there. Its answer is marked as one, so that it is not answered
        with another ping."""
        said = self.said
        self.call(self.codec.ping(), (), on_reply)
        self.said = said

    # ---- receiving

    def _greet(self, frame: F, payload: memoryview) -> None:
        role = self.codec.check_greeting(frame)
        self.token = self.codec.token_in(frame)
        if self._accepted and self.is_encrypted:
            self._check_identified()
        self._reader.accept_all()
        self.said = False  # the greeting itself
        self._pinger.start()
        self._take_reply, self._take_request = self._replied, self._asked
        self.greeted.set_result(role)

    def _replied(self, frame: F, payload: memoryview) -> None:
        request_id = frame.id
        if request_id in self._streams:
            on_reply = self._pending.get(request_id)
        else:
            on_reply = self._pending.pop(request_id, None)
        if on_reply is None:
            return
        if self._has(frame, ERROR):
            self.forget(request_id)
            on_reply(self.codec.failure(frame), payload)
        else:
            on_reply(frame, payload)
        if self._timers.running:  # last: the callback may have sent the next request
            self._timers.cancel(request_id)

    def _check_identified(self) -> None:
        if self.principal is ANONYMOUS and not self.token:
            raise Unauthorized("show a certificate of this cluster (--tls), or a token")
        self._admit(self)  # or it could hold memory and connections with any text

    def _asked(self, frame: F, payload: memoryview) -> None:
        kind = self._which(frame, BODY) or ""
        if kind == "ping":
            self.send(self.codec.pong_to(frame))
            return
        if kind == "error" and not frame.id:  # the peer says why it is about to close
            self.close(self.codec.failure(frame))
            return
        if self._accepted and kind and (request_id := frame.id):  # noted until it is answered
            message = getattr(frame, kind)  # looked up once, also for the handler
            if kind in self._content and self.codec.asks_for_content(kind, message):
                self._answering.add(request_id)
                self._may_stop = True
            if self._open is not None:
                self._open.begin(request_id, kind, message, payload)
        self._handler.frame_received(self, kind, frame, payload)

    def _has_room(self) -> bool:
        if self.unsent_bytes <= self._unsent_bytes_max:
            return True
        self.abort(Unavailable(f"{self.peer} reads too slowly: connection cut"))
        return False

    def _fail(self, error: LoomError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self.closed = self._may_stop = True
        self._pinger.stop()
        self._reader.drop()  # this connection may stay until the garbage collector finds it
        self._settle_all()
        self.resume_writing()
        if not self.greeted.done():
            self.greeted.set_exception(error)
        pending, self._pending = self._pending, {}
        self._streams.clear()
        self._timers.stop()
        for on_reply in pending.values():
            try:
                on_reply(error, _NOTHING)
            except Exception:  # the other callbacks must still run
                logger.exception("a callback failed when the connection to %s was lost", self.peer)
        self._handler.connection_closed(self, error)


def _retrieve(greeted: asyncio.Future[str]) -> None:
    """Mark a failed greeting as retrieved: the handler gets the error."""
    if not greeted.cancelled():
        greeted.exception()
