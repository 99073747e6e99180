"""Decide how far a log may be trimmed because of its retention, and what time it is. Pure.

Retention deletes by the clock, and any clock may be wrong, in both directions and by years. So no
machine relies on its own clock alone:

- The cluster's time is never later than the own clock, nor than the clocks of more than half of all
  storage nodes. It is unknown unless more than half of them report theirs: the absent ones may be
  right. So it is ahead only if the own clock is, and those of half of the nodes.
- It may still jump ahead, if all machines get the time from one source that was wrong before.
  Entries stamped before the jump then look older than they are. So after a jump entries are kept
  longer by the size of the jump, for one whole retention time.

Durations are measured by a monotonic clock (`now_s`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from statistics import median_low
from typing import Final, NamedTuple

from loomlog.core.requests import Steps
from loomlog.core.segments import Segment
from loomlog.types import Glsn, NodeId


class FindTime(NamedTuple):
    """Answered with a position from `first` on before which the whole segment is too old, or with
    None if the protocol of the segment cannot tell."""

    segment: Segment
    first: Glsn


def last_expired(segments: Iterable[Segment], trimmed: Glsn) -> Steps[FindTime, Glsn | None, Glsn]:
    """Return the position up to which everything is too old. Whatever is in doubt is kept."""
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
"""Clocks that differ by more are wrong. NTP keeps them within milliseconds, and a heartbeat that
waits in a busy machine is late by a second or two: both are far below. A minute would already be
more than the shortest useful retention."""

JUMPS_MAX: Final = 100  # remembered; the oldest ones count as one


class ClockReading(NamedTuple):
    """A reading of another machine's clock."""

    clock_s: float
    heard_s: float  # when, by the monotonic clock

    def at(self, now_s: float) -> float:
        """Return what it shows now, if it was not set since."""
        return self.clock_s + now_s - self.heard_s


def cluster_time(own_s: float, nodes_s: Collection[float], nodes: int) -> float | None:
    """Return the time, or None if too few of all `nodes` report theirs."""
    wrong_max = nodes // 2  # this many clocks may be ahead
    if len(nodes_s) <= wrong_max:
        return None
    return min(own_s, sorted(nodes_s)[-1 - wrong_max])


def latest_time(own_s: float, nodes_s: Collection[float], nodes: int) -> float | None:
    """Return a time that is not earlier than the own clock, nor than those of half of all `nodes`;
    None if too few of them report theirs."""
    if len(nodes_s) <= nodes // 2:
        return None
    return max(own_s, sorted(nodes_s)[nodes // 2])


class Skews(NamedTuple):
    """Seconds by which clocks are ahead of most (negative: behind), if that is much."""

    own_s: float
    nodes_s: Mapping[NodeId, float]


def skews(own_s: float, nodes_s: Mapping[NodeId, float]) -> Skews:
    """Compare the clocks of all machines. Of two that differ, the later one counts as ahead."""
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
        if len(self._jumps) > JUMPS_MAX:  # to merge the oldest keeps entries longer
            oldest, second = self._jumps[:2]
            self._jumps[:2] = [second._replace(by_s=oldest.by_s + second.by_s)]
        self._last = ClockReading(clock_s, now_s)

    def doubt_s(self, kept_s: float, now_s: float) -> float:
        """Return by how much entries that must be kept for `kept_s` may look too old."""
        return sum(jump.by_s for jump in self._jumps if now_s - jump.at_s < kept_s)
