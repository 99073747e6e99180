"""Decide when the metadata repository fills a position for a client that may only read. Pure.

Such a client is not believed that a writer is dead: one that asks for every ticket as soon as it is
handed out would stop all appends. The sequencer keeps no times, because a clock for each ticket
would delay appends. So the age of a ticket is counted from the first question about it, or about a
later one.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from loomlog.types import Glsn

FILL_AFTER_S: Final = 0.2  # far above a write


class HoleAges:
    """The positions that were handed out in one epoch when questions about them came."""

    def __init__(self) -> None:
        self._ends: list[Glsn] = []  # the first position that was not handed out ...
        self._times_s: list[float] = []  # ... at these times; both grow

    def wait_s(self, position: Glsn, end: Glsn, now_s: float) -> float:
        """Return how long to wait until a position may be filled, given the first one that is not
        handed out."""
        self._forget_before(now_s - FILL_AFTER_S)
        index = bisect_right(self._ends, position)
        if index == len(self._ends):
            self._ends.append(end)
            self._times_s.append(now_s)
        return max(0.0, self._times_s[index] + FILL_AFTER_S - now_s)

    def _forget_before(self, time_s: float) -> None:
        """Forget all but the last of the questions that are this old."""
        old = bisect_right(self._times_s, time_s) - 1
        if old > 0:
            del self._ends[:old], self._times_s[:old]
