"""LSNs, and the records at them: batches, or marks that recovery put in their place. Pure.

An LSN is a position of a `copyset` log: epoch << 32 | offset. LSNs only ever grow: within an epoch
by offset, and every sequencer takes a higher epoch.

A record occupies the LSNs [first, last] of one epoch, one for each entry of its batch. Copies of it
lie on the shards of its copyset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from loomlog.errors import Corrupt
from loomlog.types import Buffer, Glsn, ShardId

Lsn: TypeAlias = Glsn
Epoch: TypeAlias = int
Offset: TypeAlias = int  # within an epoch; the first is 1

OFFSET_BITS: Final = 32
OFFSET_MAX: Final = (1 << OFFSET_BITS) - 1
EPOCH_MAX: Final = (1 << 31) - 1  # positions are signed elsewhere
HEAD_BYTES: Final = 64  # of a record besides its batch, about
LSN_MAX: Final = EPOCH_MAX << OFFSET_BITS | OFFSET_MAX


def make(epoch: Epoch, offset: Offset) -> Lsn:
    return epoch << OFFSET_BITS | offset


def epoch_of(lsn: Lsn) -> Epoch:
    return lsn >> OFFSET_BITS


def offset_of(lsn: Lsn) -> Offset:
    return lsn & OFFSET_MAX


def offset_within(epoch: Epoch, lsn: Lsn) -> Offset:
    """Return the offset of an epoch up to which `lsn` reaches."""
    if epoch_of(lsn) == epoch:
        return offset_of(lsn)
    return OFFSET_MAX if epoch_of(lsn) > epoch else 0


def first_epoch_above(position: Glsn) -> Epoch:
    """Return the first epoch whose positions are all above `position`."""
    return epoch_of(position) + 1


def last_of(epoch: Epoch) -> Lsn:
    """Return the last LSN of an epoch. What comes next is the first offset of the next epoch."""
    return make(epoch + 1, 0)


def skip_zero(lsn: Lsn) -> Lsn:
    """Return the next LSN that can exist: no epoch has anything at offset 0."""
    return lsn if offset_of(lsn) else lsn + 1


def lsn_words(lsn: Lsn) -> str:
    """Return the LSN in a form for people."""
    return f"e{epoch_of(lsn)}n{offset_of(lsn)}"


class Kind(IntEnum):
    """The kinds of records: batches, and the marks of recovery."""

    DATA = 0
    HOLE = 1  # nothing was acknowledged here, and nothing ever will be
    BRIDGE = 2  # the epoch ends before it; the next record is in a later epoch


class Record(NamedTuple):
    """A copy of a record, or only its head: then it comes without its batch."""

    first: Lsn
    count: int  # type: ignore[assignment]  # nobody misses tuple.count
    kind: Kind
    timestamp_us: int
    copyset: tuple[ShardId, ...]
    wave: int  # grows with every attempt to store it
    lng: Offset  # last known good: all up to it was stored on R nodes when this was sent
    recovered: int = 0  # the epoch of the sequencer that recovered it; 0: not written by recovery
    batch: Buffer = b""

    @property
    def last(self) -> Lsn:
        return self.first + self.count - 1

    @property
    def epoch(self) -> int:
        return epoch_of(self.first)

    @property
    def offset(self) -> Offset:
        return offset_of(self.first)

    @property
    def precedence(self) -> tuple[int, int]:
        """The rank of a copy: of two copies that differ, the higher one counts."""
        return self.recovered, self.wave

    def is_copy_of(self, other: Record) -> bool:
        """Return whether both have the same place and kind; their waves may differ."""
        return (self.first, self.count, self.kind) == (other.first, other.count, other.kind)


def is_occupied(record: Record, copies: Iterable[Record], load: Callable[[Record], Record]) -> bool:
    """Return whether one of the copies, which overlap the record, is of another record of its
    sequencer.

    A sequencer gives every LSN of its epoch once, so copies at one LSN that no recovery wrote are
    of one record. If they differ, the epoch was taken twice because the epoch store went back in
    time. Then neither record may count for the other, or replace it."""
    if record.recovered:
        return False  # recovery puts marks in the place of records; precedence decides
    return any(not copy.recovered and not _is_of(record, copy, load) for copy in copies)


def _is_of(record: Record, copy: Record, load: Callable[[Record], Record]) -> bool:
    if (copy.first, copy.count, copy.kind) != (record.first, record.count, record.kind):
        return False
    try:
        return memoryview(load(copy).batch) == memoryview(record.batch)
    except Corrupt:
        return True  # the old copy is unreadable, and the new one is whole
