"""Retention: entries that are older than their log wants are trimmed, now and then.

An entry goes when it and all before it are that old by their timestamps, never earlier; that it
goes later is nothing bad. So whatever is in doubt stays: a replica that does not answer, a segment
whose protocol cannot say where a time begins, what a log's archive does not have yet. A log that
rows are staged for is left to its writers (client/retaining.py): only they know what it needs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from loomlog import staging_logs
from loomlog.archive import record as archive
from loomlog.core.segments import Segment
from loomlog.errors import InvalidArgument, LoomError, NotLeader
from loomlog.metadata.admin import Admin, check_retention
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.records import LogRecord
from loomlog.metadata.registers import Registers
from loomlog.types import Glsn, LogId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

LOOK_AGAIN: Final = 0.01  # of a log's retention: entries stay so much longer, and no more


class TimeFinder(Protocol):
    """What a protocol does for retention."""

    async def find_time(
        self, log: LogRecord, segment: Segment, timestamp_us: int, first: Glsn
    ) -> Glsn:
        """A position, from `first` on, before which all of the segment is older; of all that was
        appended before this was asked. Any LoomError: not to be known now."""


class Retention:
    def __init__(
        self,
        catalog: Catalog,
        admin: Admin,
        registers: Registers,
        finders: Mapping[str, TimeFinder],
        *,
        now_s: Callable[[], float],
        interval_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._catalog = catalog
        self._admin = admin
        self._registers = registers
        self._finders = finders
        self._now_s = now_s
        self._interval_s = interval_s
        self._due: dict[LogId, float] = {}  # not before; on the loop's clock

    async def set(self, request: pb.SetRetention) -> LogRecord:
        """From now on."""
        log = self._catalog.log(request.name)
        if staging_logs.staged_log(log.name) is not None:
            raise InvalidArgument(
                f"{log.name!r} is a staging log: its rows go with the log that they are for"
            )
        check_retention(log.name, request.retention_s)
        self._due.pop(log.log_id, None)
        return await self._catalog.set_retention(log.name, request.retention_s)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.trim_all()

    async def trim_all(self) -> None:
        """One log after the other, those that are due."""
        now = self._loop.time()
        self._due = {log_id: at for log_id, at in self._due.items() if at > now}
        for name in list(self._catalog.logs):
            log = self._catalog.logs.get(name)  # as it is when its turn comes
            if log is None or log.log_id in self._due or not self._is_ours(log):
                continue
            if await self._trimmed(log) and self._retention_of(name) == log.retention_s:
                self._due[log.log_id] = now + LOOK_AGAIN * log.retention_s

    def _retention_of(self, name: str) -> int | None:
        """As it is now: somebody may have changed it."""
        log = self._catalog.logs.get(name)
        return log.retention_s if log else None

    def _is_ours(self, log: LogRecord) -> bool:
        staged = staging_logs.staging_name(log.name) in self._catalog.logs
        return bool(log.retention_s) and not log.creating and not staged

    async def _trimmed(self, log: LogRecord) -> bool:
        """False: it could not be found out what is too old, or not be trimmed; soon again."""
        try:
            position = min(await self._last_to_go(log), await self._last_archived(log))
            if position > log.trimmed and self._catalog.log(log.name).log_id == log.log_id:
                await self._admin.trim_old(log.name, position)
        except NotLeader:
            raise
        except LoomError as error:
            logger.info("log %r keeps old entries for now: %s", log.name, error)
            return False
        except Exception:  # the other logs must not wait for its sake
            logger.exception("log %r keeps old entries for now", log.name)
            return False
        return True

    async def _last_to_go(self, log: LogRecord) -> Glsn:
        """Up to it everything is too old."""
        timestamp_us = int((self._now_s() - log.retention_s) * 1_000_000)
        kept_from = log.trimmed + 1
        for segment in log.chain.segments:
            if segment.end is not None and kept_from > segment.end:
                continue
            finder = self._finders.get(segment.settings.protocol)
            if finder is None:
                break
            first = max(segment.start, kept_from)
            kept_from = await finder.find_time(log, segment, timestamp_us, first)
            if segment.end is None or kept_from <= segment.end:
                break
        return kept_from - 1

    async def _last_archived(self, log: LogRecord) -> Glsn:
        """What an archive will want is not trimmed before it is there."""
        request = pb.GetRegister(name=archive.register_name(log.name))
        found = await self._registers.get(request)
        if found.version:
            info = archive.decode(found.value, log.name)
            if info.log_id == log.log_id:
                return info.through
        return _ALL


_ALL: Final = (1 << 63) - 1
