"""The keys of one cluster in etcd.

<prefix>/data/<key>    the values of the MetaStore, as they are
<prefix>/lane/<id>     of swaps under way, see swaps.py
"""

from __future__ import annotations

from loomlog.errors import InvalidArgument


class Keys:
    """The keys of a cluster in etcd, below its prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.rstrip("/")
        if not self._prefix:
            raise InvalidArgument("the prefix in etcd must not be empty: name one, e.g. loomlog")
        self._data = f"{self._prefix}/data/".encode()

    def key(self, name: str) -> bytes:
        return self._data + name.encode()

    def name(self, key: bytes) -> str:
        return key.removeprefix(self._data).decode(errors="replace")  # damaged: never equal

    def range(self, prefix: str) -> tuple[bytes, bytes]:
        """Return the first key and the end of all names that begin with `prefix`."""
        first = self.key(prefix)
        return first, first[:-1] + bytes([first[-1] + 1])  # no byte of UTF-8 is 255

    def lane(self, name: str) -> bytes:
        return f"{self._prefix}/lane/{name}".encode()
