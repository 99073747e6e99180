"""Encoders of the records of one call, as `Appender.append_whole` takes them, and of gathered ones.

They import loomlog.columns when they are first called, since it loads Arrow. The functions are
cached, because an import statement would take about one per cent of a lone append.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from loomlog.types import Buffer

if TYPE_CHECKING:
    import pyarrow as pa


@cache
def gathered_encoder() -> Callable[..., Buffer]:
    """Return the function that encodes the records of several calls."""
    from loomlog.columns.writer import encode_gathered

    return encode_gathered


@cache
def _encoder() -> Callable[..., Buffer]:
    from loomlog.columns.writer import encode

    return encode


def encode_rows(
    values: list[Buffer],
    keys: list[Buffer | None] | None,
    headers: list[bytes | None] | None = None,
    own_timestamps_us: list[int] | None = None,
    **stamps: Any,
) -> Buffer:
    """Return a batch; `own_timestamps_us` replace the one that the appender stamps it with."""
    if own_timestamps_us is not None:
        stamps["timestamps_us"] = own_timestamps_us
    return _encoder()(values, keys=keys, headers=headers, **stamps)


def encode_arrow_rows(records: pa.RecordBatch, **stamps: Any) -> Buffer:
    from loomlog.columns.writer import encode_arrow

    return encode_arrow(records, **stamps)


def encoded_headers(headers: Mapping[str, bytes] | None) -> bytes | None:
    from loomlog.columns.headers import encode_headers

    return encode_headers(headers)
