"""The headers of a record as bytes: names with small values, beside the value.

Each header is the length of its name (u16), the name in UTF-8, the length of its value (u32) and
the value; all numbers are little-endian. A record without headers is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from struct import error as StructError  # noqa: N812 - `error` says too little
from typing import Final

from loomlog.errors import Corrupt, InvalidArgument, shown
from loomlog.limits import HEADERS_BYTES_MAX

_NAME: Final = Struct("<H")
_VALUE: Final = Struct("<I")


def encode_headers(headers: Mapping[str, bytes] | None) -> bytes | None:
    """Return headers as bytes; None if there are none."""
    if not headers:
        return None
    parts = []
    try:
        for name, value in headers.items():
            text = name.encode()
            if not text or not isinstance(value, bytes):
                raise TypeError
            parts += [_NAME.pack(len(text)), text, _VALUE.pack(len(value)), value]
    except (AttributeError, TypeError, UnicodeEncodeError, StructError):
        raise InvalidArgument(
            f"headers must be a dict from short texts to bytes, not {shown(headers)}"
        ) from None
    data = b"".join(parts)
    if len(data) > HEADERS_BYTES_MAX:
        raise InvalidArgument(
            f"headers of {len(data)} bytes are above the limit of {HEADERS_BYTES_MAX}; put more "
            "into the value"
        )
    return data


def decode_headers(data: bytes) -> dict[str, bytes]:
    """Return the headers that `encode_headers` made these bytes of."""
    headers: dict[str, bytes] = {}
    at, end = 0, len(data)
    try:
        while at < end:
            (length,) = _NAME.unpack_from(data, at)
            name_end = at + _NAME.size + length
            name = data[at + _NAME.size : name_end].decode()
            (length,) = _VALUE.unpack_from(data, name_end)
            at = name_end + _VALUE.size + length
            headers[name] = data[name_end + _VALUE.size : at]
    except (StructError, UnicodeDecodeError):
        raise Corrupt("headers of a record are cut off or no text") from None
    if at != end:
        raise Corrupt("headers of a record are cut off")
    return headers
