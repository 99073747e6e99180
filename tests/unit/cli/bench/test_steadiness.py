"""The load of `loom bench steady` stays within what was asked for, even if the client is too slow
for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from loomlog.cli.bench import steadiness
from loomlog.cli.bench.steadiness import SteadinessReport

RATE = 20_000.0
SECONDS = 0.05


def keep_busy(seconds: float) -> None:
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass


class SlowLog:
    """A log without readers whose appends use the processor, or wait."""

    def __init__(self, busy_s: float = 0.0, wait_s: float = 0.0) -> None:
        self._busy_s = busy_s
        self._wait_s = wait_s
        self.appends = self.under_way = self.most = 0

    async def append(self, value: bytes) -> None:
        self.appends += 1
        if self.appends <= 2 * RATE * SECONDS:  # beyond that, let the test end
            keep_busy(self._busy_s)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(self._wait_s)
        self.under_way -= 1

    async def head(self) -> int:
        return 1

    async def tail(self) -> int:
        return 0

    async def subscribe_arrow(self, start: int, stop: int | None = None) -> AsyncIterator[Any]:
        await asyncio.sleep(10 * SECONDS if stop is None else 0)
        nothing: tuple[Any, ...] = ()
        for batch in nothing:
            yield batch


async def load(log: Any) -> SteadinessReport:
    report = SteadinessReport("copyset", 128, 0.5, SECONDS)
    private: Any = SimpleNamespace(processes=SimpleNamespace(pids={}))
    await steadiness._Load(log, RATE, report).run(private)
    return report


async def test_a_client_that_is_too_slow_appends_no_more_than_is_due_in_time() -> None:
    # Late appends made the next ones later, and more of them due: it never ended.
    log = SlowLog(busy_s=2 / RATE)
    report = await load(log)
    assert 0 < log.appends <= RATE * SECONDS + 1  # one before the load
    assert report.failed == 0


async def test_appends_under_way_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steadiness, "UNDER_WAY_MAX", 10)
    log = SlowLog(wait_s=SECONDS / 5)
    await load(log)
    assert log.appends > 1
    assert log.most <= 10
