"""Keeps the event loop awake while exactly one batch is in flight.

A sleeping process is slow to wake up, and slow for a while after that because its caches are cold.
A lone append would put it to sleep at each of its steps. So while a client has one batch in flight,
and the last one was answered quickly, its event loop spins, and yields the CPU at each turn. ADR 17
has the figures.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Final

CPUS_MIN: Final = 2.0  # with fewer, a spinning client starves the servers it waits for
_CPU_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
_YIELD: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)


class Spinner:
    """Spins for all logs of one client."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        spin_s: float,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`spin_s` is the longest time to spin for a batch; after a batch that took longer, it does
        not spin for the next one. 0: never spin."""
        self._loop = loop
        self._spin_s = spin_s
        self._clock = clock
        self._under_way = 0
        self._began_s = 0.0  # when the first batch in flight was sent
        self._quick = spin_s > 0  # whether the last batch was answered within spin_s
        self._spinning = False

    def began(self) -> None:
        """Called when a batch is sent."""
        self._under_way += 1
        if self._under_way > 1:
            return
        self._began_s = self._clock()
        if self._quick and not self._spinning:
            self._spinning = True
            self._loop.call_soon(self._turn)

    def ended(self) -> None:
        """Called when a batch is answered, or given up."""
        self._under_way -= 1
        if not self._under_way:
            self._quick = self._clock() - self._began_s < self._spin_s

    def _turn(self) -> None:
        if self._under_way == 1 and self._clock() - self._began_s < self._spin_s:
            _YIELD()
            self._loop.call_soon(self._turn)
        else:
            self._spinning = False


def usable_cpus(quota: Path = _CPU_QUOTA) -> float:
    """Return how many CPUs this process may use, which need not be a whole number."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    cpus = float(len(affinity(0)) if affinity else os.cpu_count() or 1)
    try:
        allowed, period = quota.read_text().split()
        return min(cpus, int(allowed) / int(period))
    except (OSError, ValueError):  # there is no quota
        return cpus
