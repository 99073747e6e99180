"""The reading side: entries, Arrow batches, and the way from an append to a subscriber."""

from __future__ import annotations

import asyncio
import struct
from contextlib import aclosing
from time import perf_counter
from typing import TYPE_CHECKING, Final

from loomlog.cli.bench.measure import Result, Window

if TYPE_CHECKING:
    from loomlog import Log

PAUSE_S: Final = 0.002  # between two appends of the end-to-end run: no queue builds up
_STAMP = struct.Struct("<d")


async def entries(log: Log, record_bytes: int, seconds: float, first: int) -> Result:
    """Read what is there from `first` on, as Python entries."""
    last = await log.tail()
    count, started = 0, perf_counter()
    async with aclosing(log.subscribe(start=first, stop=last)) as subscription:
        async for _ in subscription:
            count += 1
            if not count % 1024 and perf_counter() > started + seconds:
                break
    return Result("subscribe", record_bytes, 1, count, perf_counter() - started)


async def arrow(log: Log, record_bytes: int, seconds: float, first: int) -> Result:
    """Read what is there from `first` on, as Arrow record batches."""
    last = await log.tail()
    count, started = 0, perf_counter()
    async with aclosing(log.subscribe_arrow(start=first, stop=last)) as subscription:
        async for batch in subscription:
            count += batch.num_rows
            if perf_counter() > started + seconds:
                break
    return Result("subscribe_arrow", record_bytes, 1, count, perf_counter() - started)


async def end_to_end(log: Log, record_bytes: int, seconds: float) -> Result:
    """Measure the time from the call of `append` until a subscriber has the entry."""
    window = Window(seconds)
    following = asyncio.ensure_future(_follow(log, await log.tail() + 1, window))
    padding = bytes(max(0, record_bytes - _STAMP.size))
    try:
        while perf_counter() < window.end and not following.done():
            await log.append(_STAMP.pack(perf_counter()) + padding)
            await asyncio.sleep(PAUSE_S)
    finally:
        following.cancel()
        await asyncio.wait({following})
    if not following.cancelled():
        following.result()
    return window.result("append to subscriber", _STAMP.size + len(padding), 1)


async def _follow(log: Log, first: int, window: Window) -> None:
    async with aclosing(log.subscribe(start=first)) as subscription:
        async for entry in subscription:
            (started,) = _STAMP.unpack_from(entry.value)
            window.add(started, perf_counter(), 1)
