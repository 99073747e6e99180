"""Marks of how far a log reached at which time: they tell the age of entries without their
timestamps. Pure.

Writers set timestamps by their own clocks, which may be slow. Retention therefore also uses marks:
a tail of the log, and the time when it had that tail. Entries above it arrived later. Any mark may
be left out: then entries only seem to have arrived later than they did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from loomlog.types import Glsn

MARKS_MAX: Final = 256  # of a log; older ones are thinned out


class Mark(NamedTuple):
    """At this time the log had this tail, or a higher one."""

    time_us: int
    tail: Glsn


Marks = tuple[Mark, ...]  # in order: both times and tails grow


def is_due(marks: Marks, mark: Mark, trimmed: Glsn, every_us: int) -> bool:
    """Return whether to add a mark: the log has grown, and the last mark is old enough."""
    if mark.tail <= trimmed or (marks and mark.tail <= marks[-1].tail):
        return False
    passed_us = mark.time_us - marks[-1].time_us if marks else every_us
    return passed_us >= every_us or passed_us < 0  # < 0: the clock was ahead at the last mark


def marked(marks: Marks, mark: Mark, trimmed: Glsn, oldest_kept_us: int) -> Marks:
    """Return the marks with another one added, without those that have become useless: those of
    trimmed entries, those with a later time (and a lower tail), and all but the newest of those
    that are no longer kept (`oldest_kept_us`)."""
    earlier = [each for each in marks if each.tail > trimmed and each.time_us < mark.time_us]
    expired = [each for each in earlier if each.time_us <= oldest_kept_us]
    kept = [*expired[-1:], *earlier[len(expired) :], mark]
    if len(kept) > MARKS_MAX:
        del kept[_least_needed(kept)]
    return tuple(kept)


def _least_needed(marks: Sequence[Mark]) -> int:
    """Return the index of the mark whose neighbours are closest to each other, relative to its
    age."""

    def gap(index: int) -> float:
        age_us = marks[-1].time_us - marks[index].time_us
        return (marks[index + 1].time_us - marks[index - 1].time_us) / age_us

    return min(range(1, len(marks) - 1), key=gap)


def arrived_by(marks: Marks, time_us: int) -> Glsn:
    """Return a position up to which all entries had arrived by `time_us`; 0: none is known."""
    return max((mark.tail for mark in marks if mark.time_us <= time_us), default=0)
