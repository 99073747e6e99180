"""Appends at a steady rate, whether or not earlier ones were answered, so that every stall
shows."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from loomlog.cli.bench.measurements import percentile_ms

if TYPE_CHECKING:
    from loomlog import Log

RECORD_BYTES: Final = 1024
APPENDS_PER_S: Final = 1024  # 1 MiB/s
PACE_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class AppendSample:
    """One append."""

    started: float
    ended: float
    acknowledged: bool


class SteadyWriter:
    """A writer that runs during an `async with` block."""

    def __init__(self, log: Log, per_s: float = APPENDS_PER_S) -> None:
        self._log = log
        self._per_s = per_s
        self._value = os.urandom(RECORD_BYTES)
        self._under_way: dict[asyncio.Future[Any], float] = {}
        self._samples: list[AppendSample] = []

    async def __aenter__(self) -> SteadyWriter:
        await self._log.append(self._value)
        self._pacing = asyncio.ensure_future(self._pace())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pacing.cancel()
        await asyncio.wait({self._pacing, *self._under_way})

    async def _pace(self) -> None:
        begun, count = perf_counter(), 0
        while True:
            for _ in range(count, int((perf_counter() - begun) * self._per_s)):
                self._append()
                count += 1
            await asyncio.sleep(PACE_S)

    def _append(self) -> None:
        append = asyncio.ensure_future(self._log.append(self._value))
        self._under_way[append] = perf_counter()
        append.add_done_callback(self._ended)

    def _ended(self, append: asyncio.Future[Any]) -> None:
        acknowledged = not append.cancelled() and append.exception() is None
        started = self._under_way.pop(append)
        self._samples.append(AppendSample(started, perf_counter(), acknowledged))

    async def all_ended(self, before: float) -> None:
        """Wait for the appends that began before that."""
        waiting = [append for append, started in self._under_way.items() if started < before]
        if waiting:
            await asyncio.wait(waiting)

    # ---- results

    def longest_gap_s(self, begin: float, end: float) -> float:
        """Return the longest time between two acknowledgements."""
        ends = sorted(s.ended for s in self._samples if s.acknowledged and begin <= s.ended < end)
        points = [begin, *ends, end]
        return max(after - before for before, after in pairwise(points))

    def p99_ms(self, begin: float, end: float) -> float | None:
        """Return the p99 of the appends that began in this time; all must have ended."""
        took = sorted(s.ended - s.started for s in self._samples if begin <= s.started < end)
        return percentile_ms(took, 0.99)

    def longest_s(self, begin: float, end: float) -> float:
        took = [s.ended - s.started for s in self._samples if begin <= s.ended < end]
        return max(took, default=0.0)

    def acknowledged(self, begin: float, end: float) -> int:
        return sum(s.acknowledged for s in self._samples if begin <= s.ended < end)

    def failed(self, begin: float, end: float) -> int:
        return sum(not s.acknowledged for s in self._samples if begin <= s.ended < end)
