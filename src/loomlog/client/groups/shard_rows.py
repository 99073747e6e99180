"""Selects the rows of a piece that belong to the shards of one member, by columns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow.compute  # noqa: F401 - else `take` would import it while other members wait

from loomlog.client.groups.fetcher import PieceFetcher
from loomlog.client.groups.joined_rows import SearchedRows, ready_rows
from loomlog.columns.key_shards import shards_of
from loomlog.core.groups.consumption import Consumption
from loomlog.types import Entry, Glsn


class Taken(NamedTuple):
    """The member's entries among some rows."""

    entries: Iterable[Entry]
    last: Glsn  # the position of the last of these entries; 0 if there are none
    end: Glsn  # the position of the last of the rows


class ShardRows:
    """Rows of the log, with the shard of each."""

    def __init__(self, rows: SearchedRows, shards: int) -> None:
        self._rows = rows
        self._positions, keys = rows.positions_and_keys()
        self._numbers = shards_of(keys, self._positions, shards)
        self._shards = shards
        self.end: Glsn = int(self._positions[-1])

    def take(self, consumption: Consumption, most: int) -> Taken:
        """Return the member's entries among the next `most` rows, of which there must be one."""
        first = bisect_right(self._positions, consumption.reading)
        positions = self._positions[first : first + most]
        numbers, floors = self._numbers[first : first + most], consumption.floors
        own = np.zeros(self._shards, np.bool_)
        own[list(floors)] = True
        chosen = own[numbers].nonzero()[0]
        if max(floors.values(), default=0) >= positions[0]:  # some were delivered before
            reached = np.zeros(self._shards, np.int64)
            reached[list(floors)] = list(floors.values())
            chosen = chosen[np.asarray(positions)[chosen] > reached[numbers[chosen]]]
        end = int(positions[-1])
        if not len(chosen):
            return Taken((), 0, end)
        entries = self._rows.chosen(chosen + first if first else chosen)
        return Taken(entries, int(positions[chosen[-1]]), end)


def ready_shard_rows(reader: PieceFetcher, shards: int) -> ShardRows | None:
    """Return the next rows if they have arrived."""
    rows = ready_rows(reader)
    return None if rows is None else ShardRows(rows, shards)
