"""Decide whether a node that was absent from a recovery knows of a loss. Pure.

Disks are trusted: after a while, recovery believes nodes that crashed, without those that are
absent. It marks what it does not find. If the disks forgot records that were acknowledged, only an
absent node can know that: it has a later LNG (last known good offset) than what recovery found, and
all up to an LNG was acknowledged. Then disks have forgotten writes, so nobody can tell any more how
far the epoch was acknowledged.

Copies behind its LNG prove nothing: an append that was in flight is stored on some nodes only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from loomlog.core.copyset.messages import EpochEnd
from loomlog.core.copyset.record import OFFSET_MAX, Offset
from loomlog.core.copyset.settlement import UNMARKED_MAX
from loomlog.types import ShardId


def knows_of_loss(end: EpochEnd, me: ShardId, lng: Offset) -> bool:
    """Return whether a node with this LNG of an epoch has to report a loss, before it deletes what
    the recovery without it made void."""
    return me in end.absent and with_loss(end, lng) != end


def is_lost(end: EpochEnd, offset: Offset) -> bool:
    """Return whether an offset counts as lost, whatever nodes have there."""
    return any(first <= offset <= last for first, last in end.lost)


class Marked(NamedTuple):
    """The result of recovery at an offset, according to the end of the epoch."""

    is_marked: bool | None  # whether there is no record; None: not known
    last: Offset  # the same holds up to here


def marked_at(end: EpochEnd | None, offset: Offset) -> Marked:
    """Return whether recovery left a mark at an offset, if it has ended. The epoch store knows,
    whatever nodes have: their marks may be forgotten, or of a recovery that was not the last."""
    if end is None:
        return Marked(None, OFFSET_MAX)
    if offset <= end.lng:
        return Marked(False, end.lng)
    for first, last in end.found:
        if offset < first:
            return Marked(True, first - 1)
        if offset <= last:
            return Marked(False, last)
    return Marked(None, OFFSET_MAX)


def with_loss(end: EpochEnd, lng: Offset) -> EpochEnd:
    """Return the end of an epoch that was recovered without nodes, given that all up to `lng` was
    acknowledged."""
    return _with_loss(end, lng) if end.absent else end


def recovered(end: EpochEnd, good: Offset, doubted: Sequence[tuple[Offset, Offset]]) -> EpochEnd:
    """Return the end of an epoch, given what earlier attempts to recover it presumed: all up to
    `good` was acknowledged, and what they marked in `doubted` nobody can confirm."""
    if doubted:
        some, rest = doubted[: UNMARKED_MAX - 1], doubted[UNMARKED_MAX - 1 :]
        some = [*some, (rest[0][0], rest[-1][1])] if rest else some
        end = replace(end, exact=False, lost=tuple(some))
    return _with_loss(end, good)


def _with_loss(end: EpochEnd, lng: Offset) -> EpochEnd:
    through = max([lng, *(last for _, last in end.lost)])
    marked = list(_marked(end, through))
    if not marked:
        return end
    known = [old for old in end.lost if not any(_covers(new, old) for new in marked)]
    lost = tuple(sorted([*known, *marked]))
    return replace(end, last=max(end.last, lng), exact=False, found=tuple(_found(end)), lost=lost)


def _covers(one: tuple[Offset, Offset], other: tuple[Offset, Offset]) -> bool:
    return one[0] <= other[0] and other[1] <= one[1]


def _marked(end: EpochEnd, through: Offset) -> Iterator[tuple[Offset, Offset]]:
    """Yield the ranges up to an offset that recovery marked."""
    first = end.lng + 1
    for begin, until in _found(end):
        if first < begin and first <= through:
            yield first, min(begin - 1, through)
        first = until + 1
    if first <= through:
        yield first, through


def _found(end: EpochEnd) -> Iterator[tuple[Offset, Offset]]:
    """Yield the ranges without marks; nothing is behind an exact end, also if there is no mark."""
    through = end.last if end.exact else OFFSET_MAX
    for first, last in end.found:
        if first <= through:
            yield first, min(last, through)
