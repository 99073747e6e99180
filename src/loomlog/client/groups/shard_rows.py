"""The rows of a piece that belong to the shards of one member, chosen by columns."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from loomlog.client.subscribe.pieces import Rows
from loomlog.columns.key_shards import shards_of
from loomlog.columns.reader import headers_of
from loomlog.core.groups.consumption import Consumption
from loomlog.types import NO_HEADERS, Entry, Glsn


class ShardRows:
    """A piece of the log, with the shard of each row."""

    def __init__(self, rows: Rows, shards: int) -> None:
        self._table = rows.to_arrow()
        self._positions = self._table.column("position").to_numpy()
        self._numbers = shards_of(self._table.column("key"), self._positions, shards)
        self._shards = shards

    def take(self, consumption: Consumption, most: int) -> tuple[list[Entry], Glsn]:
        """Return the entries to hand out among the next `most` rows, and how far these reach."""
        first = int(np.searchsorted(self._positions, consumption.reading, "right"))
        positions = self._positions[first : first + most]
        if not len(positions):
            return [], consumption.reading
        # A floor above every position keeps out the shards that are not this member's.
        floors = np.full(self._shards, np.iinfo(np.int64).max)
        floors[list(consumption.floors)] = list(consumption.floors.values())
        chosen = positions > floors[self._numbers[first : first + most]]
        return _entries(self._table.slice(first, most), chosen), int(positions[-1])


def _entries(table: Any, chosen: Any) -> list[Entry]:
    position, stream, llsn, timestamp, key, value, headers = table.columns
    rows = np.flatnonzero(chosen)
    indices = pa.array(rows)
    has_keys, has_headers = (column.null_count < len(column) for column in (key, headers))
    fields = zip(
        position.to_numpy()[rows].tolist(),
        stream.to_numpy()[rows].tolist(),
        llsn.to_numpy()[rows].tolist(),
        timestamp.view("int64").to_numpy()[rows].tolist(),
        key.take(indices).to_pylist() if has_keys else repeat(None),
        value.take(indices).to_pylist(),
        headers_of(headers.take(indices)) if has_headers else repeat(NO_HEADERS),
        strict=False,
    )
    # What Entry._make does, without a Python frame per record.
    return list(map(tuple.__new__, repeat(Entry), fields))
