"""The part of a request that the API and pages share: its caller, its origin, its body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from loomlog.client.blocking import BlockingCluster
from loomlog.console.clients import Clients
from loomlog.console.failures import ForeignOrigin, TooLarge
from loomlog.errors import Busy, Timeout
from loomlog.limits import KIB, MIB

TOKEN_COOKIE: Final = "loom_token"
BODY_S: Final = 60.0  # for a body to arrive
BODIES_BYTES_MAX: Final = 256 * MIB  # of all requests at a time
SMALL_BYTES: Final = 64 * KIB  # a body up to this size is never refused for the sake of others
_SAFE: Final = ("GET", "HEAD")


class Bodies:
    """The bodies of requests that are not answered yet, which share a bound on memory."""

    def __init__(self, most: int = BODIES_BYTES_MAX) -> None:
        self._most = most
        self._held = 0

    @asynccontextmanager
    async def read(self, request: Request, most: int) -> AsyncIterator[bytes]:
        """Yield the body, which is held until the end of the context. Raise TooLarge as soon as
        it has more bytes than `most`, and Busy if all bodies together have too many."""
        parts: list[bytes] = []
        size = 0
        try:
            try:
                async with asyncio.timeout(BODY_S):
                    async for part in request.stream():
                        size += len(part)
                        self._held += len(part)
                        self._check(size, most)
                        parts.append(part)
            except TimeoutError:
                raise Timeout(f"the body did not arrive within {BODY_S:g} s") from None
            body = b"".join(parts)
            parts.clear()
            yield body
        finally:
            self._held -= size

    def _check(self, size: int, most: int) -> None:
        if size > most:
            raise TooLarge(f"the body has more than {most:,} bytes: send less at a time")
        if size > SMALL_BYTES and self._held > self._most:
            raise Busy("too many large requests at a time: try again soon, or send less at a time")


@dataclass(frozen=True, slots=True)
class Connector:
    """Connects to the cluster, with a caller's token."""

    clients: Clients
    connect_sync: Callable[[str], BlockingCluster]
    addresses: str
    tls: str  # the file of authorities; empty: plain TCP
    metrics: tuple[str, ...] = ()  # HTTP addresses of servers
    bodies: Bodies = field(default_factory=Bodies)


def token_of(request: Request) -> str:
    """Return the token that the caller presents; empty: none."""
    authorization = request.headers.get("authorization")
    if authorization is None:
        return request.cookies.get(TOKEN_COOKIE, "")
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def check_origin(request: Request) -> None:
    """Raise ForeignOrigin if a page of another site wants to change something."""
    if request.method in _SAFE:
        return
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if foreign or site not in ("same-origin", "none"):
        raise ForeignOrigin("pages of other sites may not use this console")
