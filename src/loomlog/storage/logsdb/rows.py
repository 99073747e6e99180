"""The format of LogsDB: partitions of time, and rows in RocksDB. Pure.

A partition begins at a time and ends where the next one begins; the oldest also has everything
older. Times come from this node's clock, which may jump: a clock that was ahead leaves a partition
that begins in the future, and partitions of the right time begin before it.

A record is stored in the partition of its timestamp, so a rebuilt or recovered record joins those
of its time. Marks of recovery have no timestamp and are stored in the newest partition.

A share describes the records of a log in a partition: their LSNs, and the latest timestamp.
Partitions begin by this node's clock while records are stamped by others, so a partition may have
records that are younger than its end: only the share tells.

In the default column family:

    standing:   "S" log(4)                 →  version(1), the numbers of a LogStanding(8 each),
                                              then epoch(8) and LNG(8) for each of its `lngs`
    end:        "E" log(4) epoch(8)        →  version(1) lng(8) last(8) seal(8) wave(8)
    share:      "D" log(4) partition(8)    →  version(1) first(8) last(8) size(8) latest(8)
    partition:  "P" partition(8)           →  version(1) start in microseconds(8)

In one column family for each partition:

    head:       "H" log(4) first(8)        →  version(1) kind(1) count(4) timestamp(8) wave(4)
                                              lng(8) recovered(8) size(4) crc(4) offset(8), then
                                              the shards of its copyset(6 each)
    batch:      "B" log(4) first(8)        →  the batch, of which the head has `size` and `crc`
                                              (CRC32C); there is no such row if the head has its
                                              `offset` in a file

All numbers are big-endian, so keys are sorted by LSN. Heads are separate from batches: no batch is
read to list the copies of a log with their copysets and times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812 - `error` is too vague
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from loomlog.core.copyset.landmarks import Ages
from loomlog.core.copyset.messages import (
    Amend,
    Clean,
    EpochEnd,
    NodeRequest,
    Purge,
    Reassign,
    Release,
    Restore,
    Seal,
    Store,
    Trim,
)
from loomlog.core.copyset.nodeset import SHARD_BITS, SHARD_MAX
from loomlog.core.copyset.record import (
    EPOCH_MAX,
    LSN_MAX,
    OFFSET_MAX,
    Epoch,
    Kind,
    Lsn,
    Record,
    epoch_of,
    lsn_words,
    offset_of,
)
from loomlog.core.copyset.storage import EpochLng, LogStanding
from loomlog.errors import Corrupt, VersionMismatch
from loomlog.limits import BATCH_BYTES_MAX, KIB, MIB
from loomlog.types import Buffer, LogId, ShardId

PartitionId: TypeAlias = int

VERSION: Final = 5

COPYSETS_REMEMBERED: Final = 1024

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
_SHARD_BYTES: Final = SHARD_BITS // 8

IN_A_ROW: Final = -1

_NUMBER_MAX: Final = (1 << 32) - 1
_TIME_MAX_US: Final = (1 << 63) - 1
_NEVER_US: Final = -(1 << 63)


# ---- partitions


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """When a partition ends, and which batches go to files."""

    duration_s: float = 900.0
    bytes_max: int = 6144 * MIB
    large_batch_bytes: int = 32 * KIB  # go to files; smaller ones are not worth a second sync


class Share(NamedTuple):
    """The copies of a log in a partition. All are within [first, last]."""

    first: Lsn
    last: Lsn
    size: int  # in bytes, approximately
    latest_us: int  # no batch there is younger; never decreases

    def overlaps(self, first: Lsn, last: Lsn) -> bool:
        return self.first <= last and first <= self.last

    def with_record(self, record: Record) -> Share:
        return Share(
            min(self.first, record.first),
            max(self.last, record.last),
            self.size + len(record.batch),
            max(self.latest_us, _time_of(record)),
        )

    def with_time(self, record: Record) -> Share:
        """Return the share after one of its records got another timestamp."""
        return self._replace(latest_us=max(self.latest_us, _time_of(record)))


def share_of(record: Record) -> Share:
    return Share(record.first, record.last, len(record.batch), _time_of(record))


def _time_of(record: Record) -> int:
    return record.timestamp_us if record.kind is Kind.DATA else _NEVER_US


class Beginnings:
    """The start times of the partitions."""

    def __init__(self, starts_us: Mapping[PartitionId, int]) -> None:
        self.starts_us = starts_us
        self.newest: PartitionId = max(starts_us, default=0)  # the last that was created
        self._ids = sorted(starts_us, key=lambda partition: (starts_us[partition], partition))
        self._starts_us = [starts_us[partition] for partition in self._ids]

    def place_of(self, record: Record) -> PartitionId:
        return self.newest if record.kind is not Kind.DATA else self.at(record.timestamp_us)

    def at(self, time_us: int) -> PartitionId:
        """Return the partition of a time."""
        return self._ids[max(0, bisect_right(self._starts_us, time_us) - 1)]

    def is_over(self, now_us: int, size: int, settings: PartitionSettings) -> bool:
        """Return whether to begin a new partition: the current one is old or large enough, or it
        was begun by a clock that was ahead by more than a partition."""
        age_us = now_us - self.starts_us[self.at(now_us)]
        if abs(age_us) >= settings.duration_s * 1e6:
            return True
        return age_us > 0 and size >= settings.bytes_max


def runs(shares: Iterable[tuple[PartitionId, Share]]) -> list[list[PartitionId]]:
    """Return the partitions in LSN order. Those with overlapping shares, which must be merged when
    read, are grouped."""
    groups: list[list[PartitionId]] = []
    last = -1
    for partition, share in sorted(shares, key=lambda item: item[1]):
        if share.first > last:
            groups.append([])
        groups[-1].append(partition)
        last = max(last, share.last)
    return groups


def ages(shares: Iterable[Share], before_us: int) -> Ages:
    """Return which copies of a log are older than a time, judged by whole shares."""
    older, young = 0, LSN_MAX
    for share in shares:
        if share.latest_us < before_us:
            older = max(older, share.last)
        else:
            young = min(young, share.first)
    return Ages(min(older, young - 1), young)


# ---- rows


class Head(NamedTuple):
    """A copy without its batch, and the size, checksum and place of the batch."""

    record: Record
    size: int
    crc: int
    offset: int = IN_A_ROW  # in the file of the log (batch_files.py)

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
    parts += (_LNG.pack(*epoch_lng) for epoch_lng in lngs)
    return b"".join(parts)


def unpack_standing(value: bytes) -> LogStanding:
    numbers = _unpack(_STANDING, value, "the standing of a log")
    try:
        lngs = tuple(EpochLng(*each) for each in _LNG.iter_unpack(value[_STANDING.size :]))
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
        VERSION,
        record.kind,
        record.count,
        record.timestamp_us,
        record.wave,
        record.lng,
        record.recovered,
        head.size,
        head.crc,
        head.offset,
    )
    return numbers + _pack_copyset(record.copyset)


# A log has few copysets, so their bytes are remembered.
@lru_cache(COPYSETS_REMEMBERED)
def _pack_copyset(copyset: tuple[ShardId, ...]) -> bytes:
    return b"".join(shard.to_bytes(_SHARD_BYTES, "big") for shard in copyset)


@lru_cache(COPYSETS_REMEMBERED)
def _unpack_copyset(value: bytes) -> tuple[ShardId, ...]:
    places = range(0, len(value), _SHARD_BYTES)
    return tuple(int.from_bytes(value[at : at + _SHARD_BYTES], "big") for at in places)


_KINDS: Final = {int(kind): kind for kind in Kind}


def unpack_head(first: Lsn, value: bytes) -> Head:
    numbers = _unpack(_HEAD, value, "the head of a record")
    number, count, timestamp_us, wave, lng, recovered, size, crc, offset = numbers
    kind = _KINDS.get(number)
    if kind is None:
        raise _corrupt(f"a record of unknown kind {number}", value)
    copyset = _unpack_copyset(value[_HEAD.size :])
    record = Record(first, count, kind, timestamp_us, copyset, wave, lng, recovered)
    return Head(record, size, crc, offset)


def is_batch_of(head: Head, batch: Buffer) -> bool:
    return len(batch) == head.size and crc32c(batch) == head.crc


def checked_batch(head: Head, batch: Buffer | None) -> Buffer:
    if batch is None or not is_batch_of(head, batch):
        raise Corrupt(f"the batch at {head.record.first} is not what was stored: check the disk")
    return batch


def _unpack(struct: Struct, value: bytes, what: str) -> tuple[int, ...]:
    """Unpack a row after checking its version."""
    if len(value) < struct.size:
        raise _corrupt(what, value)
    version = value[0]
    if version != VERSION:
        raise VersionMismatch(
            f"records of format version {version}, this software reads {VERSION}; upgrade it"
        )
    return struct.unpack_from(value)[1:]


def _corrupt(what: str, value: bytes) -> Corrupt:
    return Corrupt(f"{what} has {len(value)} bytes: restore the volume")


# ---- values that no honest peer sends, and that do not fit into rows


def nonsense(request: NodeRequest) -> str | None:
    """Return why the values of a changing request are invalid; None if they are valid."""
    if isinstance(request, _OF_RECORDS):
        record = request.record
        if not _is_record(record):
            return f"no record can be at {lsn_words(record.first)}, or none of this kind"
        if not isinstance(request, Restore):
            return None
    match request:
        case Seal(_, epoch, wave) if not (0 <= epoch <= EPOCH_MAX and 0 <= wave <= _NUMBER_MAX):
            return f"no attempt {wave} can seal epoch {epoch}"
        case Clean(_, _, end) | Purge(_, end) | Restore(_, _, end) if not _is_end(end):
            return f"epoch {end.epoch} cannot end like this"
        case Release(_, lsn) | Trim(_, lsn) if not 0 <= lsn <= LSN_MAX:
            return f"there is no LSN {lsn}"
    return None


_OF_RECORDS: Final = (Store, Amend, Restore, Reassign)


def _is_record(record: Record) -> bool:
    first, count, _, timestamp_us, copyset, wave, lng, recovered, batch = record
    last = first + count - 1
    return (
        0 < first <= last <= LSN_MAX
        and offset_of(first) > 0
        and epoch_of(last) == epoch_of(first)
        and abs(timestamp_us) <= _TIME_MAX_US
        and 0 <= wave <= _NUMBER_MAX
        and 0 <= lng <= OFFSET_MAX
        and 0 <= recovered <= EPOCH_MAX
        and (not copyset or 0 <= min(copyset) <= max(copyset) <= SHARD_MAX)
        and len(batch) <= BATCH_BYTES_MAX
    )


def _is_end(end: EpochEnd) -> bool:
    return (
        0 <= end.epoch <= EPOCH_MAX
        and 0 <= end.lng <= OFFSET_MAX
        and 0 <= end.last <= OFFSET_MAX
        and 0 <= end.seal <= EPOCH_MAX
        and 0 <= end.wave <= _NUMBER_MAX
        and all(0 <= first <= last <= OFFSET_MAX for first, last in end.found)
    )
