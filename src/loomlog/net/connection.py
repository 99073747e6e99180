"""A duplex connection that sends and receives frames and matches answers with requests.

It does not know the messages: a codec (wire.codec.Codec) converts them to bytes and back. Both
sides may send requests. Answers go to plain callbacks, because a Future per request costs five
times as much; `request` creates one where that does not matter.

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
import math
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, cast

from loomlog import limits
from loomlog.core.principal import ANONYMOUS, Kind, Principal
from loomlog.core.usage import UNKNOWN, Usage
from loomlog.errors import (
    Corrupt,
    InvalidArgument,
    LoomError,
    Unauthorized,
    Unavailable,
)
from loomlog.net.call import Call
from loomlog.net.credentials import HandshakeFailed, explain_tls
from loomlog.net.frames import Codec, F, OnReply
from loomlog.net.liveness import Pinger, detect_silence
from loomlog.net.traffic import Traffic
from loomlog.net.turns import Turns
from loomlog.types import Buffer

logger = logging.getLogger(__name__)


_NOTHING = memoryview(b"")
MEASURED_MAX: Final = 4096  # requests at once: a peer may send what is never answered


class Handler(Protocol[F]):
    """The owner of a connection."""

    def frame_received(self, connection: Connection[F], frame: F, payload: memoryview) -> None:
        """Called with a request or one-way frame. The payload view may be kept."""

    def connection_closed(self, connection: Connection[F], error: LoomError) -> None:
        """Called once, after the callbacks of all pending requests."""


class Damaged(Unavailable):
    """The connection was closed because of what the peer sent."""


class OnlyAnswers(Generic[F]):
    """The handler of a connection whose peer only answers."""

    def frame_received(self, connection: Connection[F], frame: F, payload: memoryview) -> None:
        """Ignore the frame: the peer sends no requests."""

    def connection_closed(self, connection: Connection[F], error: LoomError) -> None:
        """Do nothing: pending requests get the error."""


class Connection(asyncio.BufferedProtocol, Generic[F]):
    """A connection from the moment it is made until it is lost."""

    def __init__(
        self,
        codec: Codec[F],
        handler: Handler[F],
        accept: Callable[[Connection[F]], None] | None = None,
        admit: Callable[[Connection[F]], None] = lambda connection: None,
        *,
        peer: str = "",
        traffic: Traffic[F] | None = None,
    ) -> None:
        """`peer` is the address that was connected to. `accept` is called when the connection of a
        listening server is made; it may abort it. One whose TLS handshake fails is never made.
        `admit` raises if a peer that greets over TLS is to be closed."""
        self._codec = codec
        self._admit = admit
        self._handler = handler
        self._accept = accept
        self._accepted = accepted = accept is not None
        self._unsent_bytes_max = (
            limits.ANSWERS_BYTES_MAX if accepted else limits.SEND_BUFFER_BYTES_MAX
        )
        self._answering: set[int] = set()  # pending requests for content, if accepted
        self._traffic = traffic
        self._measured: dict[int, Any] = {}  # requests that are not answered, if measured
        self._paused = False  # reading from the peer is paused
        self._answer_bytes = limits.SEND_BUFFER_BYTES  # of a large answer; the first one is alone
        self.turns = Turns(self)  # of look-ups whose answers may be large
        self._reader = codec.reader()
        self._encode = codec.writer().encode
        self._transport: asyncio.Transport | None = None
        self._writelines: Callable[[Sequence[Buffer]], None]
        self._lost: asyncio.Future[None] | None = None  # while a caller waits for the end
        self._pending: dict[int, OnReply[F]] = {}
        self._streams: set[int] = set()  # ids of pending requests with many answers
        self._last_id = 0
        self._writable: asyncio.Future[None] | None = None
        self._failure: LoomError | None = None
        self._pinger = Pinger(self)
        self.heard = False  # bytes arrived since this was reset
        self.said = False  # a one-way frame was sent since this was reset
        self.greeted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.greeted.add_done_callback(_retrieve)
        self.peer = peer
        self.principal: Principal = ANONYMOUS  # as the peer's certificate states it
        self.token = ""  # that the peer presented; a secret
        self.session: Any = None  # what the guard of a server has decided
        self.usage: Usage = UNKNOWN  # of the peer's identity
        self._counted: dict[int, int] = {}  # payload bytes of the requests in `usage`, by id
        self._held = False
        self._ends_s = math.inf  # of the peer's certificate, since 1970
        self._credentials_generation = 0  # that it was checked against

    @property
    def codec(self) -> Codec[F]:
        return self._codec

    def require(self, kind: Kind, number: int = 0) -> None:
        """Raise Unauthorized unless the peer's certificate is of this kind, and of this number if
        one is given. Without TLS nobody has a certificate."""
        peer = self.principal
        if self._codec.credentials is None or (peer.kind == kind and number in (0, peer.number)):
            return
        wanted = f"{kind} {number}" if number else f"a {kind}"
        raise Unauthorized(f"this needs the certificate of {wanted}, not that of {peer}")

    # ---- asyncio protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self._writelines = transport.writelines
        transport.set_write_buffer_limits(high=limits.SEND_BUFFER_BYTES)
        detect_silence(transport.get_extra_info("socket"))
        if not self.peer:
            name = transport.get_extra_info("peername")
            self.peer = f"{name[0]}:{name[1]}" if name else "?"
        if self._accept is not None:
            self._accept(self)
        try:
            self._identify(transport)
            greeting = self._codec.greeting()
            if self._codec.token_in(greeting) and not self.is_private:
                raise InvalidArgument(f"no token is sent to {self.peer} over plain TCP: use TLS")
            self.send(greeting)
        except LoomError as error:
            self.send(self._codec.failure_frame(error))
            self._fail(error)  # first: closing may hand over what has arrived
            transport.close()

    def _identify(self, transport: asyncio.Transport) -> None:
        credentials = self._codec.credentials
        if credentials is not None:
            self._writelines = _joined_writes(transport)
            certificate = transport.get_extra_info("peercert")
            self.principal = credentials.principal_of(certificate)
            if certificate:
                self._ends_s = ssl.cert_time_to_seconds(certificate["notAfter"])
                self._credentials_generation = credentials.look()

    def recheck(self) -> None:
        """Close if the peer's certificate has expired, or new files do not let it in any more: a
        peer that is let in connects again. Called every few seconds."""
        credentials, transport = self._codec.credentials, self._transport
        if credentials is None or transport is None or self._ends_s == math.inf:
            return
        generation = credentials.look()
        if generation == self._credentials_generation and time.time() < self._ends_s:
            return
        self._credentials_generation = generation
        try:
            credentials.recheck(transport.get_extra_info("ssl_object"))
        except Unauthorized as error:
            self.close(error)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.writable()

    def buffer_updated(self, nbytes: int) -> None:
        self.heard = True
        if self._failure is None:
            self._take(nbytes)

    def _take(self, count: int) -> None:
        try:
            for frame, payload in self._reader.received(count):
                if self.greeted.done():
                    self._received(frame, payload)
                else:
                    self._greet(frame)
                if self._failure is not None:
                    return
                if (
                    self._answering or self._writable is not None or self._held
                ) and self._has_enough():
                    self._pause()
                    return
        except Corrupt as error:
            self.abort(Damaged(f"what {self.peer} sent is damaged: {error}"))
        except LoomError as error:
            self.send(self._codec.failure_frame(error))
            self.close(error)
        except Exception as error:
            damaged = Damaged(f"what {self.peer} sent cannot be handled: connection closed")
            damaged.__cause__ = error
            self.abort(damaged)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
        if self.greeted.done():
            detail = f": {exc}" if exc else ""
            self._fail(Unavailable(f"the connection to {self.peer} was lost{detail}"))
        else:
            self._fail(HandshakeFailed(self._why_no_greeting(exc)))

    def _why_no_greeting(self, error: Exception | None) -> str:
        """Return what may be the matter with a peer that closes the connection at once."""
        refusal = f"{self.peer} closed the connection without a greeting"
        if isinstance(error, ssl.SSLError):
            return f"{refusal}: {explain_tls(error, accepted=self._accepted)}"
        if self._codec.credentials is None:
            return f"{refusal}; if it speaks TLS, connect with --tls"
        return f"{refusal}; if it refuses this side's certificate, its log says why"

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()
        if self._accepted:
            self._pause()

    def resume_writing(self) -> None:
        waiting, self._writable = self._writable, None
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
        """Handle what arrived before the pause, then read on."""
        if not self._paused or self._failure is not None or self._has_enough():
            return
        self._paused = False
        self._take(0)
        if not self._paused and self._transport is not None and self._failure is None:
            self._transport.resume_reading()

    def hold(self) -> None:
        """Read no more requests until `release`: the last one cannot be handled yet."""
        self._held = True

    def release(self) -> None:
        self._held = False
        if self._paused:
            self._resume()

    # ---- the peer

    @property
    def is_encrypted(self) -> bool:
        return self._codec.credentials is not None

    @property
    def is_private(self) -> bool:
        """Return whether secrets may be sent: nobody can listen, or only on this machine."""
        if self.is_encrypted:
            return True
        name = self._transport.get_extra_info("peername") if self._transport else None
        return name is not None and (name[0] == "::1" or name[0].startswith("127."))

    # ---- sending

    @property
    def closed(self) -> bool:
        return self._failure is not None

    @property
    def congested(self) -> bool:
        """Return whether callers should slow down: too much is waiting to be sent."""
        return self._writable is not None

    @property
    def reads_max(self) -> int:
        """The number of concurrent look-ups: the larger their answers, the fewer."""
        fitting = limits.SEND_BUFFER_BYTES // max(self._answer_bytes, 1)
        return max(1, min(fitting, limits.READS_PER_CONNECTION_MAX))

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call it once little enough is queued for the peer, or the connection is closed."""
        if self._writable is None:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._writable.add_done_callback(lambda _: callback())

    @property
    def expects(self) -> int:
        """The number of pending requests."""
        return len(self._pending)

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, frame: F, payload: Sequence[Buffer] = ()) -> None:
        """Queue a frame. On a closed connection it is dropped: the owner knows."""
        transport = self._transport
        if transport is None or self._failure is not None:
            return
        if self._writable is not None and not self._has_room(transport):
            return
        encoded = self._encode(frame, payload)
        self._writelines(encoded)
        if self._measured and frame.reply:
            self._measure(frame.id, payload)
        if payload or frame.id in self._answering:
            self._answer_bytes = max(sum(map(len, encoded)), self._answer_bytes // 2)
        if not frame.reply:
            self.said = True
            return
        if self._counted:
            self.settle(frame.id)
        if self._answering:
            self._answering.discard(frame.id)
            if self._paused:
                self._resume()

    def count(self, request_id: int, size: int) -> None:
        """Count a request against the limits of its identity until it is answered; raise Busy if
        they are reached."""
        if not request_id or request_id in self._counted:
            raise InvalidArgument("a request needs an id that no other one has")
        self.usage.begin(size)
        self._counted[request_id] = size

    def settle(self, request_id: int) -> None:
        """Count a request no longer: it was answered, or never will be."""
        if (size := self._counted.pop(request_id, None)) is not None:
            self.usage.end(size)

    def end_request(self, request_id: int) -> None:
        """Forget a request that gets no more answers."""
        self.settle(request_id)
        self._measured.pop(request_id, None)

    def refuse(self, request_id: int, error: LoomError) -> None:
        """Answer a request with an error."""
        if self._traffic is not None:
            self._traffic.refuse(self._measured.pop(request_id, None), error)
        frame = self._codec.failure_frame(error)
        frame.id, frame.reply = request_id, True
        self.send(frame)

    @property
    def unanswered(self) -> int:
        """The number of requests of the peer that are measured and not answered."""
        return len(self._measured)

    def _measure(self, request_id: int, payload: Sequence[Buffer]) -> None:
        request, traffic = self._measured.pop(request_id, None), self._traffic
        if request is None or traffic is None:
            return
        if traffic.answer(request, sum(map(len, payload))):
            self._measured[request_id] = request

    def call(
        self,
        frame: F,
        payload: Sequence[Buffer],
        on_reply: OnReply[F],
        *,
        many: bool = False,
    ) -> int:
        """Send a request and return its id. `on_reply` is called with the answer or the error; with
        `many`, for every answer until `forget(id)`, an error or the end of the connection."""
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
        """Ignore further answers to this request."""
        self._pending.pop(request_id, None)
        self._streams.discard(request_id)

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

        call = Call(self, frame, payload, timeout_s, on_reply)
        answer.add_done_callback(lambda _: call.cancel())
        return answer

    async def drain(self) -> None:
        """Wait until the send buffer has room."""
        while self._writable is not None and self._failure is None:
            await asyncio.shield(self._writable)

    def close(self, error: LoomError | None = None) -> None:
        """Close after sending what is queued; pending requests fail with `error`."""
        if self._transport is not None:
            self._transport.close()
        self._fail(error or Unavailable(f"the connection to {self.peer} was closed"))

    @property
    def is_gone(self) -> bool:
        """Return whether nothing is left of it; with TLS that is later than `closed`."""
        return self._transport is None

    async def wait_closed(self) -> None:
        """Wait until a connection that was closed is gone."""
        if not self.is_gone:
            self._lost = self._lost or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._lost)

    def abort(self, error: LoomError) -> None:
        """Close at once and drop what was not sent."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(error)

    def ping(self, on_reply: OnReply[F]) -> None:
        self.call(self._codec.ping(), (), on_reply)

    # ---- receiving

    def _greet(self, frame: F) -> None:
        role = self._codec.check_greeting(frame)
        self.token = self._codec.token_in(frame)
        if self._accepted and self._codec.credentials is not None:
            self._check_identified()
        self._reader.accept_all()
        self.said = False  # the greeting itself
        self._pinger.start()
        self.greeted.set_result(role)

    def _received(self, frame: F, payload: memoryview) -> None:
        if not frame.reply:
            self._asked(frame, payload)
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

    def _check_identified(self) -> None:
        if self.principal is ANONYMOUS and not self.token:
            raise Unauthorized("show a certificate of this cluster (--tls), or a token")
        self._admit(self)  # or it could hold memory and connections with any text

    def _asked(self, frame: F, payload: memoryview) -> None:
        kind = self._codec.kind(frame)
        if kind == "ping":
            self.send(self._codec.pong_to(frame))
        elif kind == "error" and not frame.id:  # the peer says why it is about to close
            self.close(self._codec.failure(frame))
        else:
            if self._accepted and frame.id and self._codec.asks_for_content(kind, frame):
                self._answering.add(frame.id)
            if self._traffic is not None and frame.id > 0 and len(self._measured) < MEASURED_MAX:
                request = self._traffic.begin(kind, frame, payload)
                if request is not None:
                    self._measured[frame.id] = request
            self._handler.frame_received(self, frame, payload)

    def _has_room(self, transport: asyncio.Transport) -> bool:
        if transport.get_write_buffer_size() <= self._unsent_bytes_max:
            return True
        self.abort(Unavailable(f"{self.peer} reads too slowly: connection cut"))
        return False

    def _fail(self, error: LoomError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self._pinger.stop()
        for size in self._counted.values():
            self.usage.end(size)
        self._counted.clear()
        self.resume_writing()
        if not self.greeted.done():
            self.greeted.set_exception(error)
        pending, self._pending = self._pending, {}
        self._streams.clear()
        for on_reply in pending.values():
            try:
                on_reply(error, _NOTHING)
            except Exception:  # the other callbacks still have to run
                logger.exception("a callback failed when the connection to %s was lost", self.peer)
        self._handler.connection_closed(self, error)


def _joined_writes(transport: asyncio.Transport) -> Callable[[Sequence[Buffer]], None]:
    """Return a function that writes buffers as one: TLS makes a record of each, and a record costs
    more than a copy."""
    write = transport.write
    return lambda buffers: write(b"".join(buffers))


def _retrieve(greeted: asyncio.Future[str]) -> None:
    """Mark a failed greeting as retrieved: the handler gets the error."""
    if not greeted.cancelled():
        greeted.exception()
