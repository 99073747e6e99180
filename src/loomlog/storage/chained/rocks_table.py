"""A BlockTable in RocksDB: positions of chains come in any order, and holes matter.

    block:     "B" replica last(8) count(4)  →  batch, then version(1) producer(8) sequence(8)
    extent:    "E" replica last(8) count(4)  →  latest timestamp(8, signed) size(4), then the
                                                addresses(8 each) that it reports as acknowledged.
                                                So no batch is read to list or measure blocks, or
                                                to find old ones
    standing:  "S" replica                   →  version(1) epoch(8) trimmed(8) written(8)
    file:      "F" replica number(8)         →  version(1) highest(8) size(8): see block_files.py
    replica:   log(4) chain(4) birth(8)
    a large block, of version 6, has instead of its batch: number(8) offset(8) size(4) crc(4)

All numbers are big-endian and unsigned, so keys are sorted by position. The key of a block has its
LAST position: so the first key at or after a position is the block that covers it or the next one,
the extent is in the key, and a trim deletes one range without reading any value.

Batches have checksums of their own; RocksDB adds one to each of its blocks and log records. Batches
of 4 KiB and more go to blob files, which compactions do not rewrite. Large ones go to files of our
own, which are synced before the rows that refer to them are written. Unsynced writes of a killed
process become durable when RocksDB opens, before they can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from struct import Struct, unpack_from
from threading import Lock
from typing import Final

from rocksdict import WriteBatch

from loomlog.core.chained.chain import FOREVER_US, Block, Extent, Replica
from loomlog.core.chained.replica import Change, Gone, Put, SetAcknowledged, Standing
from loomlog.errors import Corrupt, VersionMismatch
from loomlog.limits import POSITION_MAX
from loomlog.storage import rocks, salvage
from loomlog.storage.chained import block_files
from loomlog.storage.chained.block_files import BlockFiles, Content, Contents, FilePlace, needless
from loomlog.storage.chained.block_table import TrimmedMeanwhileError
from loomlog.storage.disk import RealFiles
from loomlog.storage.files import File, Files, closed_on_failure
from loomlog.storage.synced_mark import SyncedMark
from loomlog.types import Buffer, Glsn, NodeId

VERSION: Final = 5
VERSION_IN_FILE: Final = 6  # of a block

_REPLICA: Final = Struct(">cIIQ")
_PLACE: Final = Struct(">QI")
_KEY: Final = Struct(">cIIQQI")  # prefix and place
_BLOCK: Final = Struct(">BQQ")
_PLACE_IN_FILE: Final = Struct(">QQII")
_ABOUT: Final = Struct(">qI")
_STANDING: Final = Struct(">BQQQ")
_FILE_KEY: Final = Struct(">cIIQQ")
_FILE: Final = Struct(">BQQ")
_FILES: Final = b"F"
_BLOCKS: Final = b"B"
_EXTENTS: Final = b"E"
_STANDINGS: Final = b"S"
_PREFIX_BYTES: Final = _REPLICA.size
_POSITION_BYTES: Final = 8
_POSITION_MAX: Final = (1 << 64) - 1

_SIZES: Final = (
    "rocksdb.total-sst-files-size",
    "rocksdb.total-blob-file-size",
    "rocksdb.cur-size-all-mem-tables",
)


def _prefix(kind: bytes, replica: Replica) -> bytes:
    return _REPLICA.pack(kind, replica.log_id, replica.chain, replica.birth)


class RocksReplica:
    """The state of a replica after some commit: a trim does not remove what was just found."""

    def __init__(self, cursor: rocks.Cursor, replica: Replica, files: BlockFiles) -> None:
        self._cursor = cursor
        self._replica = replica
        self._files = files
        self._open: dict[int, File] = {}
        self._prefix = _prefix(_EXTENTS, replica)

    @property
    def standing(self) -> Standing | None:
        value = self._cursor.get(_prefix(_STANDINGS, self._replica))
        return None if value is None else _unpack_standing(value)

    def find(self, position: Glsn) -> Extent | None:
        extents = self.scan(position, 1)
        return extents[0] if extents else None

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
        value = self._cursor.get_content(_prefix(_BLOCKS, self._replica) + place)
        if value is None:
            raise Corrupt(f"the block at {extent.first} is not where it was found: check the disk")
        batch, written_by = memoryview(value)[: -_BLOCK.size], value[-_BLOCK.size :]
        version, producer_id, sequence = _BLOCK.unpack(written_by)
        if version == VERSION_IN_FILE:
            batch = self._read(FilePlace._make(_PLACE_IN_FILE.unpack(batch)))
        else:
            _check_version(version)
        return Block(extent.first, extent.count, producer_id, sequence, batch)

    def latest_us(self, extent: Extent) -> int:
        latest_us, _ = _ABOUT.unpack_from(self._about(extent))
        return int(latest_us)

    def size_of(self, extent: Extent) -> int:
        _, size = _ABOUT.unpack_from(self._about(extent))
        return int(size)

    def acknowledged_in(self, extent: Extent) -> tuple[Glsn, ...]:
        value = self._about(extent)
        return unpack_from(f">{_address_count(value)}Q", value, _ABOUT.size)

    def _about(self, extent: Extent) -> bytes:
        value = self._cursor.get(self._prefix + _PLACE.pack(extent.last, extent.count))
        if value is None or len(value) != _ABOUT.size + _address_count(value) * _POSITION_BYTES:
            raise Corrupt(f"the block at {extent.first} has no time: check the disk")
        return value

    def _read(self, place: FilePlace) -> memoryview:
        try:
            if place.number not in self._open:
                self._open[place.number] = self._files.open(self._replica, place.number)
        except FileNotFoundError as error:
            raise TrimmedMeanwhileError("all in the file of a block was trimmed") from error
        return memoryview(block_files.read(self._open[place.number], place))

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
    """The chains of one volume. Opening and closing block. `was_used`: the table must exist."""

    def __init__(self, path: str, node_id: NodeId, *, was_used: bool = False) -> None:
        rocks.prepare(path, was_used=was_used)
        self._db = rocks.open_database(path, rocks.options)
        self._node_id = node_id
        with closed_on_failure(self._db):
            self._mark = SyncedMark(path, self._db)
            with closed_on_failure(self._mark):
                self._files = self._open_files(path)
        self._committing = Lock()  # held until a commit is synced; readers wait for it
        self._batch: WriteBatch | None = None  # for the next commit: creating it takes longest

    def replicas(self) -> dict[Replica, Standing]:
        standings = {}
        for key, value in rocks.Cursor(self._db).rows(_STANDINGS):
            _, log_id, chain, birth = _REPLICA.unpack(key)
            replica = Replica(self._node_id, log_id, chain, birth)
            standings[replica] = _unpack_standing(value)
        return standings

    def _open_files(self, path: str) -> BlockFiles:
        contents: Contents = {}
        for key, value in rocks.Cursor(self._db).rows(_FILES):
            _, log_id, chain, birth, number = _FILE_KEY.unpack(key)
            version, *content = _FILE.unpack(value)
            _check_version(version)
            replica = Replica(self._node_id, log_id, chain, birth)
            contents.setdefault(replica, {})[number] = Content._make(content)
        for replica, number in list(needless(contents, self.replicas())):
            del contents[replica][number]
            self._forget_files(replica, [number])
        return BlockFiles(RealFiles(), path, contents)

    def look(self, replica: Replica) -> RocksReplica:
        with self._committing:
            return RocksReplica(rocks.Cursor(self._db), replica, self._files)

    def commit(self, changes: Sequence[tuple[Replica, Change]], *, sync: bool) -> None:
        self.get_ready()
        batch, self._batch = self._batch, None
        assert batch is not None
        has_files = False
        for replica, change in changes:
            if not isinstance(change, Put):
                _change(batch, replica, change)
            elif len(change.block.batch) >= block_files.LARGE_BYTES and self._files.takes(replica):
                has_files = True
                place = _PLACE_IN_FILE.pack(*self._files.add(replica, change.block))
                _put(batch, replica, change.block, place, VERSION_IN_FILE)
            else:
                _put(batch, replica, change.block, change.block.batch, VERSION)
        if has_files:
            for (replica, number), content in self._files.flush(sync=sync).items():
                batch.put(_file_key(replica, number), _FILE.pack(VERSION, *content))
        with self._committing:
            self._db.write(batch)
            if sync:
                self._mark.sync()

    def get_ready(self) -> None:
        if self._batch is None:
            self._batch = WriteBatch(raw_mode=True)

    def stored_bytes(self) -> int:
        in_table = sum(self._db.property_int_value(name) or 0 for name in _SIZES)
        return in_table + self._files.stored_bytes

    def bytes_in_files(self, replica: Replica) -> int:
        return self._files.bytes_of(replica)

    def reclaim(self, replica: Replica, position: Glsn) -> None:
        standing = self.look(replica).standing
        trimmed = POSITION_MAX if standing is None else standing.trimmed
        self._forget_files(replica, self._files.remove(replica, trimmed))
        for kind in (_BLOCKS, _EXTENTS):
            prefix = _prefix(kind, replica)
            self._db.compact_range(prefix, prefix + _PLACE.pack(position, 0))

    def _forget_files(self, replica: Replica, numbers: Sequence[int]) -> None:
        """Delete the rows of files. If a power loss undoes that, the next start repeats it."""
        batch = WriteBatch(raw_mode=True)
        for number in numbers:
            batch.delete(_file_key(replica, number))
        self._db.write(batch)

    def interrupt(self) -> None:
        self._db.cancel_all_background(False)

    def close(self) -> None:
        self._files.close()
        rocks.close(self._db, self._mark)


def _put(batch: WriteBatch, replica: Replica, block: Block, content: Buffer, version: int) -> None:
    _, log_id, chain, birth = replica
    key = _KEY.pack(_BLOCKS, log_id, chain, birth, block.last, block.count)
    # The batch comes first, because unaligned copies are slow.
    written_by = _BLOCK.pack(version, block.producer_id, block.sequence)
    batch.put(key, b"".join((content, written_by)))
    about = _about(block.latest_us, len(block.batch), block.acknowledged)
    batch.put(_EXTENTS + key[1:], about)


def _about(latest_us: int, size: int, acknowledged: tuple[Glsn, ...]) -> bytes:
    if not acknowledged:
        return _ABOUT.pack(latest_us, size)
    return _about_with(len(acknowledged)).pack(latest_us, size, *acknowledged)


@cache
def _about_with(count: int) -> Struct:
    return Struct(f"{_ABOUT.format}{count}Q")


def _address_count(about: bytes) -> int:
    return max(0, len(about) - _ABOUT.size) // _POSITION_BYTES


def _file_key(replica: Replica, number: int) -> bytes:
    return _FILE_KEY.pack(_FILES, replica.log_id, replica.chain, replica.birth, number)


def _change(batch: WriteBatch, replica: Replica, change: SetAcknowledged | Standing | Gone) -> None:
    match change:
        case SetAcknowledged(extent, latest_us, size, acknowledged):
            key = _prefix(_EXTENTS, replica) + _PLACE.pack(extent.last, extent.count)
            batch.put(key, _about(latest_us, size, acknowledged))
        case Standing():
            batch.put(_prefix(_STANDINGS, replica), _STANDING.pack(VERSION, *change))
            if change.trimmed:
                _delete_below(batch, replica, change.trimmed + 1)
        case Gone():
            batch.delete(_prefix(_STANDINGS, replica))
            _delete_below(batch, replica, _POSITION_MAX)


def _delete_below(batch: WriteBatch, replica: Replica, position: Glsn) -> None:
    """Delete the blocks that end below a position."""
    for kind in (_BLOCKS, _EXTENTS):
        prefix = _prefix(kind, replica)
        batch.delete_range(prefix, prefix + _PLACE.pack(position, 0))


def _unpack_standing(value: bytes) -> Standing:
    _check_version(value[0] if value else VERSION)
    if len(value) != _STANDING.size:
        raise Corrupt(f"the standing of a replica has {len(value)} bytes: restore the volume")
    _, *numbers = _STANDING.unpack(value)
    return Standing(*numbers)


def _check_version(version: int) -> None:
    if version != VERSION:
        raise VersionMismatch(
            f"blocks of format version {version}, this software reads {VERSION}; upgrade it"
        )


# ---- salvaging a damaged table


def salvage_table(files: Files, path: str) -> str:
    """Salvage the table at `path`. Return the new path of the damaged one. Blocking."""
    return salvage.salvage(files, path, rocks.options, put_in_order)


def put_in_order(database: salvage.Database) -> None:
    """Write the rows that follow from blocks: their extents, files and replicas. Blocks never
    change, so those that are left are valid."""
    db, batch = database.main, WriteBatch(raw_mode=True)
    look = rocks.Cursor(db)
    replicas: set[bytes] = set()
    files: dict[bytes, Content] = {}
    for key, value in rocks.Cursor(db).rows(_BLOCKS):
        replicas.add(key[1:_PREFIX_BYTES])
        content, (version, _, _) = value[: -_BLOCK.size], _BLOCK.unpack(value[-_BLOCK.size :])
        batch_bytes = len(content)
        if version == VERSION_IN_FILE:
            place = FilePlace._make(_PLACE_IN_FILE.unpack(content))
            batch_bytes = place.size
            file = _FILES + key[1:_PREFIX_BYTES] + place.number.to_bytes(8, "big")
            highest, size = files.get(file, Content())
            last: int = _PLACE.unpack_from(key, _PREFIX_BYTES)[0]
            files[file] = Content(max(highest, last), max(size, place.offset + place.size))
        if look.get(_EXTENTS + key[1:]) is None:
            batch.put(_EXTENTS + key[1:], _ABOUT.pack(FOREVER_US, batch_bytes))
    replicas.update(key[1:_PREFIX_BYTES] for key, _ in rocks.Cursor(db).rows(_EXTENTS))
    for replica in replicas:
        if look.get(_STANDINGS + replica) is None:
            batch.put(_STANDINGS + replica, _STANDING.pack(VERSION, *Standing()))
    for file, contents in files.items():
        batch.put(file, _FILE.pack(VERSION, *contents))
    db.write(batch)
