"""Chained loglets are trimmed as far as their logs are, on all replicas: when all are there."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from loomlog.core.chained.outcomes import Interrupted, Trimmed
from loomlog.core.chained.trimming import trim
from loomlog.metadata.background import Background
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.chained.catalog import ChainedCatalog
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.epochs import Epochs
from loomlog.metadata.chained.nodes import LOOK_S
from loomlog.metadata.insisting import Insisting, Progress
from loomlog.metadata.records import ChainedRecord
from loomlog.types import Glsn, LogId

logger = logging.getLogger(__name__)


class Trimming:
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
        self._work = Insisting("trim of segment", self._step, background)

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
        """How far it is to be trimmed; 0: nothing of it."""
        log = self._catalog.log_of(record)
        segment = None if log is None else log.segment_of(record.loglet)
        if log is None or segment is None or not record.begun or log.trimmed < segment.start:
            return 0
        return log.trimmed if segment.end is None else min(log.trimmed, segment.end)

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
