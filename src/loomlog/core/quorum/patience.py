"""Decide how long a follower waits for an answer of its leader before it misses it. Pure.

A leader that usually answers quickly is missed soon. One whose recent answers took long, because
its machine is busy, gets a multiple of the slowest, so that it is not replaced for being slow.
Before its first answer it gets the longest patience: members that start together would otherwise
replace a leader that is just beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

SHORTEST: Final = 0.25  # of the longest patience
MULTIPLE: Final = 4.0  # of the slowest answer
MEMORY_S: Final = 60.0  # answers are remembered at least this long, and at most twice as long


@dataclass(slots=True)
class Patience:
    """The patience of a follower with one leader. Times are on the clock of the caller."""

    longest_s: float
    _slowest_s: float = 0.0  # of the answers since `_since_s`
    _since_s: float = -inf  # -inf: there was no answer yet
    _before_s: float = 0.0  # the slowest answer of the period before that

    def answered(self, now_s: float, took_s: float) -> None:
        """Record an answer, even one that came too late."""
        if now_s - self._since_s >= MEMORY_S:
            recent = now_s - self._since_s < 2 * MEMORY_S
            self._before_s = self._slowest_s if recent else 0.0
            self._slowest_s, self._since_s = 0.0, now_s
        self._slowest_s = max(self._slowest_s, took_s)

    @property
    def wait_s(self) -> float:
        """The time to wait for the next answer."""
        if self._since_s == -inf:
            return self.longest_s
        slowest_s = max(self._slowest_s, self._before_s)
        return min(max(SHORTEST * self.longest_s, MULTIPLE * slowest_s), self.longest_s)
