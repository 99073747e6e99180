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
from typing import Any, Final

from rocksdict import DBCompressionType, Options, Rdict, WriteBatch

from loomlog.core.chained.block import Block, Extent
from loomlog.core.chained.projection import Replica
from loomlog.core.chained.replica import Change, Gone, Put, Standing
from loomlog.errors import Corrupt, VersionMismatch
from loomlog.limits import KIB, MIB
from loomlog.types import Glsn, NodeId

VERSION: Final = 1

_REPLICA: Final = Struct(">cIIQ")
_PLACE: Final = Struct(">QI")
_BLOCK: Final = Struct(">BQQ")
_STANDING: Final = Struct(">BQQ")
_BLOCKS: Final = b"B"
_EXTENTS: Final = b"E"
_STANDINGS: Final = b"S"
_PREFIX_BYTES: Final = _REPLICA.size
_POSITION_MAX: Final = (1 << 64) - 1

_MEMTABLE_BYTES: Final = 32 * MIB
_LOG_BYTES_MAX: Final = 128 * MIB  # what a start has to read
_BLOB_BYTES_MIN: Final = 4 * KIB  # smaller values are not worth a second look-up
_LOG_FILES_KEPT: Final = 2  # of what RocksDB tells about itself ...
_LOG_FILE_BYTES: Final = MIB  # ... and how much of that is in one
_SIZES: Final = (
    "rocksdb.total-sst-files-size",
    "rocksdb.total-blob-file-size",
    "rocksdb.cur-size-all-mem-tables",
)


def _prefix(kind: bytes, replica: Replica) -> bytes:
    return _REPLICA.pack(kind, replica.log_id, replica.chain, replica.birth)


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_MEMTABLE_BYTES)
    options.set_max_total_wal_size(_LOG_BYTES_MAX)
    options.set_compression_type(DBCompressionType.none())  # clients compress batches
    options.set_enable_blob_files(True)
    options.set_min_blob_size(_BLOB_BYTES_MIN)
    options.set_enable_blob_gc(True)
    options.set_keep_log_file_num(_LOG_FILES_KEPT)
    options.set_max_log_file_size(_LOG_FILE_BYTES)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


class RocksReplica:
    """A replica as of one commit: a trim does not take away what was just found. All is read
    through one cursor, which sees what was there when it was made; a snapshot's do not."""

    def __init__(self, cursor: Any, replica: Replica) -> None:
        self._cursor = cursor
        self._replica = replica
        self._prefix = _prefix(_EXTENTS, replica)

    @property
    def standing(self) -> Standing | None:
        value = self._get(_prefix(_STANDINGS, self._replica))
        return None if value is None else _unpack_standing(value)

    def find(self, position: Glsn) -> Extent | None:
        found = self.scan(position, 1)
        return found[0] if found else None

    def find_before(self, position: Glsn) -> Extent | None:
        return self._before(self._key(position))

    def last(self) -> Extent | None:
        return self._before(self._key(_POSITION_MAX))

    def scan(self, position: Glsn, blocks_max: int) -> list[Extent]:
        self._cursor.seek(self._key(position))
        extents: list[Extent] = []
        while len(extents) < blocks_max and (extent := self._extent()) is not None:
            extents.append(extent)
            self._cursor.next()
        return extents

    def load(self, extent: Extent) -> Block:
        place = _PLACE.pack(extent.last, extent.count)
        value = self._get(_prefix(_BLOCKS, self._replica) + place)
        if value is None:
            raise Corrupt(f"the block at {extent.first} is not where it was found: check the disk")
        batch, written_by = memoryview(value)[: -_BLOCK.size], value[-_BLOCK.size :]
        version, producer_id, sequence = _BLOCK.unpack(written_by)
        _check_version(version)
        return Block(extent.first, extent.count, producer_id, sequence, batch)

    def _get(self, key: bytes) -> bytes | None:
        self._cursor.seek(key)
        if not self._is_somewhere() or self._cursor.key() != key:
            return None
        value: bytes = self._cursor.value()
        return value

    def _before(self, key: bytes) -> Extent | None:
        self._cursor.seek_for_prev(key)
        return self._extent()

    def _extent(self) -> Extent | None:
        if not self._is_somewhere():
            return None
        key: bytes = self._cursor.key()
        if not key.startswith(self._prefix):
            return None
        last, count = _PLACE.unpack_from(key, _PREFIX_BYTES)
        return Extent(last - count + 1, count)

    def _is_somewhere(self) -> bool:
        if not self._cursor.valid():
            self._cursor.status()  # raises if it ended because of a bad disk
            return False
        return True

    def _key(self, position: Glsn) -> bytes:
        return self._prefix + _PLACE.pack(position, 0)


class RocksTable:
    """Opening and closing block."""

    def __init__(self, path: str, node_id: NodeId) -> None:
        self._db = Rdict(path, _options())
        self._node_id = node_id
        self._committing = Lock()  # nobody looks while what was written is not synced yet

    def replicas(self) -> dict[Replica, Standing]:
        found = {}
        cursor = self._db.iter()
        cursor.seek(_STANDINGS)
        while cursor.valid() and cursor.key().startswith(_STANDINGS):
            _, log_id, chain, birth = _REPLICA.unpack(cursor.key())
            replica = Replica(self._node_id, log_id, chain, birth)
            found[replica] = _unpack_standing(cursor.value())
            cursor.next()
        cursor.status()
        return found

    def look(self, replica: Replica) -> RocksReplica:
        with self._committing:
            return RocksReplica(self._db.iter(), replica)

    def commit(self, changes: Sequence[tuple[Replica, Change]], *, sync: bool) -> None:
        batch = WriteBatch(raw_mode=True)
        for replica, change in changes:
            _add(batch, replica, change)
        with self._committing:
            self._db.write(batch)
            if sync:  # not as an option of `write`: that would stop all threads of this process
                self._db.flush_wal(True)

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


def _add(batch: WriteBatch, replica: Replica, change: Change) -> None:
    match change:
        case Put(block):
            place = _PLACE.pack(block.last, block.count)
            written_by = _BLOCK.pack(VERSION, block.producer_id, block.sequence)
            # The batch comes first: copies of what is not aligned are slow.
            batch.put(_prefix(_BLOCKS, replica) + place, b"".join((block.batch, written_by)))
            batch.put(_prefix(_EXTENTS, replica) + place, b"")
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
