"""A batch with all columns."""

from __future__ import annotations

from loomlog import batch, columns
from loomlog.types import Entry

NOW_US = 1_700_000_000_000_000
CODECS = ["none", "lz4", "zstd"]
HEADERS = {"trace": b"1", "naïve": b""}


def rich_batch(compression: str = "none") -> bytearray:
    """Return a batch with all features, repetitive enough to be worth compressing."""
    return columns.encode(
        [b"first" * 12, b"", b"third" * 12],
        keys=[b"k1", None, b""],
        headers=[None, columns.encode_headers(HEADERS), None],
        timestamps_us=[NOW_US, NOW_US - 7, NOW_US + 1],
        producer_id=77,
        sequence=5,
        compression=compression,
    )


RICH_ENTRIES = [
    Entry(1001, 7, 41, NOW_US, b"k1", b"first" * 12),
    Entry(1002, 7, 42, NOW_US - 7, None, b"", HEADERS),
    Entry(1003, 7, 43, NOW_US + 1, b"", b"third" * 12),
]


def placed(buffer: bytearray) -> bytearray:
    batch.assign_llsn(buffer, stream_id=7, epoch=3, first_llsn=41)
    batch.assign_position(buffer, 1001)
    return buffer
