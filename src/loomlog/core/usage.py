"""Limit how much of a server each identity uses at a time. Pure.

An identity is the name stated by a certificate or token; its connections count together. Servers of
the cluster and anonymous peers are not limited. All counters are plain integers, because every
request passes through here.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Final

from loomlog.errors import Busy
from loomlog.limits import IdentityLimits


class Usage:
    """The load of one identity on a server."""

    __slots__ = (
        *("bytes", "connections", "requests", "subscriptions"),
        *("is_limited", "limits", "name", "refusals"),
    )

    def __init__(self, name: str, limits: IdentityLimits, refusals: Counter[str]) -> None:
        """`refusals` counts refused requests by the name of the limit."""
        self.name = name
        self.limits = limits
        self.is_limited = limits is not NO_LIMITS
        self.refusals = refusals
        self.connections = self.requests = self.bytes = self.subscriptions = 0

    def connect(self) -> None:
        """Count a connection; raise Busy if there are too many."""
        if self.connections >= self.limits.connections:
            raise self._busy("connections", "connections to this server: close some")
        self.connections += 1

    def begin(self, size: int) -> None:
        """Count a request with a payload of this size; raise Busy if there are too many. A request
        that is alone may have any size."""
        if self.requests >= self.limits.requests:
            raise self._busy("requests", "requests under way here: wait for answers")
        if self.bytes + size > self.limits.bytes and self.bytes:
            raise self._busy("bytes", "bytes under way here: wait for answers")
        self.requests += 1
        self.bytes += size

    def end(self, size: int) -> None:
        self.requests -= 1
        self.bytes -= size

    def subscribe(self) -> None:
        """Count a subscription; `unsubscribe` when it ends."""
        if self.subscriptions >= self.limits.subscriptions:
            raise self._busy("subscriptions", "subscriptions at this server: end some")
        self.subscriptions += 1

    def unsubscribe(self) -> None:
        self.subscriptions -= 1

    def _busy(self, limit: str, advice: str) -> Busy:
        self.refusals[limit] += 1
        return Busy(f"{self.name} has {getattr(self.limits, limit)} {advice}")


NO_LIMITS: Final = IdentityLimits(*[sys.maxsize] * 4)
UNKNOWN: Final = Usage("", NO_LIMITS, Counter())  # for connections without an identity yet
