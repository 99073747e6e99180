"""Decide when the metadata repository fills a position for a client that may only read. Pure.

Such a client is not trusted to decide that a writer is dead: by requesting every position as soon
as it is handed out, it could stop all appends. The sequencer records no times, because a clock
reading for each ticket would slow appends down. So the age of a ticket is measured from the first
request about it or a later one.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from loomlog.types import Glsn

FILL_AFTER_S: Final = 0.2  # far longer than a write takes


class HoleAges:
    """A history of how far the positions of one epoch had been handed out."""

    def __init__(self) -> None:
        self._ends: list[Glsn] = []  # the first position that was not handed out
        self._times_s: list[float] = []  # at each of these times; both lists grow

    def wait_s(self, position: Glsn, end: Glsn, now_s: float) -> float:
        """Return how long to wait until a position may be filled. `end` is the first position that
        is not handed out now."""
        self._forget_before(now_s - FILL_AFTER_S)
        index = bisect_right(self._ends, position)
        if index == len(self._ends):
            self._ends.append(end)
            self._times_s.append(now_s)
        return max(0.0, self._times_s[index] + FILL_AFTER_S - now_s)

    def _forget_before(self, time_s: float) -> None:
        """Forget all times up to `time_s` but the last."""
        old = bisect_right(self._times_s, time_s) - 1
        if old > 0:
            del self._ends[:old], self._times_s[:old]
