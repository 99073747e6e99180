"""Decide when something has been awaited for long enough. Pure."""

from __future__ import annotations


class SteadyWait:
    """Measures how long something has been awaited without interruption.

    An interruption, in which the parties that could act were down as well, starts the wait over."""

    def __init__(self, wait_s: float, pause_s: float) -> None:
        """The wait is over after `wait_s`. More than `pause_s` without a `note` interrupts it."""
        self._wait_s = wait_s
        self._pause_s = pause_s
        self._since_s: float | None = None
        self._noted_s = 0.0

    def note(self, now_s: float) -> None:
        """Called periodically while it is awaited."""
        if self._since_s is None or self.has_paused(now_s):
            self._since_s = now_s
        self._noted_s = now_s

    def is_over(self, now_s: float) -> bool:
        """Return whether it has been awaited for long enough."""
        if self._since_s is None or self.has_paused(now_s):
            return False
        return now_s - self._since_s >= self._wait_s

    def has_paused(self, now_s: float) -> bool:
        """Return whether the wait was interrupted."""
        return now_s - self._noted_s > self._pause_s
