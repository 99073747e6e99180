"""The pages of the web console: rendered here, kept up to date by server-sent events.

The blocks of a template whose names begin with `live_` are rendered again after every look at the
cluster, and sent when they have changed. The entries of a log are sent again until they are found.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route as PathRoute
from starlette.types import Receive, Scope, Send

from loomlog.client.log import Log
from loomlog.console import view
from loomlog.console.api.records import event, events, first_position, with_pulse
from loomlog.console.contents import PAGES, Page, Visit, entries, log
from loomlog.console.failures import answer_to, status_of
from loomlog.console.latencies import Latencies, Operations, Scraper
from loomlog.console.rates import Rates
from loomlog.console.site import (
    TOKEN_COOKIE,
    Connector,
    check_origin,
    token_of,
)
from loomlog.console.watch import Watch, Watches
from loomlog.errors import LoomError, NotFound, PermissionDenied, Retryable, Unauthorized
from loomlog.limits import KIB

PULSE_S: Final = 15.0
_HERE: Final = Path(__file__).parent
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def _got(path: str, endpoint: Callable[..., Any]) -> PathRoute:
    """Return a route for GET and HEAD alone; Starlette lets objects handle all methods."""
    return PathRoute(path, endpoint, methods=["GET"])


class Pages:
    """All pages, and the events that keep them up to date."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        scraper = Scraper(connector.metrics, connector.tls) if connector.metrics else None
        self.watches = Watches(connector.clients, scraper)
        self._templates = _environment()

    def routes(self) -> list[PathRoute]:
        found = [_got(page.path, _Endpoint(self, page, self._page)) for page in PAGES]
        live = [
            _got(f"/live{page.path.rstrip('/')}", _Endpoint(self, page, self._live))
            for page in PAGES
        ]
        [page] = [page for page in PAGES if page.load is log]
        return [
            *found,
            *live,
            _got("/rows/{log}", _Endpoint(self, page, self._rows)),
            _got("/static/{name}", _static),
            PathRoute("/sign-in", self._sign_in, methods=["POST"]),
            PathRoute("/sign-out", self._sign_out, methods=["POST"]),
        ]

    async def visit(self, request: Request, stack: AsyncExitStack) -> Visit:
        token = token_of(request)
        cluster = await stack.enter_async_context(self._connector.clients.use(token))
        watch = await self.watches.of(token)
        return Visit(request, cluster, watch, self._connector, token)

    async def _page(self, page: Page, visit: Visit) -> Response:
        context = await page.load(visit)
        if page.load is log:
            context |= await entries(visit)
        return self.show(page.template, visit.request, page, context)

    def show(
        self,
        template: str,
        request: Request,
        page: Page | None,
        context: Mapping[str, Any],
        status: int = 200,
    ) -> Response:
        html = self._templates.get_template(template).render(
            {**_frame(request, page, self._connector), **context}
        )
        return HTMLResponse(html, status)

    def failure(self, request: Request, page: Page | None, error: LoomError) -> Response:
        """Return a page that says what is wrong; it becomes the page itself when that is over."""
        denied, named = isinstance(error, PermissionDenied | Unauthorized), bool(token_of(request))
        title = "Not found" if isinstance(error, NotFound) else "Not available"
        if denied:
            title = "Not permitted" if named else "Sign in"
        waits = page is not None and not denied
        context = {"error": error, "title": title, "denied": denied, "waits": waits}
        return self.show("failure.html", request, page, context, status_of(error))

    async def _live(self, page: Page, visit: Visit) -> Response:
        return events(self._changes(page, visit))

    async def _changes(self, page: Page, visit: Visit) -> AsyncIterator[str]:
        template = self._templates.get_template(page.template)
        sent: dict[str, str] = {}
        watch, failed, is_away = visit.watch, visit.asked("failed") == "1", False
        charts = _Charts(watch)
        for chart in charts.new():
            yield chart
        searches = _Searches(visit)
        async with (
            aclosing(with_pulse(watch.looks(), PULSE_S)) as looks,
            aclosing(searches),
        ):
            async for _ in looks:
                try:
                    context = await page.load(visit)
                except (PermissionDenied, Unauthorized):
                    yield event("reload", {})  # the page asks for a token then
                    return
                except LoomError as error:
                    yield event("failure", {"html": view.with_code(view.sentence(str(error)))})
                    is_away = True
                    failed = failed or not isinstance(error, Retryable)  # a log was deleted, say
                    continue
                if failed:
                    yield event("reload", {})
                    return
                parts = self._parts(template, visit.request, page, context)
                if (found := searches.next()) is not None:
                    parts |= self._parts(template, visit.request, page, context | found, "entries")
                changed = {name: html for name, html in parts.items() if sent.get(name) != html}
                sent |= parts
                yield event("parts", changed) if changed or is_away else ":\n\n"
                is_away = False
                for chart in charts.new():
                    yield chart

    def _parts(
        self,
        template: Template,
        request: Request,
        page: Page,
        context: Mapping[str, Any],
        names: str = "live_",
    ) -> dict[str, str]:
        """Render the blocks whose names begin so."""
        frame = _frame(request, page, self._connector)
        shared = template.new_context({**frame, **context})
        return {
            name: "".join(block(shared))
            for name, block in template.blocks.items()
            if name.startswith(names)
        }

    async def _rows(self, page: Page, visit: Visit) -> Response:
        handle = visit.cluster.log(visit.request.path_params["log"])
        start = await first_position(handle, visit.asked("from") or "latest")
        return events(self._new_rows(handle, start))

    async def _new_rows(self, handle: Log, start: int) -> AsyncIterator[str]:
        template = self._templates.get_template("rows.html")
        info = await handle.describe()
        async with aclosing(with_pulse(handle.subscribe(start), PULSE_S)) as source:
            async for row in source:
                if row is None:
                    yield ":\n\n"
                else:
                    html = template.render(rows=[view.entry(info, row)], name=handle.name)
                    yield event("rows", {"html": html}, row.position)

    # ---- tokens of visitors

    async def _sign_in(self, request: Request) -> Response:
        try:
            check_origin(request)
            async with self._connector.bodies.read(request, 16 * KIB) as body:
                text = body.decode("ascii", "replace")
        except LoomError as error:
            return answer_to(error, named=True)
        token = parse_qs(text).get("token", [""])[0].strip()
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            TOKEN_COOKIE,
            quote(token, safe="=._-+/"),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def _sign_out(self, request: Request) -> Response:
        try:
            check_origin(request)
        except LoomError as error:
            return answer_to(error, named=True)
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(TOKEN_COOKIE)
        return answer


class _Charts:
    """The values of charts that a page does not have yet, as events."""

    def __init__(self, watch: Watch) -> None:
        self._series: tuple[tuple[str, Iterable[Rates | Latencies | Operations]], ...] = (
            ("rates", watch.rates),
            ("latencies", watch.latencies),
            ("operations", watch.operations),
        )
        self._until_s = dict.fromkeys((name for name, _ in self._series), 0.0)

    def new(self) -> Iterator[str]:
        for name, values in self._series:
            for each in list(values):
                if each.time_s > self._until_s[name]:
                    self._until_s[name] = each.time_s
                    yield event(name, each.charted)


class _Searches:
    """Repeats the search of a page that found no entries, until it finds some."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._waits = visit.asked("waits") == "1"
        self._searching: asyncio.Task[dict[str, Any]] | None = None

    def next(self) -> dict[str, Any] | None:
        """Return what a search that has ended found, if any, and begin the next one if need be."""
        found = None
        if self._searching is not None and self._searching.done():
            found, self._searching = self._searching.result(), None
            self._waits = found["waits"]
        if self._waits and self._searching is None:
            self._searching = asyncio.get_running_loop().create_task(entries(self._visit))
        return found

    async def aclose(self) -> None:
        if self._searching is not None:
            self._searching.cancel()
            await asyncio.wait([self._searching])


class _Endpoint:
    """A page as an ASGI application, which holds its client while the answer is sent."""

    def __init__(
        self, pages: Pages, page: Page, answer: Callable[[Page, Visit], Awaitable[Response]]
    ) -> None:
        self._pages = pages
        self._page = page
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        async with AsyncExitStack() as stack:
            try:
                visit = await self._pages.visit(request, stack)
                response = await self._answer(self._page, visit)
            except LoomError as error:
                response = self._pages.failure(request, self._page, error)
            await response(scope, receive, send)


def _frame(request: Request, page: Page | None, connector: Connector) -> dict[str, Any]:
    """Return what every template needs."""
    return {
        "path": request.url.path.removeprefix("/live") or "/",
        "page": page,
        "menu": [each for each in PAGES if each.in_menu],
        "named": bool(token_of(request)),
        "addresses": connector.addresses,
        "has_metrics": bool(connector.metrics),
    }


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,  # a package that is upgraded under a console that runs is another one
    )
    environment.filters |= view.FILTERS
    environment.globals |= {"asset": _asset}
    environment.globals["ui"] = environment.get_template("macros.html").module
    return environment


# ---- files


@cache
def _assets() -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (_HERE / "static").iterdir()}


@cache
def _asset(name: str) -> str:
    """Return the address of a file, which changes with its content."""
    return f"/static/{name}?v={hashlib.sha256(_assets()[name]).hexdigest()[:12]}"


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    content = _assets().get(name)
    if content is None:
        return answer_to(NotFound(f"there is no file {name!r}"), named=True)
    headers = {"Cache-Control": "max-age=31536000, immutable"}
    return Response(content, headers=headers, media_type=_TYPES[Path(name).suffix])
