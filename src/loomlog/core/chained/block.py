"""Blocks: the content of an address, a batch of `count` records or junk in its place. Pure.

A block occupies the positions [first, first + count). Its first position is its address. It is
written once: a second writer finds it, and two blocks never share a position.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from loomlog.batch import assign_place, read_header
from loomlog.errors import Corrupt
from loomlog.limits import REFERENCE_RECORDS_MAX
from loomlog.types import Buffer, Glsn, StreamId

POSITION_MAX: Final = (1 << 63) - 1
NEVER_US: Final = -(1 << 63)
FOREVER_US: Final = (1 << 63) - 1


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
    """A batch and its producer; junk has neither."""

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
        """Return whether it can be stored at all."""
        first, count = self.first, self.count
        fits = first > 0 and first + count - 1 <= POSITION_MAX
        return fits and 0 < count <= REFERENCE_RECORDS_MAX

    @property
    def is_junk(self) -> bool:
        return not self.batch

    @property
    def latest_us(self) -> int:
        """The timestamp of its youngest entry. Junk counts as older than anything, and an
        unreadable batch as younger, so that it is kept."""
        if self.is_junk:
            return NEVER_US
        try:
            return read_header(self.batch).max_timestamp_us
        except Corrupt:
            return FOREVER_US

    @property
    def extent(self) -> Extent:
        return Extent(self.first, self.count)

    def is_same(self, other: Block) -> bool:
        """Return whether it is the same append, by the producer's number of the batch."""
        return self[:4] == other[:4] and self.is_junk == other.is_junk


def block_of(batch: Buffer) -> Block:
    """Return the block of a batch that has its positions."""
    header = read_header(batch)
    return Block(header.first_position, header.count, header.producer_id, header.sequence, batch)


def placed(unplaced: Block, stream: StreamId, epoch: int, first: Glsn) -> Block:
    """Return the block at an address; the header of its batch, a bytearray, is given positions."""
    batch = unplaced.batch
    assert isinstance(batch, bytearray)
    assign_place(batch, stream, epoch, first)
    return Block(first, *unplaced[1:])


def junk(first: Glsn, count: int) -> Block:
    """Return a block that takes the place of one that was never written."""
    return Block(first, count)
