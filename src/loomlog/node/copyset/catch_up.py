"""Catching up with logs that went on without this node: how epochs ended, and how far logs are
released."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from loomlog.core.backoff import Backoff
from loomlog.core.copyset.messages import Done, NodeAnswer, Release
from loomlog.core.copyset.procedures import Purged, purge
from loomlog.core.copyset.record import Epoch, Lsn, make
from loomlog.core.copyset.storage import epoch_to_purge
from loomlog.errors import LoomError
from loomlog.node.copyset.copies import Copies, Spawn
from loomlog.node.copyset.epoch_store import EpochStore
from loomlog.node.copyset.procedures import Asker
from loomlog.types import LogId, NodeId

logger = logging.getLogger(__name__)

RETRY: Final = Backoff(0.05, 2.0)
RELEASE_S: Final = 20.0  # as often as sequencers tell nodes that get no records


class CatchUp:
    """Catches up with all logs of one node."""

    def __init__(
        self, me: NodeId, copies: Copies, asker: Asker, epochs: EpochStore, spawn: Spawn
    ) -> None:
        self._me = me
        self._copies = copies
        self._asker = asker
        self._epochs = epochs
        self._spawn = spawn
        self._missed: dict[LogId, Lsn] = {}  # released elsewhere, of logs that are caught up with
        self._look_at: dict[LogId, float] = {}  # when to ask again, by the loop's clock

    # ---- epochs that were recovered without this node

    def released(self, release: Release, answer: NodeAnswer) -> None:
        """Called with the answer to every release. If an older epoch was recovered without this
        node, it must learn how that ended, and repeat the release."""
        standing = self._copies.standing(release.log)
        if isinstance(answer, Done) and epoch_to_purge(release.lsn, standing) is not None:
            self.missed(release.log, release.lsn)

    def missed(self, log: LogId, lsn: Lsn) -> None:
        """Catch up: the log is released up to this LSN, but not here."""
        is_under_way = log in self._missed
        self._missed[log] = max(lsn, self._missed.get(log, 0))
        if not is_under_way:
            self._spawn(self._purge(log))

    async def _purge(self, log: LogId) -> None:
        failures = 0
        try:
            while (epoch := self._epoch_to_purge(log)) is not None:
                outcome = await self._asker.run(purge(log, epoch, self._me))
                if isinstance(outcome, Purged):
                    failures = 0
                    continue
                logger.info("loglet %d, epoch %d: %s", log, epoch, outcome.reason)
                await asyncio.sleep(RETRY.delay_s(failures))
                failures += 1
        finally:
            lsn = self._missed.pop(log, None)
        if lsn is not None:
            self._release_here(log, lsn)

    def _release_here(self, log: LogId, lsn: Lsn) -> None:
        release = Release(log, lsn)
        self._copies.ask_store(release, partial(self.released, release))

    def _epoch_to_purge(self, log: LogId) -> Epoch | None:
        """Return the next epoch to learn about; None: nothing is left to do, or the log is gone."""
        lsn = self._missed.get(log)
        return None if lsn is None else epoch_to_purge(lsn, self._copies.standing(log))

    # ---- releases

    def somebody_reads(self, log: LogId) -> None:
        """Ask now and then how far the log is recovered: it may have been released while this node
        was away, and all that is recovered may be shown."""
        now = asyncio.get_running_loop().time()
        if now >= self._look_at.get(log, now):
            self._look_at[log] = now + RELEASE_S
            self._spawn(self._release(log))

    def forget(self, log: LogId) -> None:
        self._missed.pop(log, None)
        self._look_at.pop(log, None)

    async def _release(self, log: LogId) -> None:
        try:
            known = await self._epochs.get(log, RELEASE_S)
        except LoomError as error:
            logger.debug("loglet %d: how far it is recovered is not known: %s", log, error)
            self._look_at.pop(log, None)
            return
        lsn = make(known.state.last_clean + 1, 0)
        if lsn > self._copies.standing(log).released:
            self._release_here(log, lsn)
