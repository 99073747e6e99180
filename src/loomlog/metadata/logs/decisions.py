"""Trims the log of decisions on transactions when no entry needs them (core/transactions.py).

The MetaStore has the enlisted logs, and one mark at a time. The mark is written after its tails, so
after a crash in between there is no mark, and another one is made. Only one thing depends on time:
a writer whose transaction has failed may still append a late part, which never counts, but readers
could not know this without its decision. So the tails are read when no writer can be late any more.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Final

from loomlog.core.requests import drive
from loomlog.core.transactions import DECISIONS_LOG, Mark, MarkStep, Outlast, Settle, make_mark
from loomlog.errors import LoomError, NotLeader
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.logs.admin import Admin
from loomlog.metadata.logs.log_notes import LogNotes
from loomlog.metadata.protocol import Keepers
from loomlog.metadata.store.contract import MetaStore
from loomlog.types import Glsn, LogId

logger = logging.getLogger(__name__)

PREFIX: Final = "decisions/"
LATE_S: Final = 2 * 3600.0  # twice as long as a transaction may take


@dataclass(frozen=True, slots=True)
class DecisionNote:
    """A log that takes part in transactions, or the log of decisions."""

    through: Glsn = 0  # of the log of decisions: the mark; of the others: their tails at the mark


class DecisionTrimmer:
    """Records the logs that take part in transactions, and trims decisions, during a term."""

    def __init__(
        self,
        store: MetaStore,
        catalog: Catalog,
        keepers: Keepers,
        admin: Admin,
        *,
        interval_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._catalog = catalog
        self._keepers = keepers
        self._admin = admin
        self._interval_s = interval_s
        self._notes = LogNotes(store, PREFIX, DecisionNote)
        self._writing = asyncio.Lock()

    async def enlist(self, name: str) -> None:
        """Record that a log may have entries of transactions from now on."""
        log_id = self._catalog.log(name).log_id
        async with self._writing:
            if log_id not in await self._notes.all():
                await self._notes.write(log_id, DecisionNote())

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.look()
            except NotLeader:
                raise
            except LoomError as error:
                logger.info("decisions on transactions stay for now: %s", error)
            except Exception:  # the next attempt may succeed
                logger.exception("decisions on transactions")

    async def look(self) -> None:
        """Trim the decisions up to the mark if no entry needs them; make a mark if there is
        none."""
        async with self._writing:
            await self._notes.keep_only({log.log_id for log in self._catalog.logs.values()})
        log = self._catalog.logs.get(DECISIONS_LOG)
        if log is None or log.unfinished:
            return
        tails = {log_id: note.through for log_id, note in (await self._notes.all()).items()}
        mark = Mark(tails.pop(log.log_id, 0), tails)
        if not mark.through:
            await self._mark(log)
        elif not mark.is_needed(self._trimmed()):
            await self._admin.trim_old(log.name, mark.through)
            await self._note(log.log_id, 0)

    def _trimmed(self) -> dict[LogId, Glsn]:
        return {log.log_id: log.trimmed for log in self._catalog.logs.values()}

    async def _mark(self, log: LogRecord) -> None:
        """Mark the existing decisions, unless there are none, or nodes are away. This takes hours,
        in which nothing can be trimmed."""
        keeper = self._keepers.active(log)
        if keeper.known_tail(log, log.layout.active) <= log.trimmed or keeper.conditions(log):
            return

        async def carry_out(step: MarkStep) -> Any:
            if isinstance(step, Settle):
                return await self._settle()
            return await (self._outlast() if isinstance(step, Outlast) else self._find_tails())

        mark = await drive(make_mark(), carry_out)
        for log_id, tail in mark.tails.items():
            await self._note(log_id, tail)
        await self._note(log.log_id, mark.through)

    async def _settle(self) -> Glsn:
        async with self._catalog.lock(DECISIONS_LOG):  # it is not being switched
            log = self._catalog.log(DECISIONS_LOG)
            return await self._keepers.active(log).settle(log, log.layout.active)

    async def _outlast(self) -> None:
        begun_s = self._loop.time()
        while self._loop.time() - begun_s < LATE_S:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(self._interval_s)

    async def _find_tails(self) -> dict[LogId, Glsn]:
        enlisted, logs = await self._notes.all(), self._catalog.logs.values()
        parts = [log for log in logs if log.log_id in enlisted and log.name != DECISIONS_LOG]
        found = await asyncio.gather(*map(self._keepers.find_tail, parts))
        return {log.log_id: tail for log, tail in zip(parts, found, strict=True)}

    async def _note(self, log_id: LogId, through: Glsn) -> None:
        async with self._writing:
            await self._notes.write(log_id, DecisionNote(through))
