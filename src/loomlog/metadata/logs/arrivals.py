"""Marks of the tail of each log at given times (core/arrivals.py), stored in the MetaStore.

They are made whenever retention runs, also for logs without retention, because it may be set later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from loomlog.core.arrivals import Mark, Marks, arrived_by, is_due, marked
from loomlog.errors import LoomError, NotLeader
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.logs.log_notes import LogNotes
from loomlog.metadata.protocol import Keepers
from loomlog.metadata.store.contract import MetaStore
from loomlog.types import Glsn

logger = logging.getLogger(__name__)

EVERY: Final = 0.01  # of a log's retention: entries may seem this much younger
EVERY_S: Final = 3600  # of logs without one
_PREFIX: Final = "arrivals/"
_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ArrivalsRecord:
    """The marks of a log."""

    marks: Marks = ()

    def __post_init__(self) -> None:
        """Convert the plain tuples of a stored record."""
        object.__setattr__(self, "marks", tuple(Mark(*each) for each in self.marks))


class Arrivals:
    """The marks of all logs of a term."""

    def __init__(
        self,
        store: MetaStore,
        catalog: Catalog,
        keepers: Keepers,
        latest_us: Callable[[], int | None],
    ) -> None:
        """`latest_us` returns a time that is not earlier than now, or None if it is unknown."""
        self._catalog = catalog
        self._keepers = keepers
        self._latest_us = latest_us
        self._notes = LogNotes(store, _PREFIX, ArrivalsRecord)

    async def arrived_by(self, log: LogRecord, time_us: int) -> Glsn:
        """Return the position up to which a log had arrived at a time; 0: none is known."""
        return arrived_by(await self._marks(log), time_us)

    async def note(self) -> None:
        """Mark the tails of all logs that are due, and forget deleted logs."""
        failures: list[LoomError] = []
        try:
            await self._notes.keep_only({log.log_id for log in self._catalog.logs.values()})
        except NotLeader:
            raise
        except LoomError as error:
            failures.append(error)
        for log in list(self._catalog.logs.values()):
            try:
                await self._note(log, await self._marks(log))
            except NotLeader:
                raise
            except LoomError as error:  # other logs must not wait for it
                failures.append(error)
        if failures:
            logger.info("cannot note now how far all logs reach: %s", failures[0])

    async def _note(self, log: LogRecord, marks: Marks) -> None:
        if log.unfinished or (now_us := self._latest_us()) is None:
            return
        mark = Mark(now_us, self._keepers.active(log).known_tail(log, log.layout.active))
        every_s = EVERY * log.retention_s if log.retention_s else EVERY_S
        if is_due(marks, mark, log.trimmed, int(every_s * _MICROSECONDS)):
            kept_s = log.retention_s or now_us // _MICROSECONDS
            oldest_kept_us = now_us - kept_s * _MICROSECONDS
            kept = marked(marks, mark, log.trimmed, oldest_kept_us)
            await self._notes.write(log.log_id, ArrivalsRecord(kept))

    async def _marks(self, log: LogRecord) -> Marks:
        return (await self._notes.all()).get(log.log_id, ArrivalsRecord()).marks
