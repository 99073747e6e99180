"""Rows as a log would give them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from loomlog.columns import SCHEMA, encode_headers


def headers_of(position: int) -> bytes | None:
    return encode_headers({"n": b"%d" % position}) if position % 2 else None


def rows(first: int, last: int) -> Any:
    """One batch of the positions from `first` to `last`, over three streams."""
    positions = range(first, last + 1)
    columns = [
        pa.array(positions, pa.int64()),
        pa.array([n % 3 + 1 for n in positions], pa.int32()),
        pa.array([n // 3 + 1 for n in positions], pa.int64()),
        pa.array([1_700_000_000_000_000 + 7 * n for n in positions], pa.timestamp("us", "UTC")),
        pa.array([b"key-%d" % n if n % 2 else None for n in positions], pa.binary()),
        pa.array([b"%d" % (n * n) for n in positions], pa.binary()),
        pa.array([headers_of(n) for n in positions], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
