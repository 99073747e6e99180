"""Constants that the writer and the reader of a body share."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from loomlog import batch

BINARY: Final = pa.binary()
INT32: Final = pa.int32()
INT64: Final = pa.int64()
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

SCHEMA: Final = pa.schema(
    [
        pa.field("position", INT64, nullable=False),
        pa.field("stream", INT32, nullable=False),
        pa.field("llsn", INT64, nullable=False),
        pa.field("timestamp", TIMESTAMP, nullable=False),
        pa.field("key", BINARY),
        pa.field("value", BINARY, nullable=False),
        pa.field("headers", BINARY),  # see headers.py
    ]
)

CODECS: Final[dict[str, int]] = {name: codec for codec, name in enumerate(batch.COMPRESSIONS)}
OFFSET_BYTES: Final = 4
TIMESTAMP_BYTES: Final = 8


def one_line(problem: BaseException) -> str:
    """Return an error's message on one line; Arrow's may have several."""
    return " ".join(str(problem).split())
