"""A client that appends through pipelines."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from loomlog.client.log import Log
from loomlog.errors import AppendUnknown, LoomError
from loomlog.testing.sim.host import Process
from loomlog.types import Glsn, Position
from workloads.cluster import LOG, Run

LENGTHS = (1, 5, 40)
PAUSE_MAX_S = 0.05


async def pipe(run: Run, process: Process) -> None:
    """Append through one pipeline after another, until all is calm."""
    async with await run.connect(process) as cluster:
        number = 0
        while not run.calm:
            number += 1
            await _Piper(run, f"{process.host.name}-{number}").work(cluster.log(LOG))


class _Piper:
    """One pipeline: what it appends stands in the order of the calls."""

    def __init__(self, run: Run, name: str) -> None:
        self._run = run
        self._name = name
        self._last: Glsn = 0

    async def work(self, log: Log) -> None:
        random, appends = self._run.random, []
        with suppress(LoomError):
            async with log.pipeline() as pipeline:
                for number in range(random.choice(LENGTHS)):
                    op, value = f"{self._name}-{number}", f"{self._name}-{number}".encode()
                    self._run.history.invoke(self._name, op, [value])
                    appends.append((op, pipeline.append(value)))
                    if random.random() < 0.3:
                        await asyncio.sleep(random.random() * PAUSE_MAX_S)
        for op, append in appends:
            self._end(op, append)

    def _end(self, op: str, append: asyncio.Future[Position]) -> None:
        history = self._run.history
        if not append.done() or isinstance(append.exception(), AppendUnknown):
            history.unknown(op)
        elif append.exception() is not None:
            history.fail(op)
        else:
            at = append.result()
            assert at.position > self._last, f"{op} stands at {at}, behind {self._last}"
            self._last = at.position
            history.ack(op, [at])
            self._run.heard_of(at.position)
