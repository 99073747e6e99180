"""Finds where the last entries of a log begin, with any protocol."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from loomlog.types import Entry, Gap, Glsn

Rows = Callable[[Glsn, Glsn], AsyncGenerator[Entry | Gap, None]]


async def find_last(count: int, earliest: Glsn, tail: Glsn, rows: Rows) -> Glsn:
    """Return the position of the first of the last `count` entries, or one past the tail if there
    are none. `rows` yields the entries and gaps between two positions.

    Entries are usually at consecutive positions, so most searches need one read. The bridge between
    two epochs may be wider than all entries together, so it is crossed by bisection."""
    start, stop, missing = tail + 1, tail, count
    while missing and stop >= earliest:
        first = max(earliest, stop - missing + 1)
        async with aclosing(rows(first, stop)) as items:
            positions = [item.position async for item in items if isinstance(item, Entry)]
        missing -= len(positions)
        stop = first - 1
        if positions:
            start = positions[0]
        else:
            stop = await _last_below(stop, earliest, rows)
    return start


async def _last_below(high: Glsn, low: Glsn, rows: Rows) -> Glsn:
    """Return the position of the last entry from `low` to `high`, or one before `low`."""
    last = low - 1
    while low <= high:
        middle = (low + high + 1) // 2
        position = await _first_entry(rows(middle, high))
        if position is None:
            high = middle - 1
        else:
            last, low = position, position + 1
    return last


async def _first_entry(rows: AsyncGenerator[Entry | Gap, None]) -> Glsn | None:
    async with aclosing(rows):
        async for row in rows:
            if isinstance(row, Entry):
                return row.position
    return None
