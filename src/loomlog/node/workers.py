"""Awaiting callbacks, retrying until success, and limiting the rate of background work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from loomlog.core.backoff import Backoff
from loomlog.storage.files import Finished, Worker

Result = TypeVar("Result")


async def finish(start: Callable[[Finished], None]) -> None:
    """Start work and wait until it has finished. Raise its error."""
    error = await called_back(start)
    try:
        if error is not None:
            raise error
    finally:
        del error  # its frames, to which this one now belongs, may hold a database open


async def off_loop(worker: Worker, work: Callable[[], Result]) -> Result:
    """Run blocking work in the worker and return its result."""
    results: list[Result] = []
    await finish(lambda done: worker.run([lambda: results.append(work())], done))
    return results[0]


async def called_back(start: Callable[[Callable[[Result], None]], None]) -> Result:
    """Start an operation, wait for its callback, and return the callback's argument."""
    result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    def done(value: Result) -> None:
        if not result.done():  # otherwise the caller was cancelled
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


REST: Final = 3  # work is followed by a rest of this many times its duration,
REST_S_MAX: Final = 0.5  # but at most of this: waiting for a silent peer costs no resources


class Throttle:
    """Limits the rate of background work, and the share of the time that it takes."""

    def __init__(self, bytes_per_s: int) -> None:
        """0 means no limit."""
        self.bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    async def take(self, count: int) -> None:
        """Take `count` bytes: wait until the rate allows it after those that were taken before."""
        if not self.bytes_per_s:
            return
        now_s = asyncio.get_running_loop().time()
        free_at_s = max(self._free_at_s, now_s)
        self._free_at_s = free_at_s + count / self.bytes_per_s
        await asyncio.sleep(free_at_s - now_s)

    def rest(self, took_s: float) -> None:
        """Pause for a multiple of the time that the work took, which was longer the busier the
        machine is."""
        until_s = asyncio.get_running_loop().time() + min(REST * took_s, REST_S_MAX)
        self._free_at_s = max(self._free_at_s, until_s)
