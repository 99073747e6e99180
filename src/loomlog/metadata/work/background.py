"""Work in the background of requests, until it is done or the server stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Final

from loomlog.errors import LoomError

logger = logging.getLogger(__name__)

UNEXPECTED: Final = "internal error: see the log of the metadata repository"


class Background:
    """Owns the background tasks of a term."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}  # an ordered set
        self._stopped = False

    def spawn(self, work: Coroutine[None, None, None], what: str) -> None:
        """Run a task; its error is logged, because nothing awaits it."""
        if self._stopped:
            work.close()
            return
        # Not in a wrapper: work that is cancelled before its wrapper begins would never be awaited.
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(partial(self._ended, what))

    async def stop(self) -> None:
        self._stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, what: str, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, LoomError):
            logger.warning("%s: %s", what, error)
        elif error is not None:
            logger.error("%s failed", what, exc_info=error)
