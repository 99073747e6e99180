"""Recovers the epochs of a log before the newest one, and retries until it succeeds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from loomlog.core.backoff import Backoff
from loomlog.core.copyset.messages import Preempted, Release
from loomlog.core.copyset.nodeset import Exclusions
from loomlog.core.copyset.record import Epoch, make
from loomlog.core.copyset.recovery import NotRecovered, Recovered, Recovery
from loomlog.node.copyset.asker import Asker
from loomlog.node.copyset.epoch_store import Known
from loomlog.node.workers import insist
from loomlog.types import LogId, NodeId

logger = logging.getLogger(__name__)

RETRY: Final = Backoff(0.05, 0.5)


async def recover(
    log: LogId,
    epoch: Epoch,
    asker: Asker,
    now_us: Callable[[], int],
    is_over: Callable[[], bool],
    down: Callable[[], Collection[NodeId]],
) -> Recovered | Preempted | None:
    """Recover all epochs before `epoch`, on the node that took it, if necessary without the nodes
    that are `down`. Return None once `is_over` returns True."""
    recovery, reported = Recovery(log, epoch), ""

    async def attempt() -> Recovered | Preempted | NotRecovered | None:
        nonlocal reported
        if is_over():
            return NotRecovered("it is over")
        now_s = asyncio.get_running_loop().time()
        steps = recovery.attempt(asker.authorities(log), now_us(), down(), now_s)
        ending = await asker.run(steps)
        if not isinstance(ending, NotRecovered):
            return ending
        if ending.reason != reported:  # once per reason, despite retries
            reported = ending.reason
            logger.warning("loglet %d: not recovered yet: %s", log, reported)
        return None

    ending: Recovered | Preempted | NotRecovered = await insist(attempt, RETRY)
    if isinstance(ending, NotRecovered):
        return None
    if isinstance(ending, Recovered):
        logger.info("loglet %d: recovered, epoch %d continues", log, epoch)
    return ending


class ClosedLogs:
    """The recoveries of closed logs, which have no sequencer to recover them."""

    def __init__(
        self,
        asker: Asker,
        exclusions: Exclusions,
        now_us: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, bool]], asyncio.Task[bool]],
    ) -> None:
        self._asker = asker
        self._exclusions = exclusions
        self._now_us = now_us
        self._spawn = spawn
        # A recovery that is no longer listed ends, because its log was deleted.
        self._running: dict[tuple[LogId, Epoch], asyncio.Task[bool]] = {}

    async def recover(self, known: Known) -> bool:
        """Recover the epochs before the last one; return False if this has become impossible.
        Concurrent calls share the recovery."""
        key = (known.log, known.state.epoch)
        if key not in self._running:
            self._running[key] = self._spawn(self._recover(known, key))
        return await asyncio.shield(self._running[key])

    def forget(self, log: LogId) -> None:
        """Called when a log is deleted."""
        for key in [key for key in self._running if key[0] == log]:
            del self._running[key]

    async def _recover(self, known: Known, key: tuple[LogId, Epoch]) -> bool:
        log, epoch = key
        try:
            ending = await recover(
                log,
                epoch,
                self._asker,
                self._now_us,
                lambda: key not in self._running,
                lambda: self._exclusions.down,
            )
        finally:
            self._running.pop(key, None)
        if not isinstance(ending, Recovered):
            return False
        for shard in known.state.all_shards:
            self._asker.release(shard, Release(log, make(epoch, 0)))
        return True
