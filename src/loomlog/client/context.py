"""The services that all logs of a client share, and the pacing of its retries."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final, NamedTuple

from loomlog.config import ClientSettings
from loomlog.core.backoff import Backoff

if TYPE_CHECKING:
    from loomlog.client.append.appender import Producer
    from loomlog.client.append.spin import Spinner
    from loomlog.client.servers import Connections, Metadata
    from loomlog.client.subscribe.subscription import OpenSubscriptions

# first_s is about a round trip with a disk sync; a stream that recovered is noticed within max_s.
BACKOFF: Final = Backoff(first_s=0.01, max_s=0.5)


class Client(NamedTuple):
    """Services that all logs of one client share."""

    metadata: Metadata
    connections: Connections
    producer: Producer
    settings: ClientSettings
    rng: random.Random
    loop: asyncio.AbstractEventLoop
    spinning: Spinner
    subscriptions: OpenSubscriptions


class Retries:
    """Pauses between the attempts at one operation, until its time is up."""

    def __init__(
        self, rng: random.Random, timeout_s: float | None = None, backoff: Backoff = BACKOFF
    ) -> None:
        """`timeout_s` counts from now; None: no limit."""
        now_s = asyncio.get_running_loop().time()
        self._began_s = now_s
        self.deadline_s = float("inf") if timeout_s is None else now_s + timeout_s
        self._rng = rng
        self._backoff = backoff
        self.pauses = 0  # how many there were

    async def pause(self) -> bool:
        """Wait before the next attempt; return False at once if it would come too late."""
        now_s = asyncio.get_running_loop().time()
        wait_s = self._backoff.late_s(now_s - self._began_s, self._rng)
        if now_s + wait_s >= self.deadline_s:
            return False
        self.pauses += 1
        await asyncio.sleep(wait_s)
        return True
