"""Meters of what a server does: plain numbers on the hot path, read when a page is asked for.

Nothing here knows names, labels or text: metrics.py exports them.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)


class Histogram:
    """Durations, counted by size. Used by one thread."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)  # the last one: longer than every bound
        self.sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        self.counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s
