"""A small HTTP/1.1 server of status and metrics: GET of a few paths, answered from memory.

It is not a web framework, and should not become one. Everything is bounded: the size of a request,
the number of connections (the one that has been idle for longest is closed), and the duration of
requests and pauses. Input that is not HTTP is answered with 400, if possible, and the connection is
closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from http import HTTPStatus
from typing import Final, TypeAlias, cast

import h11

from loomlog.core.principal import ANONYMOUS, Principal
from loomlog.errors import LoomError
from loomlog.net.address import is_loopback, join_address
from loomlog.net.credentials import Credentials
from loomlog.net.listener import Listener

log = logging.getLogger(__name__)

Content: TypeAlias = tuple[str, bytes]  # content type, body
Route: TypeAlias = Callable[[], Content | Awaitable[Content]]  # a LoomError: 503, with its text
Permits: TypeAlias = Callable[[Principal, str, str], bool]  # who, token, from which address

REQUEST_BYTES_MAX: Final = 16 * 1024  # request line and headers; also the limit of a body
CONNECTIONS_MAX: Final = 128  # a monitoring system needs two
UNREAD_BYTES_MAX: Final = 16 * 1024 * 1024  # unread answers; then the connection is closed
REQUEST_S: Final = 5.0  # from the first byte of a request to its last
SILENCE_S: Final = 30.0  # a connection without a request is closed after this


class HttpServer:
    """Serves `routes` (path to function) until stopped."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        credentials: Credentials | None = None,
        public: Collection[str] = (),
        permits: Permits | None = None,
    ) -> None:
        """Use TLS if `credentials` are given. Paths outside `public` are served only to callers
        that `permits` accepts; without `permits`, to all callers."""
        self._routes = dict(routes)
        self._public = frozenset(routes if permits is None else public)
        self._permits = permits
        self._credentials = credentials
        self._listener = Listener(self._connection, credentials)
        self._connections: dict[_Connection, None] = {}  # most recent request last

    async def start(self, address: str) -> None:
        """Listen; port 0 picks a free one. Raise InvalidArgument if the address is taken."""
        await self._listener.start(address)

    @property
    def address(self) -> str:
        """The address it listens on, as host:port."""
        return self._listener.address

    async def stop(self) -> None:
        """Stop listening and close every connection. Does nothing if never started."""
        await self._listener.stop()
        for connection in list(self._connections):
            connection.close()

    def _connection(self) -> _Connection:
        return _Connection(self._routes, self._connections, self._may_see)

    def _may_see(self, path: str, request: h11.Request, transport: asyncio.Transport) -> bool:
        if path in self._public or self._permits is None:
            return True
        name, principal = transport.get_extra_info("peername"), ANONYMOUS
        is_private = self._credentials is not None or is_loopback(join_address(name[0], 0))
        try:
            if self._credentials is not None:
                self._credentials.look()
                principal = self._credentials.peer_of(transport)
            token = _token(request) if is_private else ""
            if self._credentials is not None and principal is ANONYMOUS and not token:
                return False  # as on all other connections
            return self._permits(principal, token, join_address(*name[:2]))
        except LoomError:
            return False


class _Connection(asyncio.Protocol):
    def __init__(
        self,
        routes: Mapping[str, Route],
        connections: dict[_Connection, None],
        may_see: Callable[[str, h11.Request, asyncio.Transport], bool],
    ) -> None:
        self._routes = routes
        self._connections = connections
        self._may_see = may_see
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asking = False  # a request has begun to arrive
        self._request: h11.Request | None = None
        self._body_bytes = 0
        self._early_bytes = 0  # that arrived while the page was made
        self._page: asyncio.Future[Content] | None = None  # that is being made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        if len(self._connections) >= CONNECTIONS_MAX:
            next(iter(self._connections)).abort()
        self._connections[self] = None
        self._close_after(REQUEST_S)  # a new connection should send a request

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._page is not None:
            self._page.cancel()

    def data_received(self, data: bytes) -> None:
        if not self._asking:
            self._asking = True
            self._close_after(REQUEST_S)
        if self._page is not None:
            self._early_bytes += len(data)
            if self._early_bytes > REQUEST_BYTES_MAX:
                self.abort()
                return
        try:
            self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            self._refuse(error)
        else:
            self._advance()

    def eof_received(self) -> bool:
        return False  # close: the peer no longer reads

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._connections.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    def _close_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)

    def _unread_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _answered(self) -> None:
        self._asking = False
        self._close_after(SILENCE_S)
        if self._connections.pop(self, self) is None:
            self._connections[self] = None

    def _advance(self) -> None:
        try:
            self._handle_events()
        except h11.RemoteProtocolError as error:
            self._refuse(error)

    def _handle_events(self) -> None:
        while self._page is None:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                self._request, self._body_bytes = event, 0
                self._allow_body(_declared_bytes(event))
            elif isinstance(event, h11.Data):
                self._body_bytes += len(event.data)
                self._allow_body(self._body_bytes)
            elif isinstance(event, h11.EndOfMessage):
                self._answer()
                if self._page is None and not self._finish():
                    return
            else:  # NEED_DATA, PAUSED, ConnectionClosed
                return

    def _finish(self) -> bool:
        """Called after an answer; return whether more requests may follow."""
        self._request = None
        self._answered()
        if self._unread_bytes() > UNREAD_BYTES_MAX:
            self.abort()
            return False
        if self._http.our_state is h11.MUST_CLOSE:
            self.close()
            return False
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        return True

    def _allow_body(self, size: int) -> None:
        if size > REQUEST_BYTES_MAX:
            raise h11.RemoteProtocolError("body too large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def _answer(self) -> None:
        assert self._request is not None
        method = self._request.method
        path = self._request.target.split(b"?", 1)[0].decode("ascii", "replace")
        route = self._routes.get(path)
        if route is None:
            known = ", ".join(sorted(self._routes))
            self._send(HTTPStatus.NOT_FOUND, _plain(f"nothing here; there is: {known}"))
        elif self._transport is None or not self._may_see(path, self._request, self._transport):
            text = "this needs the permission metrics: show a certificate, or a token as Bearer"
            self._send(HTTPStatus.FORBIDDEN, _plain(text))
        elif method not in (b"GET", b"HEAD"):
            self._send(HTTPStatus.METHOD_NOT_ALLOWED, _plain("only GET"), [("Allow", "GET, HEAD")])
        else:
            self._call(route, path)

    def _call(self, route: Route, path: str) -> None:
        """Answer with the page, which may take a while to create."""
        try:
            content = route()
        except Exception as error:
            self._send(*_failed(error, path))
            return
        if isinstance(content, tuple):
            self._send(HTTPStatus.OK, content)
            return
        self._page = asyncio.ensure_future(content)
        self._page.add_done_callback(partial(self._page_made, path))
        self._early_bytes = 0

    def _page_made(self, path: str, page: asyncio.Future[Content]) -> None:
        self._page = None
        if page.cancelled():
            return
        error = page.exception()
        if self._transport is None or self._transport.is_closing():
            return
        if error is None:
            self._send(HTTPStatus.OK, page.result())
        else:
            self._send(*_failed(error, path))
        if self._finish():
            self._advance()

    def _send(
        self,
        status: HTTPStatus,
        content: Content,
        headers: list[tuple[str, str]] | None = None,
    ) -> None:
        content_type, body = content
        response = h11.Response(
            status_code=status,
            reason=status.phrase.encode(),
            headers=[
                ("Content-Type", content_type),
                ("Content-Length", str(len(body))),
                ("Cache-Control", "no-store"),
                *(headers or []),
            ],
        )
        head_only = self._request is not None and self._request.method == b"HEAD"
        self._write(response)
        if not head_only:
            self._write(h11.Data(data=body))
        self._write(h11.EndOfMessage())

    def _write(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data and self._transport is not None:
            self._transport.write(data)

    def _refuse(self, error: h11.RemoteProtocolError) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status = HTTPStatus(error.error_status_hint)
            self._send(status, _plain(status.phrase.lower()), [("Connection", "close")])
        self.close()


def _failed(error: BaseException, path: str) -> tuple[HTTPStatus, Content]:
    if isinstance(error, LoomError):
        return HTTPStatus.SERVICE_UNAVAILABLE, _plain(str(error))
    log.error("the page failed", extra={"path": path}, exc_info=error)
    return HTTPStatus.INTERNAL_SERVER_ERROR, _plain("the page failed; see the server's log")


def _declared_bytes(request: h11.Request) -> int:
    sizes = [value for name, value in request.headers if name == b"content-length"]
    return int(sizes[0]) if sizes else 0


def _token(request: h11.Request) -> str:
    """Return the token of `Authorization: Bearer TOKEN`; empty: there is none."""
    given = [value for name, value in request.headers if name == b"authorization"]
    kind, _, token = given[0].partition(b" ") if given else (b"", b"", b"")
    return token.strip().decode("latin-1") if kind.lower() == b"bearer" else ""


def _plain(text: str) -> Content:
    return "text/plain; charset=utf-8", f"{text}\n".encode()
