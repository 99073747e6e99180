"""A BlockTable in RocksDB: positions of chains come in any order, and holes matter.

    block:     "B" replica last(8) count(4)  →  batch, then version(1) producer(8) sequence(8)
    extent:    "E" replica last(8) count(4)  →  nothing: a walk over blocks would read their batches
    standing:  "S" replica                   →  version(1) epoch(8) trimmed(8)
    replica:   log(4) chain(4) birth(8)

All numbers are big-endian and unsigned, so keys are in the order of positions. A block is kept by
its LAST position: the first key at or behind a position is then the block that covers it or comes
next, its extent is in the key, and to trim is to delete one range, without a look at any value.

Batches have checksums of their own, RocksDB one for each of its blocks and log records. Large
batches go to blob files, which compactions leave alone. What a killed process wrote without a sync
is made durable when RocksDB opens, before anybody sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from struct import Struct
from threading import Lock
from typing import Final

from rocksdict import Rdict, WriteBatch

from loomlog.core.chained.block import Block, Extent
from loomlog.core.chained.projection import Replica
from loomlog.core.chained.replica import Change, Gone, Put, Standing
from loomlog.errors import Corrupt, VersionMismatch
from loomlog.storage import rocks
from loomlog.types import Glsn, NodeId

VERSION: Final = 1

_REPLICA: Final = Struct(">cIIQ")
_PLACE: Final = Struct(">QI")
_KEY: Final = Struct(">cIIQQI")  # both of them
_BLOCK: Final = Struct(">BQQ")
_STANDING: Final = Struct(">BQQ")
_BLOCKS: Final = b"B"
_EXTENTS: Final = b"E"
_STANDINGS: Final = b"S"
_PREFIX_BYTES: Final = _REPLICA.size
_POSITION_MAX: Final = (1 << 64) - 1

_SIZES: Final = (
    "rocksdb.total-sst-files-size",
    "rocksdb.total-blob-file-size",
    "rocksdb.cur-size-all-mem-tables",
)


def _prefix(kind: bytes, replica: Replica) -> bytes:
    return _REPLICA.pack(kind, replica.log_id, replica.chain, replica.birth)


class RocksReplica:
    """A replica as of one commit: a trim does not take away what was just found."""

    def __init__(self, cursor: rocks.Cursor, replica: Replica) -> None:
        self._cursor = cursor
        self._replica = replica
        self._prefix = _prefix(_EXTENTS, replica)

    @property
    def standing(self) -> Standing | None:
        value = self._cursor.get(_prefix(_STANDINGS, self._replica))
        return None if value is None else _unpack_standing(value)

    def find(self, position: Glsn) -> Extent | None:
        found = self.scan(position, 1)
        return found[0] if found else None

    def find_before(self, position: Glsn) -> Extent | None:
        return self._before(self._key(position))

    def last(self) -> Extent | None:
        return self._before(self._key(_POSITION_MAX))

    def scan(self, position: Glsn, blocks_max: int) -> list[Extent]:
        extent = self._extent(self._cursor.seek(self._key(position)))
        extents: list[Extent] = []
        while extent is not None and len(extents) < blocks_max:
            extents.append(extent)
            extent = self._extent(self._cursor.next())
        return extents

    def load(self, extent: Extent) -> Block:
        place = _PLACE.pack(extent.last, extent.count)
        value = self._cursor.get(_prefix(_BLOCKS, self._replica) + place)
        if value is None:
            raise Corrupt(f"the block at {extent.first} is not where it was found: check the disk")
        batch, written_by = memoryview(value)[: -_BLOCK.size], value[-_BLOCK.size :]
        version, producer_id, sequence = _BLOCK.unpack(written_by)
        _check_version(version)
        return Block(extent.first, extent.count, producer_id, sequence, batch)

    def _before(self, key: bytes) -> Extent | None:
        return self._extent(self._cursor.seek_back(key))

    def _extent(self, key: bytes | None) -> Extent | None:
        if key is None or not key.startswith(self._prefix):
            return None
        last, count = _PLACE.unpack_from(key, _PREFIX_BYTES)
        return Extent(last - count + 1, count)

    def _key(self, position: Glsn) -> bytes:
        return self._prefix + _PLACE.pack(position, 0)


class RocksTable:
    """Opening and closing block."""

    def __init__(self, path: str, node_id: NodeId) -> None:
        self._db = Rdict(path, rocks.options())
        self._node_id = node_id
        self._committing = Lock()  # nobody looks while what was written is not synced yet
        self._batch: WriteBatch | None = None  # for the next commit: to make it takes longest

    def replicas(self) -> dict[Replica, Standing]:
        found = {}
        cursor = rocks.Cursor(self._db)
        key = cursor.seek(_STANDINGS)
        while key is not None and key.startswith(_STANDINGS):
            _, log_id, chain, birth = _REPLICA.unpack(key)
            replica = Replica(self._node_id, log_id, chain, birth)
            found[replica] = _unpack_standing(cursor.value)
            key = cursor.next()
        return found

    def look(self, replica: Replica) -> RocksReplica:
        with self._committing:
            return RocksReplica(rocks.Cursor(self._db), replica)

    def commit(self, changes: Sequence[tuple[Replica, Change]], *, sync: bool) -> None:
        self.get_ready()
        batch, self._batch = self._batch, None
        assert batch is not None
        for replica, change in changes:
            if isinstance(change, Put):
                _put(batch, replica, change.block)
            else:
                _change(batch, replica, change)
        with self._committing:
            rocks.write(self._db, batch, sync=sync)

    def get_ready(self) -> None:
        if self._batch is None:
            self._batch = WriteBatch(raw_mode=True)

    def stored_bytes(self) -> int:
        return sum(self._db.property_int_value(name) or 0 for name in _SIZES)

    def reclaim(self, replica: Replica, position: Glsn) -> None:
        for kind in (_BLOCKS, _EXTENTS):
            prefix = _prefix(kind, replica)
            self._db.compact_range(prefix, prefix + _PLACE.pack(position, 0))

    def interrupt(self) -> None:
        self._db.cancel_all_background(False)

    def close(self) -> None:
        with suppress(Exception):  # what it cannot flush any more is in its log
            self._db.close()


def _put(batch: WriteBatch, replica: Replica, block: Block) -> None:
    _, log_id, chain, birth = replica
    first, count, producer_id, sequence, content = block
    key = _KEY.pack(_BLOCKS, log_id, chain, birth, first + count - 1, count)
    # The batch comes first: copies of what is not aligned are slow.
    batch.put(key, b"".join((content, _BLOCK.pack(VERSION, producer_id, sequence))))
    batch.put(_EXTENTS + key[1:], b"")


def _change(batch: WriteBatch, replica: Replica, change: Standing | Gone) -> None:
    match change:
        case Standing(epoch, trimmed):
            batch.put(_prefix(_STANDINGS, replica), _STANDING.pack(VERSION, epoch, trimmed))
            if trimmed:
                _delete_below(batch, replica, trimmed + 1)
        case Gone():
            batch.delete(_prefix(_STANDINGS, replica))
            _delete_below(batch, replica, _POSITION_MAX)


def _delete_below(batch: WriteBatch, replica: Replica, position: Glsn) -> None:
    """Blocks that end there are kept."""
    for kind in (_BLOCKS, _EXTENTS):
        prefix = _prefix(kind, replica)
        batch.delete_range(prefix, prefix + _PLACE.pack(position, 0))


def _unpack_standing(value: bytes) -> Standing:
    if len(value) != _STANDING.size:
        raise Corrupt(f"the standing of a replica has {len(value)} bytes: restore the volume")
    version, epoch, trimmed = _STANDING.unpack(value)
    _check_version(version)
    return Standing(epoch, trimmed)


def _check_version(version: int) -> None:
    if version != VERSION:
        raise VersionMismatch(
            f"blocks of format version {version}, this software reads {VERSION}; upgrade it"
        )
