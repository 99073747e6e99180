"""A client that appends only behind the tail that it expects."""

from __future__ import annotations

import asyncio

from loomlog.client.log import Log
from loomlog.errors import AppendUnknown, Conflict, LoomError, Retryable, RolledBack
from loomlog.testing.sim.host import Process
from loomlog.types import Glsn
from workloads.cluster import LOG, Run

STALE = 0.2  # of the appends: they expect what was the tail before
REMEMBERED = 0.5  # of the appends behind one of its own: it does not ask for the tail
PAUSES_MAX_S = (0.0, 0.05, 0.3)


async def compare_and_append(run: Run, process: Process) -> None:
    """Append behind the tail again and again, until all is calm."""
    async with await run.connect(process) as cluster:
        await _Comparer(run, process.host.name).work(cluster.log(LOG))


class _Comparer:
    def __init__(self, run: Run, name: str) -> None:
        self._run = run
        self._name = name
        self._count = 0
        self._last: Glsn = 0  # of its last append

    async def work(self, log: Log) -> None:
        pause_max_s = self._run.random.choice(PAUSES_MAX_S)
        while not self._run.calm:
            try:
                expected = await self._expected(log)
            except (Retryable, RolledBack):
                await asyncio.sleep(0.05)
                continue
            await self._append(log, expected)
            await asyncio.sleep(self._run.random.random() * pause_max_s)

    async def _expected(self, log: Log) -> Glsn:
        random = self._run.random
        if self._last and random.random() < REMEMBERED:
            return self._last
        tail = await log.tail()
        return random.randint(max(0, tail - 3), tail) if random.random() < STALE else tail

    async def _append(self, log: Log, expected: Glsn) -> None:
        history = self._run.history
        self._count += 1
        op = f"{self._name}-{self._count}"
        values = [f"{op}-{i}".encode() for i in range(self._run.random.choice((1, 1, 3)))]
        history.invoke(self._name, op, values, expected)
        self._last = 0
        try:
            positions = await log.append_many(values, expected_tail=expected)
        except AppendUnknown:
            history.unknown(op)
        except Conflict:
            history.conflict(op)
        except LoomError:
            history.fail(op)
        else:
            history.ack(op, positions)
            self._last = positions[-1].position
            self._run.heard_of(self._last)
