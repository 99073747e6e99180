"""How far a log reached at which time: its entries are as old as that, whatever their timestamps.
Pure.

Writers set timestamps by their clocks, which may be behind. So retention also looks at marks, each
a tail of the log and the time when it had that tail: what is above it arrived later. A mark may be
left out at any time, then entries only seem to have arrived later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from loomlog.types import Glsn

MARKS_MAX: Final = 256  # of a log; older ones are thinned out


class Mark(NamedTuple):
    """A log had this tail, or a higher one, at this time."""

    time_us: int
    tail: Glsn


Marks = tuple[Mark, ...]  # times and tails grow


def is_due(marks: Marks, mark: Mark, trimmed: Glsn, every_us: int) -> bool:
    """Return whether a mark tells enough that is new."""
    if mark.tail <= trimmed or (marks and mark.tail <= marks[-1].tail):
        return False
    passed_us = mark.time_us - marks[-1].time_us if marks else every_us
    return passed_us >= every_us or passed_us < 0  # a clock was ahead when the last one was made


def marked(marks: Marks, mark: Mark, trimmed: Glsn, oldest_kept_us: int) -> Marks:
    """Return the marks with another one, without those that tell nothing any more: of what is
    trimmed, of less at a later time, and of less that is too old, too."""
    earlier = [each for each in marks if each.tail > trimmed and each.time_us < mark.time_us]
    expired = [each for each in earlier if each.time_us <= oldest_kept_us]
    kept = [*expired[-1:], *earlier[len(expired) :], mark]
    if len(kept) > MARKS_MAX:
        del kept[_least_needed(kept)]
    return tuple(kept)


def _least_needed(marks: Sequence[Mark]) -> int:
    """Return the index of a mark whose neighbours are close to each other for its age."""

    def gap(index: int) -> float:
        age_us = marks[-1].time_us - marks[index].time_us
        return (marks[index + 1].time_us - marks[index - 1].time_us) / age_us

    return min(range(1, len(marks) - 1), key=gap)


def arrived_by(marks: Marks, time_us: int) -> Glsn:
    """Return a position up to which everything had arrived at a time; 0: that is not known."""
    return max((mark.tail for mark in marks if mark.time_us <= time_us), default=0)
