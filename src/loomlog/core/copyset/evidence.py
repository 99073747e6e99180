"""Decide whether a node that was absent from a recovery knows of a loss. Pure.

Disks are trusted: after a while, recovery believes nodes that crashed, without those that are
absent. It marks what it does not find. If the disks forgot records that were acknowledged, only an
absent node can know that: it has a later LNG (last known good offset) than what recovery found, and
all up to an LNG was acknowledged. Then disks have forgotten writes, so nobody can tell any more how
far the epoch was acknowledged.

Copies behind its LNG prove nothing: an append that was in flight is stored on some nodes only.

The writer of a record knows, too, whether it was acknowledged. If it is still there, it reports the
records in whose places recovery left marks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
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


class Loss(NamedTuple):
    """A loss that the epoch store knows of, from an offset on."""

    last: Offset
    exact: bool  # all of it was acknowledged


def loss_at(end: EpochEnd | None, offset: Offset) -> Loss | None:
    """Return the known loss at an offset. Nobody confirmed that there is nothing in the place of a
    mark which does not count: it may have been acknowledged, or not."""
    if end is None or not end.lost:
        return None
    if offset > end.last and not end.exact:
        return Loss(OFFSET_MAX, exact=False)
    last = next((last for first, last in end.lost if first <= offset <= last), None)
    if last is None:
        return None
    is_marked, through = marked_at(end, offset)
    return Loss(min(last, through), exact=is_marked is not False)


def with_loss(end: EpochEnd, lng: Offset) -> EpochEnd:
    """Return the end of an epoch that was recovered without nodes, given that all up to `lng` was
    acknowledged."""
    return _with_loss(end, lng) if end.absent else end


def with_forgotten(end: EpochEnd, ranges: Iterable[tuple[Offset, Offset]]) -> EpochEnd:
    """Return the end of an epoch, given which ranges were acknowledged, as their writer knows."""
    return _with_lost(end, _within(list(_marked(end, OFFSET_MAX)), ranges))


def revealing(
    end: EpochEnd, ranges: Iterable[tuple[Offset, Offset]]
) -> Iterator[tuple[Offset, Offset]]:
    """Yield the acknowledged ranges that change the end of an epoch (`with_forgotten`)."""
    marked = list(_marked(end, OFFSET_MAX))
    for first, last in ranges:
        parts = _within(marked, [(first, last)])
        if any(_within(end.lost, [part]) != [part] for part in parts):
            yield first, last


def recovered(end: EpochEnd, good: Offset, doubted: Sequence[tuple[Offset, Offset]]) -> EpochEnd:
    """Return the end of an epoch, given what earlier attempts to recover it presumed: all up to
    `good` was acknowledged, and what they marked in `doubted` nobody can confirm."""
    if doubted:
        some, rest = doubted[: UNMARKED_MAX - 1], doubted[UNMARKED_MAX - 1 :]
        some = [*some, (rest[0][0], rest[-1][1])] if rest else some
        end = replace(end, exact=False, lost=tuple(some))
    return _with_loss(end, good)


def finished(end: EpochEnd, last: Offset) -> EpochEnd:
    """Return the end of an epoch, given the last offset that its sequencer acknowledged. What is
    missing up to there is known to be lost, even if too few nodes were left to tell."""
    if not end.exact:
        end = replace(end, last=max(end.last, last), exact=True)
    if end.found and end.found[-1][0] <= last < end.found[-1][1] == OFFSET_MAX:
        known, rest = (end.found[-1][0], last), (last + 1, OFFSET_MAX)
        end = replace(end, found=(*end.found[:-1], known, rest))
    return end


def _with_loss(end: EpochEnd, lng: Offset) -> EpochEnd:
    return _with_lost(end, list(_marked(end, lng)))


def _with_lost(end: EpochEnd, marked: Sequence[tuple[Offset, Offset]]) -> EpochEnd:
    """Return the end with a loss of these ranges, in which there are only marks. If there are very
    many, all that recovery marked around one counts as lost with it."""
    lost = _union([*end.lost, *marked])
    if not marked or lost == end.lost:
        return end
    if len(lost) > UNMARKED_MAX:
        around = list(_marked(end, lost[-1][1]))
        lost = tuple(mark for mark in around if any(_overlap(mark, each) for each in lost))
    last = end.last
    for first, until in lost:  # behind the last record, as far as it is known
        last = until if first <= last + 1 and until > last and until < OFFSET_MAX else last
    return replace(end, last=last, exact=False, found=tuple(_found(end)), lost=lost)


def _union(ranges: Iterable[tuple[Offset, Offset]]) -> tuple[tuple[Offset, Offset], ...]:
    union: list[tuple[Offset, Offset]] = []
    for first, last in sorted(ranges):
        if union and first <= union[-1][1] + 1:
            union[-1] = union[-1][0], max(last, union[-1][1])
        else:
            union.append((first, last))
    return tuple(union)


def _within(
    marked: Sequence[tuple[Offset, Offset]], ranges: Iterable[tuple[Offset, Offset]]
) -> list[tuple[Offset, Offset]]:
    """Return the parts of ranges that are marked; the marks are in order."""
    parts = []
    for first, last in ranges:
        for index in range(bisect_left(marked, first, key=itemgetter(1)), len(marked)):
            begin, until = marked[index]
            if begin > last:
                break
            parts.append((max(first, begin), min(last, until)))
    return parts


def _overlap(one: tuple[Offset, Offset], other: tuple[Offset, Offset]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


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
