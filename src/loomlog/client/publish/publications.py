"""Staging logs and writers of a client: how they are created, trimmed and deleted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from loomlog import limits
from loomlog.client.info import LogInfo
from loomlog.client.kv.leases import Lease
from loomlog.client.kv.registers import Registers
from loomlog.client.log_parts import LogParts
from loomlog.client.publish import writer_state
from loomlog.client.publish.stager import Stager
from loomlog.client.publish.trim import Retention, trim_staged
from loomlog.client.publish.writer import Writer, writers_prefix
from loomlog.client.servers import BACKOFF, Metadata
from loomlog.errors import AlreadyExists, Conflict, InvalidArgument, NotFound
from loomlog.staging_logs import staged_log, staging_name
from loomlog.types import Glsn

_WRITER_NAME_MAX: Final = 100  # the register's name consists of the log's name and this one


class Publications(Registers):
    """The stagers and writers of one client."""

    def __init__(
        self,
        metadata: Metadata,
        rng: random.Random,
        now_us: Callable[[], int],
        parts_of: Callable[[str], LogParts],
        make_staging_log: Callable[[str, LogInfo], Awaitable[None]],
    ) -> None:
        self._metadata = metadata
        self._rng = rng
        self._now_us = now_us
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
                f"a writer's name has 1 to {_WRITER_NAME_MAX} characters, not {name!r}"
            )
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
            await self.parts_of(staging_name(log.name)).describe()
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
        attempts = 0
        while True:
            try:
                return await staging.describe()
            except NotFound:
                like = await log.describe()
                if attempts > limits.REQUEST_TIMEOUT_S / BACKOFF.max_s:
                    raise
            try:
                await self._make_staging_log(staging.name, like)
            except AlreadyExists:  # another client is creating it
                await asyncio.sleep(BACKOFF.delay_s(attempts, self._rng))
            attempts += 1
