"""The stopwatch: a window of time, what was acknowledged in it, and how long each call took."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from time import perf_counter
from typing import Final

WARM_UP_SHARE: Final = 0.2  # of a window, before it: connections, caches, batch sizes settle
WARM_UP_S_MAX: Final = 1.0


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report. Latencies are of one call, in milliseconds; None: not measured."""

    scenario: str
    record_bytes: int
    batch: int
    records: int
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def mb_per_s(self) -> float:
        return self.records_per_s * self.record_bytes / 1e6


class Window:
    """Counts what ends inside [begin, end); calls go on until `end`, also before `begin`."""

    def __init__(self, seconds: float) -> None:
        self.begin = perf_counter() + min(WARM_UP_S_MAX, seconds * WARM_UP_SHARE)
        self.end = self.begin + seconds
        self._records = 0
        self._latencies_s = array("d")

    def add(self, started: float, ended: float, records: int) -> None:
        if self.begin <= ended < self.end:
            self._records += records
            self._latencies_s.append(ended - started)

    def result(self, scenario: str, record_bytes: int, batch: int) -> Result:
        ordered = sorted(self._latencies_s)
        return Result(
            scenario=scenario,
            record_bytes=record_bytes,
            batch=batch,
            records=self._records,
            seconds=self.end - self.begin,
            p50_ms=percentile_ms(ordered, 0.50),
            p99_ms=percentile_ms(ordered, 0.99),
        )


def percentile_ms(ordered_s: list[float], share: float) -> float | None:
    """Return a percentile, in ms, of sorted seconds."""
    if not ordered_s:
        return None
    return ordered_s[min(len(ordered_s) - 1, int(len(ordered_s) * share))] * 1e3
