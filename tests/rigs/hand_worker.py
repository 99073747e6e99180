"""A worker that does nothing until the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from loomlog.storage.files import Finished, Step


class HandWorker:
    def __init__(self) -> None:
        self.jobs: list[tuple[Sequence[Step], Finished]] = []
        self.arrived = asyncio.Event()
        self.by_itself = False

    def run(self, steps: Sequence[Step], finished: Finished) -> None:
        self.jobs.append((steps, finished))
        self.arrived.set()
        if self.by_itself:
            asyncio.get_running_loop().call_soon(self.do_next)

    def do_next(self, *, steps_before_crash: int | None = None) -> None:
        """Do the oldest job; or only its first steps, and never tell."""
        steps, finished = self.jobs.pop(0)
        if not self.jobs:
            self.arrived.clear()
        for step in steps[:steps_before_crash]:
            step()
        if steps_before_crash is None:
            finished(None)

    def fail_next(self, error: BaseException) -> None:
        _, finished = self.jobs.pop(0)
        finished(error)

    def close(self) -> None:
        self.jobs.clear()
