"""Searches by timestamp in rows, and in segments without an index of timestamps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from loomlog.errors import DataLoss
from loomlog.types import Gap, Glsn

if TYPE_CHECKING:
    import pyarrow as pa


class NextRows(NamedTuple):
    """The next rows between two positions, and what was lost before them."""

    rows: pa.RecordBatch | None  # None: there are none
    lost: Gap | None = None


RowsFrom: TypeAlias = Callable[[Glsn, Glsn], Awaitable[NextRows]]


class TimeQuery(NamedTuple):
    """Asks for the first position, from `first` to `last`, whose entry has this timestamp or a
    later one. If it may be lost, that is DataLoss."""

    timestamp_us: int
    first: Glsn
    last: Glsn
    rows_from: RowsFrom


async def find_by_halves(query: TimeQuery) -> Glsn | None:
    """Answer a query by bisection, reading a batch at a time. This is exact if timestamps grow
    with positions.

    Invariant: the result is between `first` and `last`, or else it is `found`."""
    timestamp_us, first, last, rows_from = query
    found: Glsn | Gap | None = None
    while first <= last:
        middle = (first + last) // 2
        following = await rows_from(middle, last)
        here = first_at(following, timestamp_us)
        if here is not None:
            found = here
        if following.rows is None or here is not None:
            last = middle - 1
        else:
            first = last_position(following.rows) + 1
    return certain(found)


def first_at(following: NextRows, timestamp_us: int) -> Glsn | Gap | None:
    """Return the position of the first row with that timestamp or a later one. It may be lost if
    no row behind the loss is older."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows, lost = following
    if rows is None:
        return lost
    is_there = pc.greater_equal(rows.column("timestamp").cast(pa.int64()), timestamp_us)
    index = pc.index(is_there, pa.scalar(True)).as_py()
    if index == 0 and lost is not None:
        return lost
    return None if index < 0 else int(rows.column("position")[index].as_py())


def certain(found: Glsn | Gap | None) -> Glsn | None:
    """Return what was found; raise DataLoss if it may be lost."""
    if isinstance(found, Gap):
        raise DataLoss(
            "the first entry of that time or later may be lost, before position "
            f"{found.last + 1}: continue at {found.last + 1}"
        )
    return found


def last_position(rows: pa.RecordBatch) -> Glsn:
    return int(rows.column("position")[rows.num_rows - 1].as_py())
