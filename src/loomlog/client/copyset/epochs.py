"""Where ranges of positions can be cut for several readers, if they are (partly) of protocol
`copyset`: between its epochs are gaps that are far wider than what was written."""

from __future__ import annotations

from loomlog.core.copyset.lsn import epoch_of, make
from loomlog.types import Glsn


def cut(first: Glsn, last: Glsn, cuts_max: int) -> list[tuple[Glsn, Glsn]]:
    """The range in parts, which begin where epochs do; there may be more epochs than cuts."""
    begins = range(epoch_of(first) + 1, epoch_of(last) + 1)
    step = -(-len(begins) // cuts_max) or 1
    firsts = [first, *(make(epoch, 0) for epoch in reversed(begins[::-step]))]
    lasts = [*(begin - 1 for begin in firsts[1:]), last]
    return list(zip(firsts, lasts, strict=True))


def is_dense(first: Glsn, last: Glsn) -> bool:
    """Within an epoch there are no wide gaps below its last entry."""
    return epoch_of(first) == epoch_of(last)
