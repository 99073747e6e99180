"""Recovery of the epochs before one: attempts, until one of them succeeds."""

from __future__ import annotations

import logging
from collections.abc import Callable

from loomlog.core.copyset.lsn import Epoch
from loomlog.core.copyset.messages import Preempted
from loomlog.core.copyset.recovery import Interrupted, Recovered, Recovery
from loomlog.node.copyset.asking import insist
from loomlog.node.copyset.means import Means
from loomlog.types import LogId

logger = logging.getLogger(__name__)


class Recovering:
    """By the node that took `epoch`."""

    def __init__(self, log: LogId, epoch: Epoch, means: Means) -> None:
        self._log = log
        self._epoch = epoch
        self._means = means
        self._core = Recovery(log, epoch)
        self._told = ""

    async def run(self, is_over: Callable[[], bool]) -> Recovered | Preempted | None:
        """None: it is over, nobody needs it any more."""

        async def attempt() -> Recovered | Preempted | Interrupted | None:
            if is_over():
                return Interrupted("it is over")
            ending = await self._means.asker.run(self._core.attempt({}, self._means.now_us()))
            if isinstance(ending, Interrupted):
                self._tell(ending.reason)
                return None
            return ending

        ending: Recovered | Preempted | Interrupted = await insist(attempt)
        if isinstance(ending, Interrupted):
            return None
        if isinstance(ending, Recovered):
            logger.info("loglet %d: recovered, epoch %d goes on", self._log, self._epoch)
        return ending

    def _tell(self, reason: str) -> None:
        """Once, however often it is tried."""
        if reason != self._told:
            self._told = reason
            logger.warning("loglet %d: not recovered yet: %s", self._log, reason)
