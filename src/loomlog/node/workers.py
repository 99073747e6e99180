"""Waiting: for work that reports its end through a callback, for an attempt that succeeds, and for
a bound on the rate of work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from loomlog.core.backoff import Backoff
from loomlog.storage.files import Finished, Worker

Result = TypeVar("Result")


async def finish(start: Callable[[Finished], None]) -> None:
    """Start the work and wait for its end; its error is raised."""
    error = await called_back(start)
    if error is not None:
        raise error


async def off_loop(worker: Worker, work: Callable[[], Result]) -> Result:
    """Run blocking work in the worker and wait for its result."""
    results: list[Result] = []
    await finish(lambda done: worker.run([lambda: results.append(work())], done))
    return results[0]


async def called_back(start: Callable[[Callable[[Result], None]], None]) -> Result:
    """Start something and wait for what its callback is given."""
    result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    def done(value: Result) -> None:
        if not result.done():  # else the caller has been cancelled
            result.set_result(value)

    start(done)
    return await result


async def insist(
    attempt: Callable[[], Coroutine[Any, Any, Result | None]], retry: Backoff
) -> Result:
    """Repeat an attempt until it has a result, with growing pauses."""
    failures = 0
    while (result := await attempt()) is None:
        await asyncio.sleep(retry.delay_s(failures))
        failures += 1
    return result


REST: Final = 3  # times as long as work at a bounded rate took
REST_S_MAX: Final = 0.5  # a peer that does not answer takes nobody's time


class Throttle:
    """Bounds the rate of background work, and the part of the time in which it is done."""

    def __init__(self, bytes_per_s: int) -> None:
        """0 means no bound."""
        self.bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    async def take(self, count: int) -> None:
        """Wait until the bytes that were taken before have been paid for."""
        if not self.bytes_per_s:
            return
        now_s = asyncio.get_running_loop().time()
        free_at_s = max(self._free_at_s, now_s)
        self._free_at_s = free_at_s + count / self.bytes_per_s
        await asyncio.sleep(free_at_s - now_s)

    def rest(self, took_s: float) -> None:
        """Leave more time to others than something took: the busier they are, the longer that
        was."""
        until_s = asyncio.get_running_loop().time() + min(REST * took_s, REST_S_MAX)
        self._free_at_s = max(self._free_at_s, until_s)
