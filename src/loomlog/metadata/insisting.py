"""Work that is tried until there is nothing left to do: for each key one task at a time, and none
while nothing is to be done. Failures are tried again, later and later; to wake it cuts that short.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from enum import Enum
from typing import Final, Generic, TypeVar

from loomlog.errors import LoomError, NotFound, NotLeader
from loomlog.metadata.background import UNEXPECTED, Background

logger = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 5.0

K = TypeVar("K", bound=Hashable)


class Progress(Enum):
    """What came of a step."""

    IDLE = "idle"  # there is nothing to do until somebody wakes it
    DONE = "done"  # look again
    FAILED = "failed"  # try again later


class Insisting(Generic[K]):
    def __init__(
        self, what: str, step: Callable[[K], Awaitable[Progress]], background: Background
    ) -> None:
        self._what = what
        self._step = step
        self._background = background
        self._at_work: dict[K, asyncio.Event] = {}  # set: look again at once
        self.trouble: dict[K, str] = {}  # why the last step failed

    def wake(self, key: K) -> None:
        """Something changed that it may concern."""
        if key in self._at_work:
            self._at_work[key].set()
            return
        self._at_work[key] = asyncio.Event()
        self._background.spawn(self._insist(key), f"{self._what} {key}")

    async def _insist(self, key: K) -> None:
        woken, failures = self._at_work[key], 0
        try:
            while True:
                woken.clear()
                match await self._try(key):
                    case Progress.DONE:
                        failures = 0
                    case Progress.FAILED:
                        await _first(
                            woken, min(RETRY_FIRST_S * 2 ** min(failures, 10), RETRY_MAX_S)
                        )
                        failures += 1
                    case Progress.IDLE if not woken.is_set():
                        return
        finally:
            del self._at_work[key]

    async def _try(self, key: K) -> Progress:
        try:
            progress = await self._step(key)
        except NotLeader:
            raise
        except NotFound:  # deleted meanwhile
            progress = Progress.DONE
        except LoomError as error:
            logger.warning("%s %s: %s", self._what, key, error)
            self.trouble[key] = str(error)
            return Progress.FAILED
        except Exception:
            logger.exception("%s %s", self._what, key)
            self.trouble[key] = UNEXPECTED
            return Progress.FAILED
        if progress is not Progress.FAILED:
            self.trouble.pop(key, None)
        return progress


async def _first(woken: asyncio.Event, delay_s: float) -> None:
    try:
        async with asyncio.timeout(delay_s):
            await woken.wait()
    except TimeoutError:
        pass
