"""Positions of a `copyset` log: epoch << 32 | offset. Pure.

Numbers only ever grow: within an epoch by offset, and every sequencer takes a higher epoch.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from loomlog.types import Glsn

Lsn: TypeAlias = Glsn
Epoch: TypeAlias = int
Offset: TypeAlias = int  # within an epoch; the first is 1

OFFSET_BITS: Final = 32
OFFSET_MAX: Final = (1 << OFFSET_BITS) - 1
EPOCH_MAX: Final = (1 << 31) - 1  # positions are signed elsewhere
LSN_MAX: Final = EPOCH_MAX << OFFSET_BITS | OFFSET_MAX


def make(epoch: Epoch, offset: Offset) -> Lsn:
    return epoch << OFFSET_BITS | offset


def epoch_of(lsn: Lsn) -> Epoch:
    return lsn >> OFFSET_BITS


def offset_of(lsn: Lsn) -> Offset:
    return lsn & OFFSET_MAX


def first_epoch_above(position: Glsn) -> Epoch:
    """Return the first epoch of which all positions lie above `position`."""
    return epoch_of(position) + 1


def last_of(epoch: Epoch) -> Lsn:
    """Return the last LSN of an epoch. What comes next is the first offset of the next epoch."""
    return make(epoch + 1, 0)


def skip_zero(lsn: Lsn) -> Lsn:
    """Return the next LSN that can exist: no epoch has anything at offset 0."""
    return lsn if offset_of(lsn) else lsn + 1


def words(lsn: Lsn) -> str:
    """Return the LSN in a form for people."""
    return f"e{epoch_of(lsn)}n{offset_of(lsn)}"
