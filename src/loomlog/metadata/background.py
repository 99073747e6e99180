"""Background work of a term: tasks, timers, and loops that retry until nothing is left to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from enum import Enum
from functools import partial
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from loomlog.core.backoff import Backoff
from loomlog.errors import LoomError, NotFound, NotLeader

logger = logging.getLogger(__name__)

RETRY: Final = Backoff(0.05, 5.0)
STEPS_AT_ONCE: Final = 100  # that do not wait; then other tasks get a turn
UNEXPECTED: Final = "internal error: see the log of the metadata repository"


class Background:
    """Owns the background tasks of a term."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}  # an ordered set
        self._stopped = False

    def spawn(self, work: Coroutine[None, None, None], what: str) -> None:
        """Run a task; its error is logged, because nothing awaits it."""
        if self._stopped:
            work.close()
            return
        # Not in a wrapper: work that is cancelled before its wrapper begins would never be awaited.
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(partial(self._ended, what))

    async def stop(self) -> None:
        self._stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, what: str, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, LoomError):
            logger.warning("%s: %s", what, error)
        elif error is not None:
            logger.error("%s failed", what, exc_info=error)


K = TypeVar("K", bound=Hashable)


class StepResult(Enum):
    """The result of a step."""

    IDLE = "idle"  # nothing to do until the key is woken
    DONE = "done"  # look again
    FAILED = "failed"  # try again later


class Later(NamedTuple):
    """The step failed and has chosen its own delay."""

    delay_s: float


Step: TypeAlias = Callable[[K], Awaitable[StepResult | Later]]


class RetryLoop(Generic[K]):
    """Repeats a step for each key that is woken, until the step finds nothing to do.

    A key has at most one task, and none while it has nothing to do. Failed steps are retried with
    growing delays; waking the key cuts a delay short.
    """

    def __init__(
        self, what: str, step: Step[K], background: Background, retry: Backoff | None = None
    ) -> None:
        self._what = what
        self._step = step
        self._background = background
        self._retry = retry or RETRY
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

    async def step_now(self, key: K) -> None:
        """Run one step and wait for it; the remaining work is done in the background."""
        if await self._try(key) is not StepResult.IDLE:
            self.wake(key)

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
        woken, failures, steps = self._at_work[key], 0, 0
        try:
            while True:
                woken.clear()
                steps += 1
                if not steps % STEPS_AT_ONCE:
                    await asyncio.sleep(0)  # a step without progress must not block other tasks
                match await self._try(key):
                    case StepResult.DONE:
                        failures = 0
                    case StepResult.FAILED:
                        await self.pause(key, self._retry.delay_s(failures))
                        failures += 1
                    case Later(delay_s):
                        await self.pause(key, delay_s)
                    case StepResult.IDLE if not woken.is_set():
                        return
        finally:
            del self._at_work[key]

    async def _try(self, key: K) -> StepResult | Later:
        try:
            progress = await self._step(key)
        except NotLeader:
            raise
        except NotFound:  # deleted meanwhile
            progress = StepResult.DONE
        except LoomError as error:
            logger.warning("%s %s: %s", self._what, key, error)
            self.trouble[key] = str(error)
            return StepResult.FAILED
        except Exception:
            logger.exception("%s %s", self._what, key)
            self.trouble[key] = UNEXPECTED
            return StepResult.FAILED
        if progress in (StepResult.IDLE, StepResult.DONE):
            self.trouble.pop(key, None)
        return progress
