"""Retention: periodically trim entries that are older than the retention of their log, or that are
followed by more bytes than it has to keep.

By age, an entry is deleted when it and all entries before it are old enough, by their timestamps
and their time of arrival (arrivals.py): perhaps later, never earlier. The time does not depend on a
single clock (clocks.py). Sizes (sizes.py) need no clock. In doubt, entries are kept: if a replica
does not answer, if a segment's protocol cannot find a time or measure a size, or if a log's archive
lacks the entries; if that lasts, it is a condition of the log. Logs are processed concurrently, so
that none waits for another. A log for which rows are staged is trimmed by its writers
(client/publish/publications.py), which ask here what may be trimmed: only they know what they need.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from loomlog import staging_logs
from loomlog.archive import record as archive
from loomlog.core.conditions import Condition, Kind
from loomlog.core.requests import drive
from loomlog.core.retention import FindTime, last_expired
from loomlog.errors import InvalidArgument, LoomError, NotLeader, Timeout
from loomlog.metadata.background import UNEXPECTED, Background
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.logs.admin import Admin, check_retention
from loomlog.metadata.logs.arrivals import Arrivals
from loomlog.metadata.logs.sizes import Sizes
from loomlog.metadata.protocol import Keepers
from loomlog.metadata.registers import ClusterRegisters
from loomlog.types import Glsn, LogId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

FindLast: TypeAlias = Callable[[LogRecord], Awaitable[Glsn]]

LOOK_AGAIN: Final = 0.01  # of a log's retention: entries may stay this much longer
LOGS_AT_ONCE: Final = 64  # each asks its nodes a few questions
FIND_TIMEOUT_S: Final = 60.0  # far longer than a few of them take
WAITS_S: Final = 60.0  # a log that is not trimmed for longer than this, and than a few passes
_LOOKS: Final = 3


class _Trouble(NamedTuple):
    """The reason why a log cannot be trimmed."""

    since_s: float  # on the loop's clock
    why: str


class RetentionTrimmer:
    """Trims the logs of a term by age and size, in the background."""

    def __init__(
        self,
        catalog: Catalog,
        admin: Admin,
        registers: ClusterRegisters,
        keepers: Keepers,
        background: Background,
        arrivals: Arrivals,
        sizes: Sizes,
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
        self._background = background
        self._arrivals = arrivals
        self._sizes = sizes
        self._oldest_kept_us = oldest_kept_us
        self._interval_s = interval_s
        self._due: dict[LogId, float] = {}  # look for old entries not before; on the loop's clock
        self._room = asyncio.Semaphore(LOGS_AT_ONCE)
        self._looking: set[LogId] = set()
        self._troubles: dict[LogId, _Trouble] = {}
        # Held while trimming a log or changing its retention.
        self._changing: WeakValueDictionary[LogId, asyncio.Lock] = WeakValueDictionary()

    async def set(self, request: pb.SetRetention) -> LogRecord:
        """Change the retention of a log."""
        log = self._catalog.log(request.name)
        if staging_logs.staged_log(log.name) is not None:
            raise InvalidArgument(
                f"{log.name!r} is a staging log: its rows go with the log that they are for"
            )
        check_retention(request)
        changes = {name: getattr(request, name) for name in _SETTINGS if request.HasField(name)}
        async with self._lock(log):  # a trim by the old one is over when this is answered
            self._due.pop(log.log_id, None)
            return await self._catalog.set_retention(log.name, **changes)

    def _lock(self, log: LogRecord) -> asyncio.Lock:
        return self._changing.setdefault(log.log_id, asyncio.Lock())

    def conditions(self, log: LogRecord) -> list[Condition]:
        """Return that old entries stay, if they do for long."""
        trouble = self._troubles.get(log.log_id)
        if trouble is None or not self._is_ours(log):
            return []
        waits_s = self._loop.time() - trouble.since_s
        if waits_s < max(WAITS_S, _LOOKS * self._interval_s):
            return []
        text = f"old entries stay, because it is not known which are: {trouble.why}"
        return [Condition(Kind.RETENTION_WAITS, text, log=log.name)]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self._begin_looks()
            except NotLeader:
                raise
            except Exception:  # the next time may be better
                logger.exception("retention")

    async def _begin_looks(self) -> None:
        """Begin to look at the logs that are due, but for those that are still looked at."""
        await self._arrivals.note()
        await self._sizes.forget_others()
        for log in self._due_logs():
            if log.log_id not in self._looking:
                await self._room.acquire()
                self._looking.add(log.log_id)
                self._background.spawn(self._look_in_room(log), f"retention of {log.name!r}")

    async def trim_all(self) -> None:
        """Trim the logs that are due."""
        await asyncio.gather(*map(self._look, self._due_logs()))

    def _due_logs(self) -> Iterator[LogRecord]:
        now = self._loop.time()
        self._due = {log_id: at for log_id, at in self._due.items() if at > now}
        known = {log.log_id for log in self._catalog.logs.values()}
        self._troubles = {each: why for each, why in self._troubles.items() if each in known}
        for name in list(self._catalog.logs):
            log = self._catalog.logs.get(name)  # its newest record
            if log is None or not self._is_ours(log):
                continue
            if log.log_id not in self._due or log.retention_bytes:
                yield log

    async def _look_in_room(self, log: LogRecord) -> None:
        try:
            await self._look(log)
        finally:
            self._looking.discard(log.log_id)
            self._room.release()

    async def _look(self, log: LogRecord) -> None:
        begun_s, is_due = self._loop.time(), log.log_id not in self._due
        by_size = await self._trim(log, self._sizes.last_surplus) if log.retention_bytes else ""
        by_age = await self._trim(log, self._last_too_old) if is_due else ""
        if not self._is_as_it_was(log):
            return
        if is_due and not (by_age or by_size):
            self._due[log.log_id] = begun_s + LOOK_AGAIN * log.retention_s
        if why := by_age or by_size:
            since_s = self._troubles.get(log.log_id, _Trouble(begun_s, "")).since_s
            self._troubles[log.log_id] = _Trouble(since_s, why)
        else:
            self._troubles.pop(log.log_id, None)

    def _is_as_it_was(self, log: LogRecord) -> bool:
        """Return False if the log was deleted or its retention has changed."""
        now = self._catalog.logs.get(log.name)
        return now is not None and _wishes(now) == _wishes(log)

    def _is_ours(self, log: LogRecord) -> bool:
        staged = staging_logs.staging_name(log.name) in self._catalog.logs
        return _is_limited(log) and not log.unfinished and not staged

    async def _trim(self, asked: LogRecord, find: FindLast) -> str:
        """Trim a log by one of the rules; return why that is impossible, or "". The other rule may
        have trimmed it just before."""
        log = self._catalog.logs.get(asked.name)
        if log is None or not self._is_as_it_was(asked):
            return ""
        try:
            position = min(await self._found(find(log)), await self._last_archived(log))
            async with self._lock(log):
                if position > log.trimmed and self._is_as_it_was(log):
                    await self._admin.trim_old(log.name, position)
        except NotLeader:
            raise
        except LoomError as error:
            logger.info("log %r keeps old entries for now: %s", log.name, error)
            return str(error)
        except Exception:  # it is retried
            logger.exception("log %r keeps old entries for now", log.name)
            return UNEXPECTED
        return ""

    async def _found(self, finding: Awaitable[Glsn]) -> Glsn:
        try:
            async with asyncio.timeout(FIND_TIMEOUT_S):
                return await finding
        except TimeoutError:
            raise Timeout(
                f"its nodes did not say within {FIND_TIMEOUT_S:g} s: look at their logs"
            ) from None

    async def find_expired(self, name: str) -> Glsn:
        """Return the position up to which a log may be trimmed now; 0: none."""
        log = self._catalog.log(name)
        if not _is_limited(log):
            return 0
        surplus = await self._sizes.last_surplus(log) if log.retention_bytes else 0
        try:
            old = await self._last_too_old(log)
        except LoomError:
            if surplus <= log.trimmed:
                raise
            old = 0
        return min(max(surplus, old), await self._last_archived(log))

    async def _last_too_old(self, log: LogRecord) -> Glsn:
        if not log.retention_s:
            return 0
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
        """Return the position up to which a log's archive, if it has one, allows a trim."""
        request = pb.GetRegister(name=archive.register_name(log.name))
        found = await self._registers.get(request)
        if found.version:
            info = archive.decode(found.value, log.name)
            if info.log_id == log.log_id:
                return info.through
        return _ALL


def _wishes(log: LogRecord) -> tuple[int, ...]:
    return log.log_id, log.retention_s, log.retention_bytes


def _is_limited(log: LogRecord) -> bool:
    return bool(log.retention_s or log.retention_bytes)


_ALL: Final = (1 << 63) - 1
_SETTINGS: Final = ("retention_s", "retention_bytes")
