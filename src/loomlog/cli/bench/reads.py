"""Single reads: any position, asked for by its number."""

from __future__ import annotations

from contextlib import aclosing
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING

from loomlog.cli.bench.measure import Result, Window

if TYPE_CHECKING:
    from loomlog import Log


async def one_at_a_time(log: Log, record_bytes: int, seconds: float, first: int) -> Result:
    """One `read` after the other, of entries from `first` on in no order. What costs is the batch
    that an entry is in: so this comes when a lone writer has appended, with one entry in each."""
    positions, random = await _positions(log, first), Random(0)
    await log.read(positions[0])  # the first one connects
    window = Window(seconds)
    while (started := perf_counter()) < window.end:
        await log.read(random.choice(positions))
        window.add(started, perf_counter(), 1)
    return window.result("read, one at a time", record_bytes, 1)


async def _positions(log: Log, first: int) -> list[int]:
    """Return positions of entries: logs have gaps, some of them huge."""
    last = await log.tail()
    async with aclosing(log.subscribe(start=first, stop=last, payloads=False)) as entries:
        return [entry.position async for entry in entries]
