"""Find which positions chains have lost. Pure.

Blocks and tickets leave no position out. So what was acknowledged and is lost is where no block of
any chain is, below the start of the new epoch. What begins there on a chain that lost nothing is a
hole, except behind the trim: the block before may be lost and trimmed in part. A damaged replica
knows which blocks there were: then nothing else is lost. Junk of a replica that left does not
count: something that is lost may have been decided in its place.

A replica that was not heard when its chain continued may prove later which blocks are lost: those
that the replicas which were heard had, or that were acknowledged, as it was told. By then
readers may have filled their places: with junk that begins before them, perhaps on another chain.
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
    """Return the positions from this one on that no block covers; the last gap has no end. All
    heads are sealed."""
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
    """Return from where to where a replica has blocks, one behind the other, that are in places
    which nothing covers. It is sealed. What is before `first` is trimmed, perhaps in a block."""
    runs: list[range] = []
    position, more, goes_on = first, True, False
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
                begin = runs.pop().start if goes_on else extent.first
                runs.append(range(begin, extent.end))
            goes_on, position = is_free, extent.end
        more = answer.more
    return runs


def lost_by(chain: int, chains: int, gaps: list[range], start: Glsn) -> range:
    """Return the positions from the first to the last that a chain lost below the start of the
    epoch. What begins on another chain is a hole there."""
    lost = range(0)
    for gap in sorted(gaps, key=lambda gap: gap.start):
        first, end = gap.start + (chain - gap.start) % chains, min(gap.stop, start)
        if first < end:
            lost = range(lost.start or first, end)
    return lost


def overlaps(gaps: list[range], others: list[range]) -> list[range]:
    """Return what both have in common."""
    ranges = [each for each in (*gaps, *others) if each]
    edges = sorted([*((r.start, 1) for r in ranges), *((r.stop, -1) for r in ranges)])
    found, depth = [], 0
    for (edge, step), (after, _) in pairwise(edges):
        depth += step
        if depth > 1 and edge < after:
            found.append(range(edge, after))
    return found


def with_losses(projection: Projection, lost: Mapping[int, range], first: Glsn = 0) -> Projection:
    """Return the projection with what chains lost now, besides what they lost before. What is
    before `first` is trimmed."""
    if not any(lost.values()):
        return projection
    ranges = []
    for chain in range(len(projection.chains)):
        before = projection.lost_range(chain)
        if before.stop <= first:
            before = range(0)
        ranges.append(_around(before, lost.get(chain, range(0))))
    return projection._replace(
        lost=tuple(each.stop for each in ranges), lost_from=tuple(each.start for each in ranges)
    )


def _around(one: range, other: range) -> range:
    """Return the positions from the first to the last of both."""
    both = [each for each in (one, other) if each]
    first = min((each.start for each in both), default=0)
    return range(first, max((each.stop for each in both), default=0))


def find_missing(epoch: int, source: Replica, other: Replica) -> Steps[list[range] | Stop]:
    """Return the blocks that one replica has, or had, and the other lacks. Both are sealed."""
    return (yield from _compare(Side(source, epoch), Side(other, epoch)))


class Side(NamedTuple):
    """A replica, and the epoch that it serves."""

    replica: Replica
    epoch: int


def find_forgotten(witness: Side, head: Side, decided: Glsn) -> Steps[list[range] | Stop]:
    """Return the blocks other than junk that a replica has, the head in force lacks, and all had:
    those below `decided`, and those that one of them knows to have been acknowledged: the head may
    have been told since. Nothing is added to them: the replica left, and all its blocks are below
    the start of the epoch."""
    known = _Acknowledged()
    missing = yield from _compare(witness, head, known)
    if not isinstance(missing, list):
        return missing
    return [block for block in missing if block.stop <= decided or block.start in known.found]


class _Acknowledged:
    """The missing blocks that replicas know to have been acknowledged, perhaps from a block before
    these or behind."""

    def __init__(self) -> None:
        self.found: set[Glsn] = set()
        self._missing: set[Glsn] = set()
        self._told: set[Glsn] = set()  # of blocks that are not compared yet

    def note(self, missing: Iterable[Extent], told: Iterable[Glsn], until: Glsn) -> None:
        """Called with what is missing below `until`, and with what was told there."""
        self._missing.update(extent.first for extent in missing)
        self._told.update(told)
        self.found |= self._told & self._missing
        self._told = {address for address in self._told if address >= until}


def _compare(
    source: Side, other: Side, known: _Acknowledged | None = None
) -> Steps[list[range] | Stop]:
    """Return the blocks that one replica has and the other lacks; without junk, if it is to be
    `known` which of them were acknowledged."""
    found: list[range] = []
    position, more, with_known = 0, True, known is not None
    while more:
        first = max(position, 1)
        had, has = yield [
            Ask(side.replica, List(side.epoch, first, LIST_MAX, None, with_known, with_known))
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
        found += (range(extent.first, extent.end) for extent in sorted(missing))
        if known is not None:
            known.note(missing, [*had.acknowledged, *has.acknowledged], until)
        position = until
    return found


def find_places(
    epoch: int, heads: list[Replica], blocks: Iterable[range], within: range
) -> Steps[dict[int, range] | Stop]:
    """Return for each chain the positions from the first to the last where junk stands for one of
    these blocks, or will. A place is filled, or it is empty: then it will be filled from where it
    begins. In a place that is too long to be filled at once, a fill may begin on any chain. All
    heads are sealed."""
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
        inside = lost[_index_behind(lost, place.start) : bisect_left(lost, place.stop, key=_start)]
        if inside:
            found = range(place.start, min(place.stop, inside[-1].stop))
            is_long = len(found) > REFERENCE_RECORDS_MAX
            chains = range(len(heads)) if is_long else [place.start % len(heads)]
            places |= {chain: _around(places.get(chain, range(0)), found) for chain in chains}
    return places


def _start(each: range) -> Glsn:
    return each.start


def _index_behind(ranges: list[range], position: Glsn) -> int:
    """Return the index of the first that ends behind a position."""
    return bisect_right(ranges, position, key=lambda each: each.stop)


def _merged(blocks: Iterable[range], within: range) -> list[range]:
    """Return the blocks in order, as far as they are within a range."""
    clipped = (range(max(b.start, within.start), min(b.stop, within.stop)) for b in blocks)
    merged: list[range] = []
    for block in sorted(filter(None, clipped), key=_start):
        if merged and block.start <= merged[-1].stop:
            block = _around(merged.pop(), block)
        merged.append(block)
    return merged


def _places(extents: list[Extent], sound: set[Extent], within: range) -> Iterable[range]:
    """Yield the blocks of junk, and what no block covers."""
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
    """Return the end of the last block that ends at or before a position, or `first`; the position
    if a block covers it."""
    answers = yield [Ask(head, Before(epoch, position)) for head in heads]
    if (stop := first_stop(answers, Found, Missing, TrimmedTo)) is not None:
        return stop
    ends = [answer.block.end for answer in answers if isinstance(answer, Found)]
    return min(position, max([first, *ends]))


def _list_blocks(
    epoch: int, heads: list[Replica], within: range, *, without_junk: bool = False
) -> Steps[list[Extent] | Stop]:
    """Return all blocks of these heads that overlap a range, in order."""
    found: list[Extent] = []
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
            found += (extent for extent in answer.extents if extent.first < within.stop)
            position = answer.extents[-1].end if answer.extents else within.stop
            more = answer.more and position < within.stop
    return sorted(found)
