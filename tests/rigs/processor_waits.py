"""Measures how long processes wait for a processor. Tests with time limits subtract this, so that
their results do not depend on the load of the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter
from typing import Final, Self

LOOK_S: Final = 0.05


class ProcessorWaits:
    """Looks again and again during an `async with` block at what the kernel counted."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._looks: list[tuple[float, dict[int, float]]] = []

    async def __aenter__(self) -> Self:
        self._look()
        self._looking = asyncio.create_task(self._look_again())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._looking.cancel()

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._look()

    def _look(self) -> None:
        self._looks.append((perf_counter(), {pid: waited_s(pid) for pid in self._pids()}))

    def between_s(self, begin: float, end: float) -> float:
        """Return for how long all of them together waited, at most."""
        if self._looks[-1][0] < end:
            self._look()
        before = [waits for at, waits in self._looks if at <= begin][-1]
        after = next(waits for at, waits in self._looks if at >= end)
        return sum(max(0.0, after[pid] - before[pid]) for pid in before if pid in after)


def waited_s(pid: int) -> float:
    """Return for how long the threads of a process were ready to run and did not; 0 if it ended, or
    the kernel does not count that."""
    waited_ns = 0
    for thread in Path("/proc", str(pid), "task").glob("*/schedstat"):
        try:
            waited_ns += int(thread.read_text().split()[1])
        except OSError:  # it ended
            continue
    return waited_ns / 1e9
