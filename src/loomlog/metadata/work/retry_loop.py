"""Work that is repeated until nothing is left to do.

Every key has at most one task, and none while it has nothing to do. Failed steps are retried with
growing delays; waking the key cuts a delay short.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from loomlog.core.backoff import Backoff
from loomlog.errors import LoomError, NotFound, NotLeader
from loomlog.metadata.work.background import UNEXPECTED, Background

logger = logging.getLogger(__name__)

RETRY: Final = Backoff(0.05, 5.0)

K = TypeVar("K", bound=Hashable)


class Progress(Enum):
    """The result of a step."""

    IDLE = "idle"  # there is nothing to do until the key is woken
    DONE = "done"  # look again
    FAILED = "failed"  # try again later


class Later(NamedTuple):
    """The step failed and has chosen its own delay."""

    delay_s: float


Step: TypeAlias = Callable[[K], Awaitable[Progress | Later]]


class RetryLoop(Generic[K]):
    def __init__(self, what: str, step: Step[K], background: Background) -> None:
        self._what = what
        self._step = step
        self._background = background
        self._at_work: dict[K, asyncio.Event] = {}  # set: look again at once
        self.trouble: dict[K, str] = {}  # why the last step failed

    def __contains__(self, key: K) -> bool:
        """Return whether a task is at work on the key."""
        return key in self._at_work

    def wake(self, key: K) -> None:
        """Look at the key (again): something changed that may concern it."""
        if key in self._at_work:
            self._at_work[key].set()
            return
        self._at_work[key] = asyncio.Event()
        self._background.spawn(self._work(key), f"{self._what} {key}")

    async def pause(self, key: K, delay_s: float) -> None:
        """Wait this long, or until the key is woken. For steps of the key."""
        woken = self._at_work[key]
        try:
            async with asyncio.timeout(delay_s):
                await woken.wait()
        except TimeoutError:
            pass
        woken.clear()

    async def _work(self, key: K) -> None:
        woken, failures = self._at_work[key], 0
        try:
            while True:
                woken.clear()
                match await self._try(key):
                    case Progress.DONE:
                        failures = 0
                    case Progress.FAILED:
                        await self.pause(key, RETRY.delay_s(failures))
                        failures += 1
                    case Later(delay_s):
                        await self.pause(key, delay_s)
                    case Progress.IDLE if not woken.is_set():
                        return
        finally:
            del self._at_work[key]

    async def _try(self, key: K) -> Progress | Later:
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
        if progress in (Progress.IDLE, Progress.DONE):
            self.trouble.pop(key, None)
        return progress
