"""Splits ranges of positions for several readers. If positions consist of epoch and offset, the
gaps between epochs are far wider than the ranges written."""

from __future__ import annotations

from loomlog.core.copyset.record import epoch_of, make
from loomlog.types import Glsn


def cut(first: Glsn, last: Glsn, cuts_max: int) -> list[tuple[Glsn, Glsn]]:
    """Split a range at the beginnings of epochs, in at most `cuts_max` places."""
    begins = range(epoch_of(first) + 1, epoch_of(last) + 1)
    step = -(-len(begins) // cuts_max) or 1
    firsts = [first, *(make(epoch, 0) for epoch in reversed(begins[::-step]))]
    lasts = [*(begin - 1 for begin in firsts[1:]), last]
    return list(zip(firsts, lasts, strict=True))


def is_dense(first: Glsn, last: Glsn) -> bool:
    """Return whether the range lies in one epoch and so has no wide gaps."""
    return epoch_of(first) == epoch_of(last)
