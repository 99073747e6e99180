"""Records: the content of an LSN, a batch or a mark that recovery put in its place. Pure.

A record occupies the LSNs [first, last] of one epoch, one for each entry of its batch. Copies of it
lie on the nodes of its copyset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple

from loomlog.core.copyset.lsn import Lsn, Offset, epoch_of, offset_of
from loomlog.errors import Corrupt
from loomlog.types import Buffer, NodeId


class Kind(IntEnum):
    DATA = 0
    HOLE = 1  # nothing was acknowledged here, and nothing ever will be
    BRIDGE = 2  # the epoch ends before it; the next record is in a later epoch


class Record(NamedTuple):
    first: Lsn
    count: int  # type: ignore[assignment]  # nobody misses tuple.count
    kind: Kind
    timestamp_us: int
    copyset: tuple[NodeId, ...]
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
