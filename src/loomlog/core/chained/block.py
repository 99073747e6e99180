"""What stands at an address: a batch of `count` records, or junk in its place. Pure.

A block occupies the positions [first, first + count) and is known by its first one, its address.
It is written once: whoever comes second finds it, and two blocks never share a position.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from loomlog.batch import read_header
from loomlog.limits import REFERENCE_RECORDS_MAX
from loomlog.types import Buffer, Glsn

POSITION_MAX: Final = (1 << 63) - 1


class Extent(NamedTuple):
    """The positions of a block."""

    first: Glsn
    count: int  # type: ignore[assignment]  # nobody misses tuple.count

    @property
    def end(self) -> Glsn:
        """The first position behind it."""
        return self.first + self.count

    @property
    def last(self) -> Glsn:
        return self.first + self.count - 1


class Block(NamedTuple):
    """A batch and who wrote it; junk has neither."""

    first: Glsn
    count: int  # type: ignore[assignment]  # nobody misses tuple.count
    producer_id: int = 0
    sequence: int = 0
    batch: Buffer = b""

    @property
    def end(self) -> Glsn:
        """The first position behind it."""
        return self.first + self.count

    @property
    def last(self) -> Glsn:
        return self.first + self.count - 1

    @property
    def is_sane(self) -> bool:
        """Whether it can be kept at all."""
        first, count = self.first, self.count
        fits = first > 0 and first + count - 1 <= POSITION_MAX
        return fits and 0 < count <= REFERENCE_RECORDS_MAX

    @property
    def is_junk(self) -> bool:
        return not self.batch

    @property
    def extent(self) -> Extent:
        return Extent(self.first, self.count)

    def is_same(self, other: Block) -> bool:
        """A producer numbers its batches, so there is no need to compare their bytes."""
        return self[:4] == other[:4] and self.is_junk == other.is_junk


def block_of(batch: Buffer) -> Block:
    """The block of a batch that has its positions."""
    header = read_header(batch)
    return Block(header.first_position, header.count, header.producer_id, header.sequence, batch)


def junk(first: Glsn, count: int) -> Block:
    """In place of what should have been written there."""
    return Block(first, count)
