"""The rows of LogsDB in RocksDB, as bytes.

In the default column family:

    standing:   "S" log(4)                 →  version(1), the numbers of a LogStanding(8 each),
                                              then epoch(8) and LNG(8) for each epoch it knows of
    end:        "E" log(4) epoch(8)        →  version(1) lng(8) last(8) seal(8) wave(8)
    share:      "D" log(4) partition(8)    →  version(1) first(8) last(8) size(8) latest(8)
    partition:  "P" partition(8)           →  version(1) start in microseconds(8)

In one column family for each partition:

    head:       "H" log(4) first(8)        →  version(1) kind(1) count(4) timestamp(8) wave(4)
                                              lng(8) recovered(8) size(4) crc(4) offset(8), then
                                              the nodes of its copyset(4 each)
    batch:      "B" log(4) first(8)        →  the batch; `size` and `crc` (CRC32C) are of it; none
                                              if the head says at which `offset` of a file it is

All numbers are big-endian, so keys are in the order of LSNs. Heads lie beside each other: to list a
log's copies, their copysets and times, no batch is read.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - `error` says too little
from typing import Final, NamedTuple

from crc32c import crc32c

from loomlog.core.copyset.messages import EpochEnd
from loomlog.core.copyset.record import Epoch, Kind, Lsn, Record
from loomlog.core.copyset.storage import EpochLng, LogStanding
from loomlog.errors import Corrupt, VersionMismatch
from loomlog.storage.logsdb.partitions import PartitionId, Share
from loomlog.types import Buffer, LogId

VERSION: Final = 4

STANDINGS: Final = b"S"
ENDS: Final = b"E"
SHARES: Final = b"D"
PARTITIONS: Final = b"P"
HEADS: Final = b"H"
BATCHES: Final = b"B"

_LOG_KEY: Final = Struct(">cI")
_PLACE_KEY: Final = Struct(">cIQ")
_PARTITION_KEY: Final = Struct(">cQ")

_NUMBERS: Final = len(LogStanding._fields) - 1
_STANDING: Final = Struct(f">B{_NUMBERS}Q")
_LNG: Final = Struct(">QQ")
_END: Final = Struct(">BQQQQ?")
_SHARE: Final = Struct(">BQQQq")
_PARTITION: Final = Struct(">Bq")
_HEAD: Final = Struct(">BBIqIQQIIq")
_NODE_BYTES: Final = 4

IN_A_ROW: Final = -1


class Head(NamedTuple):
    """A copy without its batch, and how to know the batch."""

    record: Record
    size: int
    crc: int
    offset: int = IN_A_ROW  # in the file of its log (batch_files.py)

    @property
    def is_in_a_row(self) -> bool:
        return self.offset == IN_A_ROW


# ---- keys


def log_key(rows: bytes, log: LogId) -> bytes:
    return _LOG_KEY.pack(rows, log)


def log_of(key: bytes) -> LogId:
    log: int = _LOG_KEY.unpack_from(key)[1]
    return log


def place_key(rows: bytes, log: LogId, place: int) -> bytes:
    """Return the key of a head or batch (by LSN), an end (by epoch) or a share (by partition)."""
    return _PLACE_KEY.pack(rows, log, place)


def place_of(key: bytes) -> int:
    place: int = _PLACE_KEY.unpack(key)[2]
    return place


def after_log(rows: bytes, log: LogId) -> bytes:
    """Return a key after all keys of the log."""
    return _PLACE_KEY.pack(rows, log, (1 << 64) - 1) + b"\xff"


def partition_key(partition: PartitionId) -> bytes:
    return _PARTITION_KEY.pack(PARTITIONS, partition)


def partition_of(key: bytes) -> PartitionId:
    partition: int = _PARTITION_KEY.unpack(key)[1]
    return partition


# ---- values


def pack_standing(standing: LogStanding) -> bytes:
    *numbers, lngs = standing
    parts = [_STANDING.pack(VERSION, *numbers)]
    parts += (_LNG.pack(*known) for known in lngs)
    return b"".join(parts)


def unpack_standing(value: bytes) -> LogStanding:
    numbers = _unpack(_STANDING, value, "the standing of a log")
    try:
        lngs = tuple(EpochLng(*known) for known in _LNG.iter_unpack(value[_STANDING.size :]))
    except StructError:
        raise _corrupt("the standing of a log", value) from None
    return LogStanding._make([*numbers, lngs])


def pack_end(end: EpochEnd) -> bytes:
    return _END.pack(VERSION, end.lng, end.last, end.seal, end.wave, end.exact)


def unpack_end(epoch: Epoch, value: bytes) -> EpochEnd:
    lng, last, seal, wave, exact = _unpack(_END, value, "the end of an epoch")
    return EpochEnd(epoch, lng, last, seal, wave, bool(exact))


def pack_share(share: Share) -> bytes:
    return _SHARE.pack(VERSION, *share)


def unpack_share(value: bytes) -> Share:
    return Share(*_unpack(_SHARE, value, "the share of a log in a partition"))


def pack_partition(start_us: int) -> bytes:
    return _PARTITION.pack(VERSION, start_us)


def unpack_partition(value: bytes) -> int:
    [start_us] = _unpack(_PARTITION, value, "a partition")
    return start_us


def head_of(record: Record) -> Head:
    return Head(record, len(record.batch), crc32c(record.batch))


def pack_head(head: Head) -> bytes:
    record = head.record
    numbers = _HEAD.pack(
        *(VERSION, record.kind, record.count, record.timestamp_us),
        *(record.wave, record.lng, record.recovered, head.size, head.crc, head.offset),
    )
    return numbers + b"".join(node.to_bytes(_NODE_BYTES, "big") for node in record.copyset)


def unpack_head(first: Lsn, value: bytes) -> Head:
    numbers = _unpack(_HEAD, value, "the head of a record")
    kind, count, timestamp_us, wave, lng, recovered, size, crc, offset = numbers
    copyset = tuple(
        int.from_bytes(value[at : at + _NODE_BYTES], "big")
        for at in range(_HEAD.size, len(value), _NODE_BYTES)
    )
    record = Record(first, count, Kind(kind), timestamp_us, copyset, wave, lng, recovered)
    return Head(record, size, crc, offset)


def checked_batch(head: Head, batch: Buffer | None) -> Buffer:
    if batch is None or len(batch) != head.size or crc32c(batch) != head.crc:
        raise Corrupt(f"the batch at {head.record.first} is not what was stored: check the disk")
    return batch


def _unpack(struct: Struct, value: bytes, what: str) -> tuple[int, ...]:
    """Unpack a row after checking its version."""
    if len(value) < struct.size:
        raise _corrupt(what, value)
    version, *numbers = struct.unpack_from(value)
    if version != VERSION:
        raise VersionMismatch(
            f"records of format version {version}, this software reads {VERSION}; upgrade it"
        )
    return tuple(numbers)


def _corrupt(what: str, value: bytes) -> Corrupt:
    return Corrupt(f"{what} has {len(value)} bytes: restore the volume")
