"""Staging logs and writers of a client: how they are created, trimmed and deleted.

A reference names the first staged position that it and all later references need. So the first
reference kept decides how far the staging log can be trimmed; if there is none, the writers'
registers do. Publishing clients do this instead of the metadata repository
(metadata/logs/retention.py), because only clients read references. The metadata repository still
decides which entries are too old, since a client's clock may be wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from loomlog import limits
from loomlog.client.arguments import check_kind
from loomlog.client.context import Client, Retries
from loomlog.client.kv.leases import Lease
from loomlog.client.kv.registers import Registers
from loomlog.client.log_parts import LogParts
from loomlog.client.publish import writer_state
from loomlog.client.publish.stager import Stager
from loomlog.client.publish.writer import Registry, Writer, held_back, writers_prefix
from loomlog.client.subscribe.pieces import Piece, Referred
from loomlog.core.permissions import Verb
from loomlog.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    LoomError,
    NotFound,
    Trimmed,
    shown,
)
from loomlog.staging_logs import staged_log, staging_name
from loomlog.types import Glsn
from loomlog.wire.info import LogInfo

_WRITER_NAME_MAX: Final = 100  # the register's name consists of the log's name and this one


class Publications(Registers):
    """The stagers and writers of one client."""

    def __init__(
        self,
        client: Client,
        parts_of: Callable[[str], LogParts],
        make_staging_log: Callable[[str, LogInfo], Awaitable[None]],
    ) -> None:
        self._metadata = client.metadata
        self._rng = client.rng
        self._now_us = client.producer.now_us
        self.parts_of = parts_of
        self._make_staging_log = make_staging_log
        self._retention = Retention(self.trim)

    async def stager(self, log: LogParts) -> Stager:
        """Return a stager for one caller's rows, creating the staging log if needed."""
        info = await self._ensure_staging(log)
        active = info.active_streams
        running = [stream.id for stream in active if stream.state == "running"]
        stream = self._rng.choice(running or [stream.id for stream in active])
        return Stager(log.name, self.parts_of(info.name).appender, stream)

    async def writer(self, log: LogParts, name: str, lease: Lease | None = None) -> Writer:
        """Return an open writer: from now on, trims keep the rows staged for it."""
        if not isinstance(name, str) or not 1 <= len(name) <= _WRITER_NAME_MAX:
            raise InvalidArgument(
                f"a writer's name has 1 to {_WRITER_NAME_MAX} characters, not {shown(name)}"
            )
        if lease is not None:
            check_kind("lease", lease, Lease)
        await self._ensure_staging(log)
        writer = self._writer(log, name, lease)
        await writer.open()
        return writer

    def _writer(self, log: LogParts, name: str, lease: Lease | None = None) -> Writer:
        return Writer(log, name, self, self._rng, self._now_us, lease)

    async def published(self, log: LogParts) -> None:
        await self._retention.look_after(log)

    async def trim(self, log: LogParts, position: Glsn) -> None:
        """Trim the log and the staged rows that only the trimmed part needs."""
        try:
            await self.parts_of(staging_name(log.name)).cached.fetch(Verb.TRIM)
        except NotFound:
            await log.trim(position)  # nothing was ever staged
            return
        await self._settle_below(log, position)
        await log.trim(position)
        await trim_staged(log, self, self._now_us())

    async def _settle_below(self, log: LogParts, position: Glsn) -> None:
        """Finish publications that may be trimmed: a writer's register must record a reference as
        appended before the reference is trimmed."""
        prefix = writers_prefix(log.name)
        for name, found in (await self.registers(prefix)).items():
            intent = writer_state.decode(found.value).intent
            if intent is not None and intent.fixed.above < position:
                await self._writer(log, name.removeprefix(prefix)).sequence()

    async def forget_writers(self, log: str) -> None:
        """Delete the registers of all writers after their log was deleted."""
        for name, found in (await self.registers(writers_prefix(log))).items():
            try:
                await self.register(name).swap(None, found.version)
            except Conflict:
                pass  # in use by a new log of this name

    async def _ensure_staging(self, log: LogParts) -> LogInfo:
        if staged_log(log.name) is not None:
            raise InvalidArgument(f"{log.name!r} is a staging log: write to the log it is for")
        staging = self.parts_of(staging_name(log.name))
        retries = Retries(self._rng, limits.REQUEST_TIMEOUT_S)
        while True:
            try:
                return await staging.describe()
            except NotFound:
                like = await log.describe()
            try:
                await self._make_staging_log(staging.name, like)
            except AlreadyExists:  # another client is creating it
                if not await retries.pause():
                    raise


logger = logging.getLogger(__name__)

SEARCH_BYTES_MAX: Final = 64 * limits.MIB  # of batches before the first reference; then give up
_LOOK_AGAIN: Final = 0.01  # interval as a share of the retention, by which entries may outlive it


async def trim_staged(log: LogParts, registry: Registry, now_us: int) -> None:
    """Trim the staging log of `log` after that was trimmed."""
    staging = registry.parts_of(staging_name(log.name))
    staged = await staging.describe()
    # In this order, a concurrent publication is seen in its writer's register or in the log.
    kept_from = min((staged.reached + 1, *await held_back(registry, log.name, now_us)))
    needed_from = await _first_needed(log, kept_from)
    if needed_from - 1 >= staged.head:
        await staging.trim(needed_from - 1)


async def _first_needed(log: LogParts, otherwise: Glsn) -> Glsn:
    """Return the staged position that the first reference kept needs; 0 if it was not found."""
    info = await log.describe()
    if info.head > info.reached:
        return otherwise
    pieces = log.pieces.stored(info.head, info.tail)
    searched = 0
    try:
        while (piece := await pieces.next()) is not None:
            if isinstance(piece, Referred):
                return piece.reference.needed_from
            searched += piece.header.size if isinstance(piece, Piece) else 0
            if searched > SEARCH_BYTES_MAX:
                return 0
    except Trimmed:  # by another process, which also trims the staging log
        return 0
    finally:
        pieces.close()
    return otherwise


Trim: TypeAlias = Callable[[LogParts, Glsn], Awaitable[None]]


class Retention:
    """Applies the retention of the logs that one client publishes to."""

    def __init__(self, trim: Trim) -> None:
        self._trim = trim
        self._due_s: dict[str, float] = {}  # by log: the next time to check, on the loop's clock

    async def look_after(self, log: LogParts) -> None:
        """Trim expired entries if a check is due. Failures are only logged: the publication that
        called this has succeeded."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._due_s.get(log.name, 0.0):
            return
        self._due_s[log.name] = now_s + limits.RETENTION_INTERVAL_S
        try:
            retention_s = await self._apply(log)
        except LoomError as error:
            logger.info("log %r keeps old entries for now: %s", log.name, error)
        else:
            pause_s = max(limits.RETENTION_INTERVAL_S, _LOOK_AGAIN * retention_s)
            self._due_s[log.name] = now_s + pause_s

    async def _apply(self, log: LogParts) -> int:
        """Return the log's retention; 0 if it has none, or one by bytes, too."""
        info = await log.describe()
        if info.retention_s is None and info.retention_bytes is None:
            return 0
        last = await log.find_expired()
        if last >= info.head:
            await self._trim(log, last)
        return 0 if info.retention_bytes else info.retention_s or 0
