"""Operations and their latencies in the last seconds, from the metrics of servers.

Servers show their metrics to whoever may see them, so they are asked with the visitor's token.
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final, NamedTuple, TypeAlias

from loomlog.limits import MIB
from loomlog.net.address import split_address
from loomlog.net.credentials import Credentials

ANSWER_S: Final = 2.0
PAGE_BYTES_MAX: Final = 16 * MIB
SHARE: Final = 0.99
READ_BYTES: Final = "read_bytes"

Counts: TypeAlias = Mapping[tuple[str, float], int]  # kind and bound -> observations up to it

_BUCKET: Final = re.compile(
    r"^loomlog_(request|sync|round)_seconds_bucket{([^}]*)} (\S+)$", re.MULTILINE
)
_READ_BYTES: Final = re.compile(r"^loomlog_read_bytes_total(?:{[^}]*})? (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


class Latencies(NamedTuple):
    """The milliseconds within which nearly all were done; None: there was nothing to do."""

    time_s: float
    append: float | None
    read: float | None
    sync: float | None
    round: float | None

    @property
    def charted(self) -> tuple[float | None, ...]:
        return self


class Operations(NamedTuple):
    """The number of operations per second on all servers together; None: not known."""

    time_s: float
    append: float | None  # requests, at each replica
    read: float | None  # requests
    sync: float | None
    round: float | None
    read_bytes: float | None  # sent to readers

    @property
    def charted(self) -> tuple[float | None, ...]:
        return self


def counts(page: str) -> Counts:
    """Return the buckets of a page of metrics, those of like operations together."""
    found: Counter[tuple[str, float]] = Counter()
    for name, labels, value in _BUCKET.findall(page):
        fields = dict(_LABEL.findall(labels))
        kind = _kind(fields.get("operation", "")) if name == "request" else name
        if kind:
            found[kind, float(fields["le"])] += int(float(value))
    found[READ_BYTES, math.inf] = sum(int(float(value)) for value in _READ_BYTES.findall(page))
    return found


def _kind(operation: str) -> str:
    if operation.endswith(("append", "write")):
        return "append"
    return "read" if operation.endswith(("read", "fetch")) else ""


def growth(before: Mapping[str, Counts], after: Mapping[str, Counts]) -> Counts | None:
    """Return what was counted between two looks at several servers; those that were restarted do
    not count. None: no server was seen twice."""
    grown: Counter[tuple[str, float]] = Counter()
    seen = False
    for server, new in after.items():
        old = before.get(server)
        if old is not None and all(new.get(key, 0) >= count for key, count in old.items()):
            grown.update({key: count - old.get(key, 0) for key, count in new.items()})
            seen = True
    return grown if seen else None


def latencies(grown: Counts | None, time_s: float) -> Latencies:
    return Latencies(time_s, *(percentile(grown or {}, kind) for kind in Latencies._fields[1:]))


def operations(grown: Counts | None, time_s: float, passed_s: float) -> Operations:
    kinds = Operations._fields[1:]
    if grown is None:
        return Operations(time_s, *(None for _ in kinds))
    return Operations(time_s, *(grown.get((kind, math.inf), 0) / passed_s for kind in kinds))


def percentile(found: Counts, kind: str, share: float = SHARE) -> float | None:
    """Return the milliseconds within which this share was done, as far as the bounds tell."""
    buckets = sorted((bound, count) for (name, bound), count in found.items() if name == kind)
    total = buckets[-1][1] if buckets else 0
    if not total:
        return None
    low, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= share * total:
            if math.isinf(bound):
                return 1000 * low
            part = (share * total - below) / (count - below)
            return 1000 * (low + part * (bound - low))
        low, below = bound, count
    return 1000 * low


class Scraper:
    """Asks servers for their metrics."""

    def __init__(self, addresses: Sequence[str], tls: str) -> None:
        self._addresses = addresses
        self._credentials = Credentials.of_client(tls) if tls else None

    async def look(self, token: str) -> dict[str, Counts]:
        """Return what each server that answers has counted."""
        context = None if self._credentials is None else self._credentials.connecting()
        pages = await asyncio.gather(
            *(asyncio.to_thread(_page, each, context, token) for each in self._addresses)
        )
        found = zip(self._addresses, pages, strict=True)
        return {address: counts(page) for address, page in found if page is not None}


def _page(address: str, context: ssl.SSLContext | None, token: str) -> str | None:
    host, port = split_address(address)
    if context is None:
        connection = HTTPConnection(host, port, timeout=ANSWER_S)
    else:
        connection = HTTPSConnection(host, port, timeout=ANSWER_S, context=context)
    with closing(connection):
        try:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            connection.request("GET", "/metrics", headers=headers)
            answer = connection.getresponse()
            return answer.read(PAGE_BYTES_MAX).decode() if answer.status == 200 else None
        except (OSError, HTTPException, UnicodeError):
            return None
