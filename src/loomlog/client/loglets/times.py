"""Searches by timestamp in rows, and in segments without an index of timestamps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from loomlog.types import Glsn

if TYPE_CHECKING:
    import pyarrow as pa

RowsFrom: TypeAlias = Callable[[Glsn, Glsn], Awaitable["pa.RecordBatch | None"]]
"""Returns the next rows between two positions; None if there are none."""


class TimeQuery(NamedTuple):
    """Asks for the first position, from `first` to `last`, whose entry has this timestamp or a
    later one."""

    timestamp_us: int
    first: Glsn
    last: Glsn
    rows_from: RowsFrom


async def find_by_halves(query: TimeQuery) -> Glsn | None:
    """Answer a query by bisection, reading a batch at a time. This is exact if timestamps grow
    with positions.

    Invariant: the result is between `first` and `last`, or else it is `found`."""
    timestamp_us, first, last, rows_from = query
    found: Glsn | None = None
    while first <= last:
        middle = (first + last) // 2
        rows = await rows_from(middle, last)
        here = None if rows is None else first_at(rows, timestamp_us)
        if here is not None:
            found = here
        if rows is None or here is not None:
            last = middle - 1
        else:
            first = last_position(rows) + 1
    return found


def first_at(rows: pa.RecordBatch, timestamp_us: int) -> Glsn | None:
    """Return the position of the first row with that timestamp or a later one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_there = pc.greater_equal(rows.column("timestamp").cast(pa.int64()), timestamp_us)
    index = pc.index(is_there, pa.scalar(True)).as_py()
    return None if index < 0 else int(rows.column("position")[index].as_py())


def last_position(rows: pa.RecordBatch) -> Glsn:
    return int(rows.column("position")[rows.num_rows - 1].as_py())
