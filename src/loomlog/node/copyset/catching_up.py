"""What a node learns of logs that went on without it: how epochs ended, and how far logs are
released."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from loomlog.core.copyset.lsn import Epoch, Lsn, make
from loomlog.core.copyset.messages import NodeAnswer, Release
from loomlog.core.copyset.purging import Purged, purge
from loomlog.core.copyset.storage import epoch_to_purge
from loomlog.errors import LoomError
from loomlog.node.copyset.asking import Asker
from loomlog.node.copyset.copies import Copies
from loomlog.node.copyset.epoch_store import EpochStore
from loomlog.types import LogId, NodeId

logger = logging.getLogger(__name__)

PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
RELEASE_S: Final = 20.0  # as often as sequencers tell nodes that get no records

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class CatchingUp:
    """Of one node, with all its logs."""

    def __init__(
        self, me: NodeId, copies: Copies, asker: Asker, epochs: EpochStore, spawn: Spawn
    ) -> None:
        self._me = me
        self._copies = copies
        self._asker = asker
        self._epochs = epochs
        self._spawn = spawn
        self._missed: dict[LogId, Lsn] = {}  # released, but not here; of those under way
        self._looked: dict[LogId, float] = {}  # when the release was asked for, by the loop's clock

    # ---- epochs that were recovered without this node

    def missed(self, log: LogId, lsn: Lsn) -> None:
        """Up to here the log is released, but not here."""
        is_under_way = log in self._missed
        self._missed[log] = max(lsn, self._missed.get(log, 0))
        if not is_under_way:
            self._spawn(self._purge(log))

    async def _purge(self, log: LogId) -> None:
        pause_s = PAUSE_FIRST_S
        try:
            while (epoch := self._epoch_to_purge(log)) is not None:
                outcome = await self._asker.run(purge(log, epoch, self._me, {}))
                if isinstance(outcome, Purged):
                    pause_s = PAUSE_FIRST_S
                    continue
                logger.info("loglet %d, epoch %d: %s", log, epoch, outcome.reason)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
        finally:
            lsn = self._missed.pop(log, None)
        if lsn is not None:
            self._copies.ask(Release(log, lsn), _ignore)

    def _epoch_to_purge(self, log: LogId) -> Epoch | None:
        """None: nothing is left to do, or the log is gone."""
        lsn = self._missed.get(log)
        return None if lsn is None else epoch_to_purge(lsn, self._copies.standing(log))

    # ---- releases

    def somebody_reads(self, log: LogId) -> None:
        """Who released what is recovered may have done so while this node was away, or this node
        forgot it: all that is recovered may be shown, whoever says so."""
        now = asyncio.get_running_loop().time()
        if now >= self._looked.get(log, now):
            self._looked[log] = now + RELEASE_S
            self._spawn(self._release(log))

    def forget(self, log: LogId) -> None:
        self._missed.pop(log, None)
        self._looked.pop(log, None)

    async def _release(self, log: LogId) -> None:
        try:
            known = await self._epochs.get(log, RELEASE_S)
        except LoomError as error:
            logger.debug("loglet %d: how far it is recovered is not known: %s", log, error)
            self._looked.pop(log, None)
            return
        lsn = make(known.state.last_clean + 1, 0)
        if lsn > self._copies.standing(log).released:
            self._copies.ask(Release(log, lsn), _ignore)


def _ignore(answer: NodeAnswer) -> None:
    pass
