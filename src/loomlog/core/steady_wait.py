"""Decide when something was waited for long enough. Pure."""

from __future__ import annotations


class SteadyWait:
    """Measures how long something is waited for without a pause. After a pause, in which those that
    could continue were away as well, the wait starts over."""

    def __init__(self, wait_s: float, pause_s: float) -> None:
        """The wait ends after `wait_s`. More than `pause_s` without a note is a pause."""
        self._wait_s = wait_s
        self._pause_s = pause_s
        self._since_s: float | None = None
        self._noted_s = 0.0

    def note(self, now_s: float) -> None:
        """Note that it is waited for now."""
        if self._since_s is None or self.has_paused(now_s):
            self._since_s = now_s
        self._noted_s = now_s

    def is_over(self, now_s: float) -> bool:
        """Return whether it was waited for long enough."""
        if self._since_s is None or self.has_paused(now_s):
            return False
        return now_s - self._since_s >= self._wait_s

    def has_paused(self, now_s: float) -> bool:
        """Return whether it was not waited for meanwhile."""
        return now_s - self._noted_s > self._pause_s
