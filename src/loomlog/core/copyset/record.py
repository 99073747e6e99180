"""What is stored at an LSN: a batch, or a mark that recovery put in the place of one. Pure.

A record occupies the LSNs [first, last] of one epoch, one for each entry of its batch. Copies of it
lie on the nodes of its copyset.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from loomlog.core.copyset.lsn import Lsn, Offset, epoch_of, offset_of
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
        """Of two copies that differ, the higher one counts."""
        return self.recovered, self.wave
