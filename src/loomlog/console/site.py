"""The part of a request that the API and pages share: its caller, its origin, its body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from loomlog.client.blocking import BlockingCluster
from loomlog.console.clients import Clients
from loomlog.console.failures import ForeignOrigin, TooLarge
from loomlog.errors import Timeout

TOKEN_COOKIE: Final = "loom_token"
BODY_S: Final = 60.0  # for a body to arrive
_SAFE: Final = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Connector:
    """How the cluster is reached, with a caller's token."""

    clients: Clients
    connect_sync: Callable[[str], BlockingCluster]
    addresses: str
    tls: str  # the file of authorities; empty: plain TCP
    metrics: tuple[str, ...] = ()  # HTTP addresses of servers


def token_of(request: Request) -> str:
    """Return the token that the caller presents; empty: none."""
    authorization = request.headers.get("authorization")
    if authorization is None:
        return request.cookies.get(TOKEN_COOKIE, "")
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def read_body(request: Request, most: int) -> bytes:
    """Return the body; raise TooLarge as soon as it has more bytes than that."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise TooLarge(f"the body has more than {most:,} bytes: send less at a time")
                parts.append(part)
    except TimeoutError:
        raise Timeout(f"the body did not arrive within {BODY_S:g} s") from None
    return b"".join(parts)


def check_origin(request: Request) -> None:
    """Raise ForeignOrigin if a page of another site wants to change something."""
    if request.method in _SAFE:
        return
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if foreign or site not in ("same-origin", "none"):
        raise ForeignOrigin("pages of other sites may not use this console")
