"""Staying awake while one batch alone is under way.

A process that sleeps is slow to wake, and slow for a while then: its caches are cold. An append
sleeps at each of its steps. So while a client has exactly one batch under way, and the one before
was answered quickly, its loop turns without pausing, and lets go of the CPU at each turn for
whoever else wants it. ADR 17 has the figures.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Final

CPUS_MIN: Final = 2.0  # with fewer, who spins is in the way of who is waited for
_CPU_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
_YIELD: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)


class Spinning:
    """Of one client, whatever the log."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        spin_s: float,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`spin_s`: so long at most for one batch, and only while they take less; 0: never."""
        self._loop = loop
        self._spin_s = spin_s
        self._clock = clock
        self._under_way = 0
        self._began_s = 0.0  # when that was none before
        self._quick = spin_s > 0  # the last time
        self._turning = False

    def began(self) -> None:
        """One more batch is under way."""
        self._under_way += 1
        if self._under_way > 1:
            return
        self._began_s = self._clock()
        if self._quick and not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def ended(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._quick = self._clock() - self._began_s < self._spin_s

    def _turn(self) -> None:
        if self._under_way == 1 and self._clock() - self._began_s < self._spin_s:
            _YIELD()
            self._loop.call_soon(self._turn)
        else:
            self._turning = False


def usable_cpus(quota: Path = _CPU_QUOTA) -> float:
    """How many this process may use."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    cpus = float(len(affinity(0)) if affinity else os.cpu_count() or 1)
    try:
        allowed, period = quota.read_text().split()
        return min(cpus, int(allowed) / int(period))
    except (OSError, ValueError):  # there is no quota
        return cpus
