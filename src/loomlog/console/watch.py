"""Poll the status of the cluster while pages are open.

There is one watch for each identity: what a status shows depends on the permissions of
the caller. It keeps the rates and events of the last minutes in memory, and nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, TypeVar

from loomlog.console.clients import CLIENTS_MAX, Clients
from loomlog.console.latencies import (
    Counts,
    Latencies,
    Operations,
    Scraper,
    growth,
    latencies,
    operations,
)
from loomlog.console.rates import Look, Rates, rates
from loomlog.errors import LoomError, PermissionDenied, Unauthorized
from loomlog.wire.events import EventInfo

T = TypeVar("T")

LOOK_EVERY_S: Final = 1.0
SCRAPE_EVERY_S: Final = 3.0
LEFT_S: Final = 300.0  # a watch ends this long after its last watcher left
RATES_MAX: Final = 300
EVENTS_MAX: Final = 500


class Watch:
    """The cluster as one identity sees it."""

    def __init__(self, clients: Clients, token: str, scraper: Scraper | None = None) -> None:
        self._clients = clients
        self._scraper = scraper
        self._scraped: dict[str, Counts] = {}
        self._scraped_s = 0.0
        self._token = token
        self._looked = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._wanted_until_s = 0.0  # on the loop's clock
        self.look: Look | None = None
        self.error: LoomError | None = None  # of the last look
        self.rates: deque[Rates] = deque(maxlen=RATES_MAX)
        self.latencies: deque[Latencies] = deque(maxlen=RATES_MAX)
        self.operations: deque[Operations] = deque(maxlen=RATES_MAX)
        self.events: deque[EventInfo] = deque(maxlen=EVENTS_MAX)  # of the cluster, the newest last
        self._kept: dict[str, tuple[float, Any]] = {}  # until when, and what

    async def now(self) -> Look:
        """Return the newest look, not older than a second; raise an error if there is none."""
        self._want()
        if self.error is not None or self.look is None or self._is_old():
            await self._look_once()
        if self.error is not None:
            raise self.error
        assert self.look is not None
        return self.look

    async def looks(self) -> AsyncGenerator[None, None]:
        """Yield after every look, also after one that failed."""
        while True:
            self._want()
            yield
            async with self._looked:
                await self._looked.wait()

    async def kept(self, name: str, load: Callable[[], Awaitable[T]], for_s: float) -> T:
        """Return what `load` returned, also to others of this identity, for a while."""
        now_s = time.monotonic()
        if name not in self._kept or now_s >= self._kept[name][0]:
            self._kept[name] = now_s + for_s, await load()
        found: T = self._kept[name][1]
        return found

    @property
    def _last_event(self) -> int:
        """The id of the newest event; another look may have added some meanwhile."""
        return self.events[-1].id if self.events else 0

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _is_old(self) -> bool:
        return self.look is not None and time.time() - self.look.time_s > 2 * LOOK_EVERY_S

    def _want(self) -> None:
        loop = asyncio.get_running_loop()
        self._wanted_until_s = loop.time() + LEFT_S
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < self._wanted_until_s:
            await self._look_once()
            if isinstance(self.error, PermissionDenied | Unauthorized):
                return  # until the next visit
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look_once(self) -> None:
        began_s = time.monotonic()
        before = self.look
        try:
            async with self._clients.use(self._token) as cluster:
                status = await cluster.status()
                answered_s = time.monotonic()
                found = await cluster.events(after=self._last_event)
                self.events += [each for each in found if each.id > self._last_event]
        except LoomError as error:
            self.error = error
        else:
            self.error = None
            self.look = Look(time.time(), status, answered_s - began_s)
            if before is not None:
                self.rates.append(rates(before, self.look))
            await self._scrape()
        async with self._looked:
            self._looked.notify_all()

    async def _scrape(self) -> None:
        now_s = time.time()
        if self._scraper is None or now_s - self._scraped_s < SCRAPE_EVERY_S:
            return
        passed_s, self._scraped_s = now_s - self._scraped_s, now_s
        found = await self._scraper.look(self._token)
        grown = growth(self._scraped, found)
        self.latencies.append(latencies(grown, now_s))
        self.operations.append(operations(grown, now_s, passed_s))
        self._scraped = found


class Watches:
    """The watches of all identities; the least recently used gives way."""

    def __init__(self, clients: Clients, scraper: Scraper | None) -> None:
        self._clients = clients
        self._scraper = scraper
        self._watches: OrderedDict[str, Watch] = OrderedDict()

    async def of(self, token: str) -> Watch:
        if token not in self._watches:
            while len(self._watches) >= CLIENTS_MAX:
                await self._watches.popitem(last=False)[1].close()
            self._watches[token] = Watch(self._clients, token, self._scraper)
        self._watches.move_to_end(token)
        return self._watches[token]

    async def close(self) -> None:
        while self._watches:
            await self._watches.popitem()[1].close()
