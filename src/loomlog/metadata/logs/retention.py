"""Retention: trim entries that are older than the retention of their log, periodically.

An entry is deleted when it and all before it are that old, by their timestamps and by when they
arrived (arrivals.py): perhaps later, never earlier. Entries are kept whenever there is doubt: if a
replica does not answer, a segment's protocol cannot say where a time begins, or a log's archive
lacks them. The time is not taken from a single clock (clocks.py). A log that rows are staged for is
trimmed by its writers (client/publish/publications.py), which ask here what is too old: only they
know what they still need.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from loomlog import staging_logs
from loomlog.archive import record as archive
from loomlog.core.requests import drive
from loomlog.core.retention import FindTime, last_expired
from loomlog.errors import InvalidArgument, LoomError, NotLeader
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.logs.admin import Admin, check_retention
from loomlog.metadata.logs.arrivals import Arrivals
from loomlog.metadata.protocol import Keepers
from loomlog.metadata.registers import ClusterRegisters
from loomlog.types import Glsn, LogId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

LOOK_AGAIN: Final = 0.01  # of a log's retention: entries may stay this much longer


class RetentionTrimmer:
    """Trims the logs of a term by age, in the background."""

    def __init__(
        self,
        catalog: Catalog,
        admin: Admin,
        registers: ClusterRegisters,
        keepers: Keepers,
        arrivals: Arrivals,
        oldest_kept_us: Callable[[int], int],
        *,
        interval_s: float,
    ) -> None:
        """`oldest_kept_us`: the time from which on entries of a retention are kept."""
        self._loop = asyncio.get_running_loop()
        self._catalog = catalog
        self._admin = admin
        self._registers = registers
        self._keepers = keepers
        self._arrivals = arrivals
        self._oldest_kept_us = oldest_kept_us
        self._interval_s = interval_s
        self._due: dict[LogId, float] = {}  # not before; on the loop's clock
        self._changing = asyncio.Lock()  # held while trimming or changing a retention

    async def set(self, request: pb.SetRetention) -> LogRecord:
        """Change the retention of a log."""
        log = self._catalog.log(request.name)
        if staging_logs.staged_log(log.name) is not None:
            raise InvalidArgument(
                f"{log.name!r} is a staging log: its rows go with the log that they are for"
            )
        check_retention(log.name, request.retention_s)
        async with self._changing:  # a trim by the old one is over when this is answered
            self._due.pop(log.log_id, None)
            return await self._catalog.set_retention(log.name, request.retention_s)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._arrivals.note()
            await self.trim_all()

    async def trim_all(self) -> None:
        """Trim the logs that are due, one after the other."""
        now = self._loop.time()
        self._due = {log_id: at for log_id, at in self._due.items() if at > now}
        for name in list(self._catalog.logs):
            log = self._catalog.logs.get(name)  # its newest record
            if log is None or log.log_id in self._due or not self._is_ours(log):
                continue
            if await self._trimmed(log) and self._is_as_it_was(log):
                self._due[log.log_id] = now + LOOK_AGAIN * log.retention_s

    def _is_as_it_was(self, log: LogRecord) -> bool:
        """Return False if the log was deleted or its retention changed since."""
        now = self._catalog.logs.get(log.name)
        return now is not None and (now.log_id, now.retention_s) == (log.log_id, log.retention_s)

    def _is_ours(self, log: LogRecord) -> bool:
        staged = staging_logs.staging_name(log.name) in self._catalog.logs
        return bool(log.retention_s) and not log.unfinished and not staged

    async def _trimmed(self, log: LogRecord) -> bool:
        """Trim a log; return False to try again soon, if it is unknown what is too old."""
        try:
            position = await self._last_expired(log)
            async with self._changing:
                if position > log.trimmed and self._is_as_it_was(log):
                    await self._admin.trim_old(log.name, position)
        except NotLeader:
            raise
        except LoomError as error:
            logger.info("log %r keeps old entries for now: %s", log.name, error)
            return False
        except Exception:  # the other logs must not wait for it
            logger.exception("log %r keeps old entries for now", log.name)
            return False
        return True

    async def find_expired(self, name: str) -> Glsn:
        """Return up to where a log may be trimmed now; 0: nothing may go."""
        log = self._catalog.log(name)
        return await self._last_expired(log) if log.retention_s else 0

    async def _last_expired(self, log: LogRecord) -> Glsn:
        return min(await self._last_to_go(log), await self._last_archived(log))

    async def _last_to_go(self, log: LogRecord) -> Glsn:
        timestamp_us = self._oldest_kept_us(log.retention_s)
        arrived = await self._arrivals.arrived_by(log, timestamp_us)
        if arrived <= log.trimmed:
            return log.trimmed

        async def find(asked: FindTime) -> Glsn:
            segment, first = asked
            keeper = self._keepers.of(segment.settings.protocol)
            return await keeper.find_time(log, segment, timestamp_us, first)

        return min(arrived, await drive(last_expired(log.segments, log.trimmed), find))

    async def _last_archived(self, log: LogRecord) -> Glsn:
        """Return up to where a log may be trimmed for its archive, if it has one."""
        request = pb.GetRegister(name=archive.register_name(log.name))
        found = await self._registers.get(request)
        if found.version:
            info = archive.decode(found.value, log.name)
            if info.log_id == log.log_id:
                return info.through
        return _ALL


_ALL: Final = (1 << 63) - 1
