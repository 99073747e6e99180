"""The body of a record batch: from records or Arrow to bytes, and back.

The body is columnar, in Arrow's memory layout, so that both ways are a few copies of whole
buffers (reading: none, unless compressed) and no Python runs per record. docs/batch-format.md
describes the layout. Only clients import this package; servers carry bodies unread.

Invariants: `decode` accepts what `encode` made; of anything else it raises `Corrupt` or
`VersionMismatch` before an Arrow array with bad offsets can be touched.
"""

from loomlog.columns.headers import decode_headers, encode_headers
from loomlog.columns.layout import SCHEMA
from loomlog.columns.reader import Batch, decode, without_payloads
from loomlog.columns.writer import encode, encode_arrow

__all__ = [
    "SCHEMA",
    "Batch",
    "decode",
    "decode_headers",
    "encode",
    "encode_arrow",
    "encode_headers",
    "without_payloads",
]
