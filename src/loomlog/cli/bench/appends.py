"""The writing side: many appends at once, batches, one at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final

from loomlog.cli.bench.measure import Result, Window

if TYPE_CHECKING:
    from loomlog import Log

BATCHES_IN_FLIGHT: Final = 16  # of append_many: enough to hide the round trip


async def concurrent(log: Log, record_bytes: int, seconds: float, callers: int) -> Result:
    """Many callers, each with one `append` under way."""
    value = os.urandom(record_bytes)
    window = await _keep_calling(lambda: log.append(value), 1, seconds, callers)
    return window.result(f"append, {callers} callers", record_bytes, 1)


async def many(log: Log, record_bytes: int, seconds: float, batch: int) -> Result:
    """`append_many`, some under way."""
    values = [os.urandom(record_bytes) for _ in range(batch)]
    window = await _keep_calling(lambda: log.append_many(values), batch, seconds, BATCHES_IN_FLIGHT)
    return window.result(f"append_many, {BATCHES_IN_FLIGHT} callers", record_bytes, batch)


async def one_at_a_time(log: Log, record_bytes: int, seconds: float) -> Result:
    """Each append waits for the one before: what a lone writer feels."""
    value = os.urandom(record_bytes)
    window = await _keep_calling(lambda: log.append(value), 1, seconds, 1)
    return window.result("append, one at a time", record_bytes, 1)


async def fill(log: Log, record_bytes: int, batch: int, batches: int, callers: int) -> int:
    """Append `batches` without measuring, and return their bytes."""
    values = [os.urandom(record_bytes) for _ in range(batch)]
    left = iter(range(batches))
    appended = 0

    async def caller() -> None:
        nonlocal appended
        for _ in left:
            await log.append_many(values)
            appended += record_bytes * batch

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())
    return appended


async def _keep_calling(
    call: Callable[[], Awaitable[object]], records: int, seconds: float, callers: int
) -> Window:
    await call()  # the first in a process loads Arrow and connects: that is no append's latency
    window = Window(seconds)

    async def caller() -> None:
        while (started := perf_counter()) < window.end:
            await call()
            window.add(started, perf_counter(), records)

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())
    return window
