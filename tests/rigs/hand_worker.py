"""A worker that does nothing until the test says so."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from loomlog.storage.files import Finished, Step


class HandWorker:
    def __init__(self) -> None:
        self.jobs: deque[tuple[Sequence[Step], Finished]] = deque()
        self.count = 0  # of all jobs so far,
        self.short = 0  # and of the short ones
        self.arrived = asyncio.Event()
        self.by_itself = False

    def run(self, steps: Sequence[Step], finished: Finished) -> None:
        self.jobs.append((steps, finished))
        self.count += 1
        self.arrived.set()
        if self.by_itself:
            asyncio.get_running_loop().call_soon(self.work)

    def run_short(self, steps: Sequence[Step], finished: Finished) -> None:
        self.short += 1
        self.run(steps, finished)

    def work(self) -> None:
        """Do the oldest job."""
        steps, finished = self._next()
        error: OSError | None = None
        try:
            for step in steps:
                step()
        except OSError as raised:
            error = raised
        finished(error)

    def crash_after(self, steps_before: int) -> None:
        """Do the first steps of the oldest job, and never report."""
        steps, _ = self._next()
        for step in steps[:steps_before]:
            step()

    def fail_next(self, error: BaseException) -> None:
        _, finished = self._next()
        finished(error)

    def close(self) -> None:
        while self.jobs:
            self.work()

    def _next(self) -> tuple[Sequence[Step], Finished]:
        job = self.jobs.popleft()
        if not self.jobs:
            self.arrived.clear()
        return job
