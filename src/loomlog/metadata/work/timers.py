"""Timers by key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable


class Timers:
    """At most one timer per key: setting it again replaces it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timers: dict[Hashable, asyncio.TimerHandle] = {}

    def set(self, key: Hashable, delay_s: float, call: Callable[[], None]) -> None:
        """Call once, after the delay."""
        if key in self._timers:
            self._timers[key].cancel()

        def due() -> None:
            del self._timers[key]
            call()

        self._timers[key] = self._loop.call_later(delay_s, due)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
