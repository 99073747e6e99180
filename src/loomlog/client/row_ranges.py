"""Splits the positions of a log into ranges with a limited number of rows, for files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from loomlog.client.blocking import BlockingLog
from loomlog.client.loglets.registry import is_dense
from loomlog.types import Glsn

SILENCE_S: Final = 60.0  # reading fails if nothing arrives for this long


class RowRange(NamedTuple):
    """Positions from `first` to `last` inclusive."""

    first: Glsn
    last: Glsn
    rows: int  # an upper bound: the log may have gaps


def cut(log: BlockingLog, first: Glsn, last: Glsn, rows_max: int) -> Iterator[RowRange]:
    """Yield ranges of at most `rows_max` rows that together cover all positions."""
    while first <= last:
        begin = _next_entry(log, first, last)
        end = min(begin + rows_max - 1, last)
        yield RowRange(first, end, end - begin + 1)
        first = end + 1


def _next_entry(log: BlockingLog, first: Glsn, last: Glsn) -> Glsn:
    """Return the position of the next entry if there may be a wide gap before it, else `first`."""
    if is_dense(0, last):  # so the whole log has no wide gaps
        return first
    with log.subscribe_arrow(first, last, archived=False, timeout_s=SILENCE_S) as items:
        rows = next(items, None)
    return last if rows is None else int(rows.column("position")[0].as_py())
