"""A metadata value as stored in a MetaStore: after a checksum of its key and its content.

    format (1 byte) | CRC32C of key, version and value | value

All stores write and read values through this module. The checksum covers the key, so a value under
the wrong key is detected. It covers the version where the store knows it before it writes; a store
that does not (etcd) uses 0.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from loomlog.errors import Corrupt
from loomlog.metadata.store.contract import StoredItem

FORMAT: Final = 3

_HEAD: Final = struct.Struct("<BI")
_VERSION: Final = struct.Struct("<Q")
_VERSION_MAX: Final = (1 << 64) - 1


class DamagedItem(StoredItem):
    """An item with a wrong checksum. It exists and has a version, but no value."""

    __slots__ = ()

    @property
    def value(self) -> bytes:
        raise Corrupt(self[0].decode())


def pack(key: str, value: bytes, version: int = 0) -> bytes:
    return _HEAD.pack(FORMAT, _checksum(key, value, version)) + value


def unpack(key: str, stored: bytes, version: int = 0) -> bytes:
    """Return the value, or raise Corrupt if it was not written under this key."""
    if is_whole(key, stored, version):
        return stored[_HEAD.size :]
    raise Corrupt(
        f"the metadata record {key!r} is damaged, or was written by another release: "
        "restore the metadata from a copy"
    )


def versioned(key: str, stored: bytes, version: int, *, covered: int = 0) -> StoredItem:
    """Return the item that a store found under `key`. Reading the value of a damaged one raises
    Corrupt, so that it is never mistaken for absent and all others stay readable."""
    try:
        return StoredItem(unpack(key, stored, covered), version)
    except Corrupt as error:
        return DamagedItem(str(error).encode(), version)


def is_whole(key: object, stored: object, version: object) -> bool:
    """Return whether these belong together; a damaged store may return values of any type."""
    if not (isinstance(key, str) and isinstance(stored, bytes) and isinstance(version, int)):
        return False
    if len(stored) < _HEAD.size or not 0 <= version <= _VERSION_MAX:
        return False
    written = _HEAD.unpack_from(stored)
    return bool(written == (FORMAT, _checksum(key, stored[_HEAD.size :], version)))


def checksum_in(stored: object) -> int:
    """Return the checksum in a packed value; 0 if it has none."""
    if not isinstance(stored, bytes) or len(stored) < _HEAD.size:
        return 0
    return int(_HEAD.unpack_from(stored)[1])


def _checksum(key: str, value: bytes, version: int) -> int:
    name = key.encode(errors="replace")
    return int(crc32c(value, crc32c(_VERSION.pack(version) + name + b"\0")))
