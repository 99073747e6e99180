"""The space of blocks that were trimmed or removed: a table frees it when it is told to.

That rewrites what lies beside them, so it waits for more to come, and runs in a thread of its own.
What is not freed when the node stops is freed with the next trim, or by the table itself some time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from loomlog import limits
from loomlog.core.chained.projection import Replica
from loomlog.storage.block_table import BlockTable
from loomlog.storage.files import Worker
from loomlog.types import Glsn

logger = logging.getLogger(__name__)


class Reclaiming:
    """For one table."""

    def __init__(self, table: BlockTable, new_worker: Callable[[], Worker]) -> None:
        self._table = table
        self._new_worker = new_worker
        self._worker: Worker | None = None
        self._freed: dict[Replica, Glsn] = {}  # all up to here
        self._timer: asyncio.TimerHandle | None = None
        self._under_way = False

    def soon(self, replica: Replica, position: Glsn) -> None:
        """Positions up to this one are gone."""
        self._freed[replica] = max(position, self._freed.get(replica, 0))
        self._wait()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._under_way:
            self._table.interrupt()

    def _wait(self) -> None:
        if self._timer is None and not self._under_way:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(limits.CHAIN_RECLAIM_AFTER_S, self._start)

    def _start(self) -> None:
        self._timer = None
        freed, self._freed = self._freed, {}
        self._worker = self._worker or self._new_worker()
        self._under_way = True
        steps = [partial(self._table.reclaim, *extent) for extent in freed.items()]
        self._worker.run(steps, self._finished)

    def _finished(self, error: BaseException | None) -> None:
        self._under_way = False
        if error is not None:
            logger.warning("the space of trimmed blocks is not free yet: %s", error)
        if self._freed:
            self._wait()
