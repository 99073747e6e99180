"""Trim chained loglets as far as their logs, once all replicas can be reached."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from loomlog.core.chained.messages import Interrupted, Trimmed
from loomlog.core.chained.trim import trim
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.chained.catalog import ChainedCatalog
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.epochs import Epochs
from loomlog.metadata.chained.nodes import LOOK_S
from loomlog.metadata.chained.record import ChainedRecord
from loomlog.metadata.work.background import Background
from loomlog.metadata.work.retry_loop import Progress, RetryLoop
from loomlog.types import Glsn, LogId

logger = logging.getLogger(__name__)


class Trimming:
    """Trims the loglets of logs that were trimmed, as soon as all replicas can be reached."""

    def __init__(
        self,
        catalog: Catalog,
        chained: ChainedCatalog,
        driver: Driver,
        epochs: Epochs,
        background: Background,
    ) -> None:
        self._catalog = catalog
        self._chained = chained
        self._driver = driver
        self._epochs = epochs
        self._work = RetryLoop("trim of segment", self._step, background)

    def look(self, record: ChainedRecord) -> None:
        if not self._is_done(record):
            self._work.wake(record.loglet)

    async def done(self, log_id: LogId) -> None:
        """Wait until all segments of a log are trimmed as far as it is."""
        while not all(map(self._is_done, self._chained.of_log(log_id))):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    def _is_done(self, record: ChainedRecord) -> bool:
        return self._target(record) <= record.trimmed

    def _target(self, record: ChainedRecord) -> Glsn:
        return self._catalog.trim_target(record) if record.begun else 0

    async def _step(self, loglet: LogId) -> Progress:
        record = self._chained.get(loglet)
        if record is None or self._is_done(record) or loglet in self._epochs.unfinished:
            return Progress.IDLE
        target = self._target(record)
        outcome = await self._driver.drive(loglet, trim(record.projection, target))
        if isinstance(outcome, Trimmed):
            await self._chained.change(loglet, lambda record: replace(record, trimmed=target))
            logger.info("segment %d is trimmed up to position %d", loglet, target)
            return Progress.DONE
        if isinstance(outcome, Interrupted):
            logger.info("segment %d is not trimmed yet: %s", loglet, outcome.reason)
        return Progress.FAILED
