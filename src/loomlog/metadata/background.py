"""Work that goes on beside requests, until it is done or the server stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from loomlog.errors import LoomError

logger = logging.getLogger(__name__)


class Background:
    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}  # an ordered set
        self._stopped = False

    def spawn(self, work: Coroutine[None, None, None], what: str) -> None:
        """Run it; an error is logged, for nobody waits."""
        if self._stopped:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(_watched(work, what))
        self._tasks[task] = None

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.pop(task, None)
            work.close()  # a task that is cancelled before its first step has not touched it

        task.add_done_callback(ended)

    async def stop(self) -> None:
        self._stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watched(work: Coroutine[None, None, None], what: str) -> None:
    try:
        await work
    except LoomError as error:
        logger.warning("%s: %s", what, error)
    except Exception:
        logger.exception("%s failed", what)
