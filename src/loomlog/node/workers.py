"""Waiting for a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from loomlog.storage.files import Worker

Result = TypeVar("Result")


async def off_loop(worker: Worker, work: Callable[[], Result]) -> Result:
    """Run blocking work in the worker and wait for its result."""
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    results: list[Result] = []

    def on_finished(error: BaseException | None) -> None:
        if finished.done():
            return
        if error is None:
            finished.set_result(None)
        else:
            finished.set_exception(error)

    worker.run([lambda: results.append(work())], on_finished)
    await finished
    return results[0]
