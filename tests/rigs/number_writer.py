"""A writer that appends numbers one after the other, and knows what the log has to contain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from time import perf_counter

from poll import until

import loomlog

PAUSE_S = 0.01


class NumberWriter:
    """Appends to a log from now on, until it is stopped. No append may fail."""

    def __init__(self, log: loomlog.Log) -> None:
        self._log = log
        self._ended: list[float] = []  # when each append was acknowledged
        self._stopped = False
        self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while not self._stopped:
            await self._log.append(b"%d" % len(self._ended))
            self._ended.append(perf_counter())
            await asyncio.sleep(PAUSE_S)

    async def more(self) -> None:
        """Wait for an append that begins from now on."""
        last = len(self._ended) + 1  # one may be under way
        await until(lambda: len(self._ended) > last or self._task.done())

    async def stop(self) -> None:
        self._stopped = True
        await self._task

    async def check(self) -> None:
        tail = await self._log.tail()
        entries = [int(entry.value) async for entry in self._log.subscribe(start=1, stop=tail)]
        assert entries == list(range(len(self._ended)))

    def gaps(self) -> Iterable[tuple[float, float]]:
        """Return the times between two acknowledgements."""
        return pairwise(self._ended)
