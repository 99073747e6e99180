"""Decide how far a log may be trimmed because of its retention, and what time it is. Pure.

Retention deletes by the clock, and any clock may be wrong by years, in either direction. So no
machine relies on its own clock alone:

- The cluster's time is never later than the own clock, nor than the clocks of more than half of all
  storage nodes. It is unknown unless more than half of the nodes report theirs, because the absent
  ones may be right. So it is wrong only if the own clock and those of half of the nodes are ahead.
- It may still jump ahead, if the source from which all machines get the time was wrong before.
  Entries stamped before the jump then look older than they are. Therefore, for one retention time
  after a jump, entries are kept longer by the size of the jump.

Durations are measured with a monotonic clock (`now_s`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from statistics import median_low
from typing import Final, NamedTuple

from loomlog.core.requests import Steps
from loomlog.core.segments import Segment
from loomlog.types import Glsn, NodeId


class FindTime(NamedTuple):
    """Answered with a position, `first` or above, below which all entries of the segment are too
    old; with None if the segment's protocol cannot tell."""

    segment: Segment
    first: Glsn


def last_expired(segments: Iterable[Segment], trimmed: Glsn) -> Steps[FindTime, Glsn | None, Glsn]:
    """Return the position up to which all entries are too old. In case of doubt they are kept."""
    kept_from = trimmed + 1
    for segment in segments:
        if segment.end is not None and kept_from > segment.end:
            continue
        young = yield FindTime(segment, max(segment.start, kept_from))
        if young is None:
            break
        kept_from = young
        if segment.end is None or kept_from <= segment.end:
            break
    return kept_from - 1


SKEW_MAX_S: Final = 10.0
"""Clocks that differ by more are wrong. NTP keeps clocks within milliseconds, and heartbeats of a
busy machine are late by a second or two. A minute would already be more than the shortest useful
retention."""

JUMPS_MAX: Final = 100  # remembered; older ones are merged


class ClockReading(NamedTuple):
    """A reading of another machine's clock."""

    clock_s: float
    heard_s: float  # when, by the monotonic clock

    def at(self, now_s: float) -> float:
        """Return what the clock shows now, unless it was set since."""
        return self.clock_s + now_s - self.heard_s


def cluster_time(own_s: float, nodes_s: Collection[float], nodes: int) -> float | None:
    """Return the cluster's time, or None if too few of all `nodes` report theirs."""
    wrong_max = nodes // 2  # this many clocks may be ahead
    if len(nodes_s) <= wrong_max:
        return None
    return min(own_s, sorted(nodes_s)[-1 - wrong_max])


def latest_time(own_s: float, nodes_s: Collection[float], nodes: int) -> float | None:
    """Return a time that is not earlier than the own clock, nor than the clocks of half of all
    `nodes`; None if too few of them report theirs."""
    if len(nodes_s) <= nodes // 2:
        return None
    return max(own_s, sorted(nodes_s)[nodes // 2])


class Skews(NamedTuple):
    """Seconds by which wrong clocks are ahead of most others (negative: behind)."""

    own_s: float
    nodes_s: Mapping[NodeId, float]


def skews(own_s: float, nodes_s: Mapping[NodeId, float]) -> Skews:
    """Compare the clocks of all machines. If there are only two, the later one counts as ahead."""
    most_say_s = median_low([own_s, *nodes_s.values()])

    def skew(clock_s: float) -> float:
        ahead_s = clock_s - most_say_s
        return ahead_s if abs(ahead_s) > SKEW_MAX_S else 0.0

    wrong = {node: skew(clock_s) for node, clock_s in nodes_s.items() if skew(clock_s)}
    return Skews(skew(own_s), wrong)


class _Jump(NamedTuple):
    at_s: float  # by the monotonic clock
    by_s: float


class SteadyTime:
    """Watches readings of a clock for jumps ahead."""

    def __init__(self) -> None:
        self._last: ClockReading | None = None
        self._jumps: list[_Jump] = []

    def note(self, clock_s: float, now_s: float) -> None:
        ahead_s = clock_s - self._last.at(now_s) if self._last else 0.0
        if ahead_s > SKEW_MAX_S:
            self._jumps.append(_Jump(now_s, ahead_s))
        if len(self._jumps) > JUMPS_MAX:  # merging errs on the side of keeping entries longer
            oldest, second = self._jumps[:2]
            self._jumps[:2] = [second._replace(by_s=oldest.by_s + second.by_s)]
        self._last = ClockReading(clock_s, now_s)

    def doubt_s(self, kept_s: float, now_s: float) -> float:
        """Return by how much entries that must be kept for `kept_s` may look older than they
        are."""
        return sum(jump.by_s for jump in self._jumps if now_s - jump.at_s < kept_s)
