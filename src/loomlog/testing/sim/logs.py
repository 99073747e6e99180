"""Copies log lines of simulated servers to the trace; an error fails the simulation.

Servers answer an exception that they did not expect with an error frame and a line in their log;
a test that only looked at answers would miss such a bug. Only a host whose disk failed may log
errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loomlog.testing.sim.loop import SimLoop
from loomlog.testing.sim.world import World

LOGGER = "loomlog"


class _ToWorld(logging.Handler):
    def __init__(self, world: World, excused: Callable[[str], bool]) -> None:
        super().__init__()
        self._world = world
        self._excused = excused

    def emit(self, record: logging.LogRecord) -> None:
        loop = asyncio._get_running_loop()
        if isinstance(loop, SimLoop) and loop.killed:
            return
        who = loop.host if isinstance(loop, SimLoop) else "?"
        self._world.tell(who, f"{record.levelname}: {record.getMessage()}")
        if record.levelno >= logging.ERROR and not self._excused(who):
            cause = record.exc_info[1] if record.exc_info else None
            self._world.fail(who, f"logged: {record.getMessage()}", cause)


@contextmanager
def watched_logs(world: World, excused: Callable[[str], bool]) -> Iterator[None]:
    """Take what our servers log until the end of the block; `excused`: hosts that may complain."""
    logger = logging.getLogger(LOGGER)
    before = logger.level, logger.propagate
    handler = _ToWorld(world, excused)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if world.traced else logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
