"""The web application: routes of the API, pages, and what protects both.

A page of another site must not be able to use the console through a visitor's browser. So requests
that change something are refused if they come from another origin, nothing is ever shared across
origins, and a console on loopback answers only to names of loopback: another name that leads there
would make another site's pages those of this one.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route as PathRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loomlog.console import openapi
from loomlog.console.api import ROUTES
from loomlog.console.failures import ForeignOrigin, WrongType, answer_to
from loomlog.console.pages import Pages
from loomlog.console.route import Call, Route, checked_values, is_binary
from loomlog.console.site import Connector, check_origin, token_of
from loomlog.errors import InvalidArgument, LoomError, NotFound, Unauthorized
from loomlog.net.address import is_loopback

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def application(connector: Connector, pages: Pages, *, only_loopback: bool) -> ASGIApp:
    """Return the whole application."""
    routes = [
        PathRoute(route.path, Endpoint(route, connector), methods=[route.method])
        for route in ROUTES
    ]
    described = openapi.document(ROUTES)

    async def describe(_: Request) -> Response:
        return JSONResponse(described)

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    shared = [PathRoute("/openapi.json", describe), PathRoute("/healthz", healthz)]
    app = Starlette(
        routes=[*routes, *shared, *pages.routes()],
        exception_handlers={HTTPException: _refuse},
    )
    app.router.redirect_slashes = False  # a redirection is no error in JSON
    app.state.pages = pages
    app.state.connector = connector
    return Protection(app, only_loopback=only_loopback)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        response = answer_to(InvalidArgument(f"{request.method} is not for this path"), named=True)
        response.status_code = 405
        response.headers.update(error.headers or {})
        return response
    if "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/v1"):
        pages: Pages = request.app.state.pages
        return pages.failure(request, None, NotFound("there is no such page"))
    return answer_to(NotFound("nothing here: /openapi.json describes what there is"), named=True)


class Endpoint:
    """One route of the API, as an ASGI application."""

    def __init__(self, route: Route, connector: Connector) -> None:
        self._route = route
        self._clients = connector.clients
        self._bodies = connector.bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        async with AsyncExitStack() as stack:
            try:
                response = await self._response(request, stack)
            except Exception as error:
                response = answer_to(error, named=bool(token_of(request)))
            await response(scope, receive, send)

    async def _response(self, request: Request, stack: AsyncExitStack) -> Response:
        """Return the answer; what it needs while it is sent is left in `stack`."""
        check_origin(request)
        _check_scheme(request)
        token = request.state.token = token_of(request)
        # First: this process holds no body of a caller whom the cluster does not let in.
        cluster = await stack.enter_async_context(self._clients.use(token))
        reading = self._bodies.read(request, self._route.body_bytes_max)
        body = await stack.enter_async_context(reading)
        _check_type(request, self._route, body)
        values = checked_values(self._route, request, body)
        answer = await self._route.handle(Call(cluster, request, values, body))
        return answer if isinstance(answer, Response) else JSONResponse(answer)


def _check_scheme(request: Request) -> None:
    if request.headers.get("authorization", "bearer ").partition(" ")[0].lower() != "bearer":
        raise Unauthorized("write `Authorization: Bearer TOKEN`, with a token of `loom token`")


def _check_type(request: Request, route: Route, body: bytes) -> None:
    if not body or (route.also_bytes and is_binary(request)):
        return
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        others = " or application/octet-stream" if route.also_bytes else ""
        raise WrongType(f"send Content-Type: application/json{others}, not {kind[:100]!r}")


class Protection:
    """Refuses names that are not ours, and tells browsers what answers may do."""

    def __init__(self, app: ASGIApp, *, only_loopback: bool) -> None:
        self._app = app
        self._only_loopback = only_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if self._only_loopback and not _is_own(Headers(scope=scope).get("host", "")):
            error = ForeignOrigin("this console is for its own machine: use 127.0.0.1 or localhost")
            await answer_to(error, named=True)(scope, receive, send_protected)
            return
        await self._app(scope, receive, send_protected)


def _is_own(host: str) -> bool:
    name = host if ":" in host.rpartition("]")[2] else f"{host}:80"
    try:
        return is_loopback(name)
    except LoomError:
        return False
