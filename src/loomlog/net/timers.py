"""Timers by key, such as those of pending requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable


class Timers:
    """At most one timer per key: setting it again replaces it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.running: dict[Hashable, asyncio.TimerHandle] = {}

    def set(self, key: Hashable, delay_s: float, call: Callable[[], None]) -> None:
        """Call `call` once, after the delay."""
        if key in self.running:
            self.running[key].cancel()
        self.running[key] = self._loop.call_later(delay_s, self._due, key, call)

    def cancel(self, key: Hashable) -> None:
        if (timer := self.running.pop(key, None)) is not None:
            timer.cancel()

    def stop(self) -> None:
        """Cancel all timers."""
        for timer in self.running.values():
            timer.cancel()
        self.running.clear()

    def _due(self, key: Hashable, call: Callable[[], None]) -> None:
        del self.running[key]
        call()
