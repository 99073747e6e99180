"""A cluster's metadata in one file, to move it between the embedded and the replicated form, or to
keep a copy.

    header    magic, CRC of all that follows, format, leader epoch, highest version, counts
    items     sizes, key, value: what the MetaStore holds
    rounds    size, record: what the round log holds, oldest first

Data that belongs to only one form (leader, metadata repositories) is not part of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from crc32c import crc32c

from loomlog.errors import AlreadyExists, Corrupt, NotFound, VersionMismatch
from loomlog.metadata.catalog.records import ACCESS, AccessRecord, ClusterRecord, decode, encode
from loomlog.metadata.leader.membership import LEADER
from loomlog.metadata.store.checked_value import DamagedItem
from loomlog.metadata.store.contract import MetaStore, StoredItem

FORMAT: Final = 2

_CLUSTER: Final = "cluster"
_OF_USERS: Final = ("register/", "lease/")
_OF_ONE_FORM: Final = (LEADER, "metadata/")
_MAGIC: Final = b"loommeta"
_HEADER: Final = struct.Struct("<8sIIQQII")  # …, format, epoch, version, items, rounds
_CRC_FROM: Final = 12
_ITEM: Final = struct.Struct("<II")  # sizes of key and value
_ROUND: Final = struct.Struct("<I")


class MovableStore(MetaStore, Protocol):
    """A store into which metadata can be moved."""

    async def last_version(self) -> int:
        """Return a version at or above all that were ever assigned."""

    async def raise_versions(self, version: int) -> None:
        """Start all later versions above this one."""


@dataclass(frozen=True, slots=True)
class Dump:
    """The metadata of a cluster whose metadata repositories are stopped."""

    epoch: int  # the highest one of any leader
    version: int  # the highest one that the store assigned
    items: dict[str, bytes]
    rounds: tuple[bytes, ...]
    left_out: tuple[str, ...] = ()  # damaged records that were there; not part of the file

    @property
    def cluster_id(self) -> str:
        return decode(ClusterRecord, _CLUSTER, self.items[_CLUSTER]).cluster_id

    @property
    def secrets(self) -> str:
        """Return a description of the secrets in it."""
        keys = " and the keys that sign tokens" if self._access.keys else ""
        return f"the secrets of cluster and nodes{keys}"

    def without_token_keys(self) -> Dump:
        """Leave out the keys that sign tokens, and with them all tokens."""
        items = dict(self.items)
        if ACCESS in items:
            items[ACCESS] = encode(replace(self._access, keys=(), tokens=()))
        return replace(self, items=items)

    @property
    def _access(self) -> AccessRecord:
        found = self.items.get(ACCESS)
        return decode(AccessRecord, ACCESS, found) if found is not None else AccessRecord()

    def encode(self) -> bytes:
        parts = [
            part
            for key, value in self.items.items()
            for part in (_ITEM.pack(len(key.encode()), len(value)), key.encode(), value)
        ]
        parts += [part for record in self.rounds for part in (_ROUND.pack(len(record)), record)]
        counts = (len(self.items), len(self.rounds))
        head = _HEADER.pack(_MAGIC, 0, FORMAT, self.epoch, self.version, *counts)
        body = b"".join((head[_CRC_FROM:], *parts))
        return head[:8] + int(crc32c(body)).to_bytes(4, "little") + body

    @classmethod
    def decode(cls, data: bytes, path: str) -> Dump:
        if len(data) < _HEADER.size or not data.startswith(_MAGIC):
            raise Corrupt(f"{path} was not written by `loom metadata export`: give another file")
        _, crc, version, epoch, highest, items, rounds = _HEADER.unpack_from(data)
        if int(crc32c(data[_CRC_FROM:])) != crc:
            raise Corrupt(f"{path} is damaged: export it again, or use another copy")
        if version != FORMAT:
            raise VersionMismatch(f"{path} has format {version}, this release reads {FORMAT}")
        reader = _Reader(data, _HEADER.size)
        try:
            found = dict(reader.items(items))
            dump = cls(epoch, highest, found, tuple(reader.rounds(rounds)))
        except (struct.error, UnicodeDecodeError):
            raise Corrupt(f"{path} ends too early: export it again, or use another copy") from None
        if _CLUSTER not in found:
            raise Corrupt(f"{path} has no record of a cluster: use another copy")
        return dump


class _Reader:
    """Reads bytes whose CRC is right."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def items(self, count: int) -> Iterator[tuple[str, bytes]]:
        for _ in range(count):
            key_size, value_size = self._numbers(_ITEM)
            yield self._bytes(key_size).decode(), self._bytes(value_size)

    def rounds(self, count: int) -> Iterator[bytes]:
        for _ in range(count):
            (size,) = self._numbers(_ROUND)
            yield self._bytes(size)

    def _numbers(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self._bytes(layout.size))

    def _bytes(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if len(found) != size:
            raise struct.error("cut off")
        self._at += size
        return found


async def dump(
    store: MovableStore,
    rounds: tuple[bytes, ...],
    epoch: int,
    where: str,
    *,
    skip_damaged: bool = False,
) -> Dump:
    """Return the content of a store, with the rounds. `skip_damaged` leaves out damaged registers
    and leases; any other damage raises Corrupt."""
    items = await store.list("")
    if _CLUSTER not in items:
        raise _nothing_in(where)
    left_out = tuple(key for key, item in items.items() if skip_damaged and _may_skip(key, item))
    kept = {
        key: item.value
        for key, item in items.items()
        if not key.startswith(_OF_ONE_FORM) and key not in left_out
    }
    return Dump(epoch, await store.last_version(), kept, rounds, left_out)


def _may_skip(key: str, item: StoredItem) -> bool:
    """Return whether an item is damaged and nothing else depends on it."""
    return isinstance(item, DamagedItem) and key.startswith(_OF_USERS)


async def cluster_id(store: MetaStore, where: str) -> str:
    """Return the id of the cluster whose metadata it is."""
    item = await store.get(_CLUSTER)
    if item is None:
        raise _nothing_in(where)
    return decode(ClusterRecord, _CLUSTER, item.value).cluster_id


def _nothing_in(where: str) -> NotFound:
    return NotFound(f"{where} holds no metadata of a cluster: give another place")


async def check_empty(store: MetaStore, where: str) -> None:
    """Raise if a store that is to be filled is not empty."""
    if found := await store.list(""):
        raise AlreadyExists(
            f"{where} holds metadata already ({len(found)} entries): import into an empty place"
        )


async def fill(store: MovableStore, dump: Dump, more: Mapping[str, bytes] | None = None) -> None:
    """Write all items into an empty store, and `more` that its form needs. The cluster's record
    comes last: until then there is no cluster that a metadata repository could serve."""
    await store.raise_versions(dump.version)
    for key, value in {**dump.items, **(more or {})}.items():
        if key != _CLUSTER:
            await store.compare_and_swap(key, 0, value)
    await store.compare_and_swap(_CLUSTER, 0, dump.items[_CLUSTER])
