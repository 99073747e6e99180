"""Targets that read tokens, and what comes over HTTP."""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import cache
from typing import Any, Final

import uvicorn
from fuzzing import Target, same
from starlette.requests import Request
from uvicorn.server import ServerState

from loomlog.console.api import ROUTES
from loomlog.console.application import Endpoint
from loomlog.console.http_protocol import HttpProtocol
from loomlog.console.route import Call, Route
from loomlog.console.site import Bodies
from loomlog.core.permissions import parse_permissions
from loomlog.errors import Unavailable
from loomlog.http import HttpServer
from loomlog.wire import tokens

_NOW_S: Final = 1_800_000_000


# ---- tokens and HTTP

_KEY: Final = tokens.new_private_key()
_KEYS: Final = {1: tokens.public_key(_KEY)}


def _read_token(data: bytes) -> object:
    found = tokens.verify(data.decode("latin-1"), _KEYS, frozenset(), _NOW_S)
    return found.name, found.permissions, found.expires_s


def _token_example() -> bytes:
    allow = parse_permissions("append:orders.*")
    return tokens.sign(1, _KEY, "billing", allow, _NOW_S + 100).text.encode()


class _StillLoop:
    """An event loop whose timers never ring."""

    def call_later(self, *_: object) -> Any:
        return self

    def cancel(self) -> None:
        """Do nothing: it would not have rung."""


class _Transport:
    def __init__(self) -> None:
        self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)

    def close(self) -> None:
        """Do nothing: the input ends anyway."""

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> None:
        return None


_PAGES: Final = {"/status": lambda: ("text/plain", b"ok")}


def _read_http(data: bytes) -> int:
    asyncio._set_running_loop(_StillLoop())  # type: ignore[arg-type]
    try:
        connection, transport = HttpServer(_PAGES)._connection(), _Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        for at in range(0, len(data), 500):
            connection.data_received(data[at : at + 500])
        connection.connection_lost(None)
    finally:
        asyncio._set_running_loop(None)
    if transport.written > 1000 * (len(data) + 1):
        raise MemoryError(f"{transport.written} bytes of answers to {len(data)}")
    return transport.written


_HTTP: Final = (
    b"GET /status HTTP/1.1\r\nHost: x\r\n\r\nGET /nothing HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"HEAD /status HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    b"0\r\n\r\n",
)


# ---- the HTTP API


class _NoCluster:
    """The clients of an API that asks nothing of its cluster."""

    bodies = Bodies()

    @property
    def clients(self) -> _NoCluster:
        return self

    def use(self, token: str) -> _NoCluster:
        return self

    async def __aenter__(self) -> None:
        """Do nothing: there is no cluster."""

    async def __aexit__(self, *_: object) -> None:
        """Do nothing, as before."""


async def _understood(call: Call) -> None:
    raise Unavailable("the request was understood")


_ENDPOINTS: Final = [
    (route, Endpoint(replace(route, handle=_understood), _NoCluster()))  # type: ignore[arg-type]
    for route in ROUTES
]


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


def _read_api(data: bytes) -> None:
    """Handle a request until it is known what it asks of the cluster. The bytes are the number of a
    route, a line of its query, lines of headers, and behind an empty line its body."""
    route, endpoint = _ENDPOINTS[(data[0] if data else 0) % len(_ENDPOINTS)]
    head, _, body = data[1:].partition(b"\n\n")
    query, *headers = head.split(b"\n")
    texts = {each.name: query.decode("latin-1") for each in route.of("path")}
    scope = {
        "type": "http",
        "method": route.method,
        "path": route.path,
        "query_string": query,
        "headers": [
            (name.lower(), value.strip())
            for name, _, value in (header.partition(b":") for header in headers)
        ],
        "path_params": texts,
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 9),
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def answer() -> None:
        async with AsyncExitStack() as stack:
            await endpoint._response(Request(scope, receive), stack)

    _loop().run_until_complete(answer())


def _api_examples() -> Iterable[bytes]:
    for number, (route, _) in enumerate(_ENDPOINTS):
        query = "&".join(f"{name}={value}" for name, value in _values(route, "query").items())
        head = f"{query}\ncontent-type: application/json\nauthorization: Bearer x\nhost: localhost"
        body = _values(route, "body")
        text = json.dumps(body).encode() if body else b""
        yield bytes([number]) + head.encode() + b"\n\n" + text


def _values(route: Route, place: str) -> dict[str, Any]:
    return {each.name: _VALUES.get(str(each.schema.get("type")), 1) for each in route.of(place)}


_VALUES: Final = {"string": "text", "boolean": True, "array": [1, 2], "object": {}}


# ---- connections of the console


class _ConsoleTransport(_Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.content = bytearray()
        self.closing = False

    def write(self, data: bytes) -> None:
        self.content += data

    def close(self) -> None:
        self.closing = True

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        """Do nothing: the rest of the input comes anyway."""

    resume_reading = pause_reading


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the size of the body; nothing to a peer that has left."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message["body"]), message["more_body"]
    headers = [(b"content-length", b"%d" % len(b"%d" % size))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"%d" % size})


@cache
def _console_config() -> uvicorn.Config:
    config = uvicorn.Config(_echo, http=HttpProtocol, ws="none", lifespan="off", log_config=None)
    config.load()
    return config


def _read_console(data: bytes) -> int:
    return _loop().run_until_complete(_connect(data))


async def _connect(data: bytes) -> int:
    """Be a peer that sends this and leaves. An error of ours is what uvicorn logs as one."""
    state, transport = ServerState(), _ConsoleTransport()
    protocol = HttpProtocol(config=_console_config(), server_state=state, app_state={})
    wrong: list[logging.LogRecord] = []
    protocol.logger = logging.Logger("console", logging.ERROR)
    protocol.logger.addFilter(lambda record: wrong.append(record) or False)  # type: ignore[func-returns-value]
    protocol.connection_made(transport)  # type: ignore[arg-type]
    for at in range(0, len(data), 500):
        if not transport.closing:
            protocol.data_received(data[at : at + 500])
            await asyncio.sleep(0)
    protocol.connection_lost(None)
    if state.tasks:
        await asyncio.wait(state.tasks, timeout=1)
    if wrong or state.tasks or state.connections:
        raise AssertionError(f"{[each.getMessage() for each in wrong]}, {len(state.tasks)} left")
    if transport.content and not transport.content.startswith(b"HTTP/1.1 "):
        raise AssertionError(f"it answers {bytes(transport.content[:50])!r}")
    return len(transport.content)


def http_targets() -> list[Target]:
    """Return the targets of this module, the fastest kinds first."""
    return [
        Target("token", (_token_example(),), _read_token, compare=same(_read_token)),
        Target("http", _HTTP, _read_http),
        Target("console", _HTTP, _read_console),
        Target("api", tuple(_api_examples()), _read_api),
    ]
