"""Find the positions that chains have lost. Pure.

Tickets are contiguous. So acknowledged blocks that are lost can only be where no block of any chain
is, below the start of the new epoch. An uncovered range that begins on a chain which lost nothing
is a hole; except directly above the trim, where a lost block may have been trimmed in part. A
damaged replica still knows which blocks there were: then only those can be lost. Junk of a replica
that left does not count as a block, because a block may have been decided in its place and lost.

An unheard replica may prove later which blocks are lost: those that all the replicas that answered
must have had, or that their writers reported as acknowledged. By then readers may have filled their
places with junk, which may begin before them, perhaps on another chain.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from loomlog.core.chained.chain import Extent, Projection, Replica
from loomlog.core.chained.messages import (
    LIST_MAX,
    Before,
    Found,
    Interrupted,
    List,
    Listed,
    Missing,
    Steps,
    Stop,
    TrimmedTo,
    first_stop,
    stopped,
)
from loomlog.core.requests import Ask
from loomlog.limits import POSITION_MAX, REFERENCE_RECORDS_MAX
from loomlog.types import Glsn


def find_gaps(
    epoch: int, heads: list[Replica], position: Glsn, *, without_junk: bool = False
) -> Steps[list[range] | Stop]:
    """Return the ranges from a position on that no block covers. The last one is open-ended. All
    heads must be sealed."""
    gaps: list[range] = []
    more = True
    while more:
        request = List(epoch, position, LIST_MAX, without_junk=without_junk)
        answers = yield [Ask(head, request) for head in heads]
        if trimmed := [answer.position for answer in answers if isinstance(answer, TrimmedTo)]:
            position = max(trimmed) + 1
            continue
        listed = [answer for answer in answers if isinstance(answer, Listed)]
        if len(listed) < len(answers):
            return first_stop(answers, Listed) or Interrupted("no answer")
        until = min((each.extents[-1].end for each in listed if each.more), default=POSITION_MAX)
        more = until < POSITION_MAX
        for extent in sorted(e for each in listed for e in each.extents if e.first < until):
            if extent.first > position:
                gaps.append(range(position, extent.first))
            position = max(position, extent.end)
    return [*gaps, range(position, POSITION_MAX)]


def find_additions(
    epoch: int, source: Replica, gaps: list[range], first: Glsn
) -> Steps[list[range] | Stop]:
    """Return ranges in which all blocks of a sealed replica lie within gaps, each as long as
    possible. Positions below `first` are trimmed; a block may begin there."""
    runs: list[range] = []
    position, more, in_run = first, True, False
    while more:
        [answer] = yield [Ask(source, List(epoch, position, LIST_MAX))]
        if isinstance(answer, TrimmedTo):
            position = answer.position + 1
            continue
        if not isinstance(answer, Listed):
            return stopped(answer)
        for extent in answer.extents:
            index = bisect_right(gaps, max(extent.first, first), key=_start) - 1
            is_free = index >= 0 and extent.end <= gaps[index].stop
            if is_free:
                begin = runs.pop().start if in_run else extent.first
                runs.append(range(begin, extent.end))
            in_run, position = is_free, extent.end
        more = answer.more
    return runs


def lost_by(chain: int, chains: int, gaps: list[range], start: Glsn) -> range:
    """Return the range from the first to the last position that a chain lost below the epoch's
    start. The part of a gap before the chain's first address is a hole of other chains."""
    lost = range(0)
    for gap in sorted(gaps, key=lambda gap: gap.start):
        first, end = gap.start + (chain - gap.start) % chains, min(gap.stop, start)
        if first < end:
            lost = range(lost.start or first, end)
    return lost


def overlaps(gaps: list[range], others: list[range]) -> list[range]:
    """Return the intersection of two lists of ranges."""
    ranges = [each for each in (*gaps, *others) if each]
    edges = sorted([*((r.start, 1) for r in ranges), *((r.stop, -1) for r in ranges)])
    common, depth = [], 0
    for (edge, step), (after, _) in pairwise(edges):
        depth += step
        if depth > 1 and edge < after:
            common.append(range(edge, after))
    return common


def with_losses(projection: Projection, lost: Mapping[int, range], first: Glsn = 0) -> Projection:
    """Return the projection with new losses added to the recorded ones. Losses below `first` are
    trimmed."""
    if not any(lost.values()):
        return projection
    ranges = []
    for chain in range(len(projection.chains)):
        before = projection.lost_range(chain)
        if before.stop <= first:
            before = range(0)
        ranges.append(_hull(before, lost.get(chain, range(0))))
    return projection._replace(
        lost=tuple(each.stop for each in ranges), lost_from=tuple(each.start for each in ranges)
    )


def _hull(one: range, other: range) -> range:
    """Return the smallest range that contains both."""
    both = [each for each in (one, other) if each]
    first = min((each.start for each in both), default=0)
    return range(first, max((each.stop for each in both), default=0))


def find_missing(epoch: int, source: Replica, other: Replica) -> Steps[list[range] | Stop]:
    """Return the blocks that `source` has, or had if it is damaged, and `other` lacks. Both must be
    sealed."""
    return (yield from _compare(Side(source, epoch), Side(other, epoch)))


class Side(NamedTuple):
    """A replica, and the epoch that it serves."""

    replica: Replica
    epoch: int


def find_forgotten(witness: Side, head: Side, decided: Glsn) -> Steps[list[range] | Stop]:
    """Return the blocks, without junk, that the witness has, the head in force lacks, and that all
    replicas once had.

    Those are the blocks below `decided`, and those that either of the two knows to have been
    acknowledged: the head may have got such a report later. No blocks are added meanwhile, because
    the witness left, and all its blocks are below the start of the epoch."""
    acknowledged = _Acknowledged()
    missing = yield from _compare(witness, head, acknowledged)
    if not isinstance(missing, list):
        return missing
    return [b for b in missing if b.stop <= decided or b.start in acknowledged.missing]


class _Acknowledged:
    """Collects the missing blocks that were acknowledged, according to reports stored with any
    block of the compared replicas."""

    def __init__(self) -> None:
        self.missing: set[Glsn] = set()  # and acknowledged
        self._all_missing: set[Glsn] = set()
        self._reported: set[Glsn] = set()  # at positions that are not compared yet

    def note(self, missing: Iterable[Extent], reported: Iterable[Glsn], until: Glsn) -> None:
        """Called with the missing blocks below `until`, and the addresses reported by blocks
        there."""
        self._all_missing.update(extent.first for extent in missing)
        self._reported.update(reported)
        self.missing |= self._reported & self._all_missing
        self._reported = {address for address in self._reported if address >= until}


def _compare(
    source: Side, other: Side, acknowledged: _Acknowledged | None = None
) -> Steps[list[range] | Stop]:
    """Return the blocks that `source` has and `other` lacks. With `acknowledged`, junk is left out,
    and reports of acknowledged blocks are collected."""
    lacking: list[range] = []
    position, more, with_reports = 0, True, acknowledged is not None
    while more:
        first = max(position, 1)
        had, has = yield [
            Ask(side.replica, List(side.epoch, first, LIST_MAX, None, with_reports, with_reports))
            for side in (source, other)
        ]
        if trimmed := [each.position for each in (had, has) if isinstance(each, TrimmedTo)]:
            position = max(trimmed) + 1
            continue
        if not isinstance(had, Listed) or not isinstance(has, Listed):
            return first_stop([had, has], Listed) or Interrupted("no answer")
        more = had.more
        until = had.extents[-1].end if more else POSITION_MAX
        if has.more and has.extents[-1].end < until:
            until, more = has.extents[-1].end, True
        missing = {e for e in had.extents if e.end <= until}.difference(has.extents)
        lacking += (range(extent.first, extent.end) for extent in sorted(missing))
        if acknowledged is not None:
            acknowledged.note(missing, [*had.acknowledged, *has.acknowledged], until)
        position = until
    return lacking


def find_places(
    epoch: int, heads: list[Replica], blocks: Iterable[range], within: range
) -> Steps[dict[int, range] | Stop]:
    """Return, for each chain, the range from the first to the last position where junk stands for
    one of the lost `blocks`, or will stand.

    A place of such blocks is either filled, or it will be, beginning at its first position. If it
    is too long for one fill, further fills may begin on any chain. All heads must be sealed."""
    lost = _merged(blocks, within)
    if not lost:
        return {}
    first = yield from _end_before(epoch, heads, lost[0].start, within.start)
    if not isinstance(first, int):
        return first
    around = range(first, lost[-1].stop)
    extents = yield from _list_blocks(epoch, heads, around)
    if not isinstance(extents, list):
        return extents
    sound = yield from _list_blocks(epoch, heads, around, without_junk=True)
    if not isinstance(sound, list):
        return sound
    places: dict[int, range] = {}
    for place in _places(extents, set(sound), range(first, within.stop)):
        inside = lost[_index_above(lost, place.start) : bisect_left(lost, place.stop, key=_start)]
        if inside:
            junk = range(place.start, min(place.stop, inside[-1].stop))
            is_long = len(junk) > REFERENCE_RECORDS_MAX
            chains = range(len(heads)) if is_long else [place.start % len(heads)]
            places |= {chain: _hull(places.get(chain, range(0)), junk) for chain in chains}
    return places


def _start(each: range) -> Glsn:
    return each.start


def _index_above(ranges: list[range], position: Glsn) -> int:
    """Return the index of the first range that ends above a position."""
    return bisect_right(ranges, position, key=lambda each: each.stop)


def _merged(blocks: Iterable[range], within: range) -> list[range]:
    """Return the blocks in order, clipped to a range, and merged where they touch."""
    clipped = (range(max(b.start, within.start), min(b.stop, within.stop)) for b in blocks)
    merged: list[range] = []
    for block in sorted(filter(None, clipped), key=_start):
        if merged and block.start <= merged[-1].stop:
            block = _hull(merged.pop(), block)
        merged.append(block)
    return merged


def _places(extents: list[Extent], sound: set[Extent], within: range) -> Iterable[range]:
    """Yield the ranges of junk, and those that no block covers."""
    position = within.start
    for extent in extents:
        if extent.first > position:
            yield range(position, extent.first)
        if extent not in sound:
            yield range(extent.first, extent.end)
        position = max(position, extent.end)
    if position < within.stop:
        yield range(position, within.stop)


def _end_before(
    epoch: int, heads: list[Replica], position: Glsn, first: Glsn
) -> Steps[Glsn | Stop]:
    """Return the end of the last block that ends at or before a position, or `first` if there is
    none; the position itself if a block covers it."""
    answers = yield [Ask(head, Before(epoch, position)) for head in heads]
    if (stop := first_stop(answers, Found, Missing, TrimmedTo)) is not None:
        return stop
    ends = [answer.block.end for answer in answers if isinstance(answer, Found)]
    return min(position, max([first, *ends]))


def _list_blocks(
    epoch: int, heads: list[Replica], within: range, *, without_junk: bool = False
) -> Steps[list[Extent] | Stop]:
    """Return the blocks of these heads that overlap a range, in order."""
    extents: list[Extent] = []
    for head in heads:
        position, more = within.start, True
        while more:
            [answer] = yield [Ask(head, List(epoch, position, LIST_MAX, None, without_junk))]
            if isinstance(answer, TrimmedTo):
                position = answer.position + 1
                more = position < within.stop
                continue
            if not isinstance(answer, Listed):
                return stopped(answer)
            extents += (extent for extent in answer.extents if extent.first < within.stop)
            position = answer.extents[-1].end if answer.extents else within.stop
            more = answer.more and position < within.stop
    return sorted(extents)
