"""Encoders of the records of one call, as `Appender.append_whole` takes them.

They import loomlog.columns when they are called, since it loads Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loomlog.types import Buffer

if TYPE_CHECKING:
    import pyarrow as pa


def encode_rows(
    values: list[Buffer],
    keys: list[Buffer | None] | None,
    headers: list[bytes | None] | None = None,
    own_timestamps_us: list[int] | None = None,
    **stamps: Any,
) -> Buffer:
    """Return a batch; `own_timestamps_us` replace the one that the appender stamps it with."""
    from loomlog.columns.writer import encode

    if own_timestamps_us is not None:
        stamps["timestamps_us"] = own_timestamps_us
    return encode(values, keys=keys, headers=headers, **stamps)


def encode_arrow_rows(records: pa.RecordBatch, **stamps: Any) -> Buffer:
    from loomlog.columns.writer import encode_arrow

    return encode_arrow(records, **stamps)


def encoded_headers(headers: Mapping[str, bytes] | None) -> bytes | None:
    from loomlog.columns.headers import encode_headers

    return encode_headers(headers)
