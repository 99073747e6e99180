"""Find out whether a certificate has an extended key usage.

OpenSSL refuses a certificate with another extended key usage, but accepts one without any for every
purpose. Python's ssl does not expose the extension, and `cryptography` takes longer to load than a
client needs to connect. The certificate has been verified, so it is well-formed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_EXTENSIONS: Final = 0xA3  # the tag of this part of a certificate
_EXTENDED_KEY_USAGE: Final = bytes((0x55, 0x1D, 0x25))  # the object identifier 2.5.29.37


def has_extended_key_usage(certificate: bytes) -> bool:
    """Return whether a certificate in DER has the extension."""
    [signed] = _parts(certificate)
    stated = next(_parts(signed[1]))
    for tag, content in _parts(stated[1]):
        if tag == _EXTENSIONS:
            [(_, extensions)] = _parts(content)
            found = (next(_parts(extension))[1] for _, extension in _parts(extensions))
            return _EXTENDED_KEY_USAGE in found
    return False


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element in a sequence of DER."""
    at = 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        yield tag, data[at : at + length]
        at += length
