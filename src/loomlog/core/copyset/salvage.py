"""Decide what to believe of a log whose copies were salvaged from a damaged store. Pure.

Any of its changes may be missing, also one that others depend on: a copy that recovery replaced by
a hole may be back while the end of its epoch is known. So what is left is no older state of the
log, and only this is believed:

    a copy at or below the LNG of its epoch      no recovery replaces it
    a copy above it, if the end is known here    recovery wrote it: it has the precedence of the end
    that an epoch is clean                       if its end is here, or no copy of it

Of copies that overlap, the one with the highest precedence stays, as in any store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from loomlog.core.copyset.messages import EpochEnd
from loomlog.core.copyset.record import Epoch, Record, make
from loomlog.core.copyset.storage import LogStanding

Place = TypeVar("Place")  # of a copy in the store


class Sifted(NamedTuple, Generic[Place]):
    """The state of a salvaged log, and the copies that must go before it is used."""

    standing: LogStanding
    dropped: list[tuple[Record, Place]]


def sift(
    standing: LogStanding,
    copies: Iterable[tuple[Record, Place]],
    ends: Mapping[Epoch, EpochEnd],
) -> Sifted[Place]:
    """Return what to believe, given the heads that are left, in order, and the ends."""
    dropped: list[tuple[Record, Place]] = []
    clean = standing.last_clean
    before: tuple[Record, Place] | None = None
    for copy in copies:
        head, end = copy[0], ends.get(copy[0].epoch)
        if end is None:
            clean = min(clean, head.epoch - 1)
        elif _is_left_over(head, end):
            dropped.append(copy)
            continue
        if before is not None and head.first <= before[0].last:
            worse, before = sorted((before, copy), key=lambda copy: copy[0].precedence)
            dropped.append(worse)
        else:
            before = copy
    if clean < standing.last_clean:
        released = min(standing.released, make(clean + 1, 0))
        standing = standing._replace(last_clean=clean, released=released)
    return Sifted(standing, dropped)


def _is_left_over(head: Record, end: EpochEnd) -> bool:
    """Return whether a recovery replaced a copy. One that was not sure of the end replaces none."""
    is_sure = end.exact and end.last > 0
    return is_sure and head.offset > end.lng and head.precedence < end.precedence
