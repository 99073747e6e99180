"""Single reads: any position, asked for by its number."""

from __future__ import annotations

from random import Random
from time import perf_counter
from typing import TYPE_CHECKING

from loomlog.cli.bench.measuring import Result, Window
from loomlog.errors import NotFound

if TYPE_CHECKING:
    from loomlog import Log


async def one_at_a_time(log: Log, record_bytes: int, seconds: float, first: int) -> Result:
    """One `read` after the other, of positions from `first` on in no order. What costs is the batch
    that an entry is in: so this comes when a lone writer has appended, with one entry in each."""
    last, random = await log.tail(), Random(0)
    await log.read(last)  # the first one connects
    window = Window(seconds)
    while (started := perf_counter()) < window.end:
        try:
            await log.read(random.randint(first, last))
        except NotFound:
            continue  # nothing stands there
        window.add(started, perf_counter(), 1)
    return window.result("read, one at a time", record_bytes, 1)
