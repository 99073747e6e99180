"""Waiting for work that tells its end through a callback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from loomlog.storage.files import Finished, Worker

Result = TypeVar("Result")


async def finish(start: Callable[[Finished], None]) -> None:
    """Start the work and wait for its end; its error is raised."""
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_finished(error: BaseException | None) -> None:
        if finished.done():
            return
        if error is None:
            finished.set_result(None)
        else:
            finished.set_exception(error)

    start(on_finished)
    await finished


async def off_loop(worker: Worker, work: Callable[[], Result]) -> Result:
    """Run blocking work in the worker and wait for its result."""
    results: list[Result] = []
    await finish(lambda done: worker.run([lambda: results.append(work())], done))
    return results[0]
