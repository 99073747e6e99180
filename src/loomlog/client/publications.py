"""What a cluster does for rows that are staged first: staging logs, writers, and their end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol

from loomlog import limits
from loomlog.client import backoff, writer_state
from loomlog.client.info import LogInfo
from loomlog.client.leases import Lease
from loomlog.client.nodes import Connections
from loomlog.client.pinned import PinnedAppends
from loomlog.client.publishing import Registry, Ways, Writer, writers_prefix
from loomlog.client.retaining import Retaining
from loomlog.client.staging import Stager
from loomlog.client.trimming import trim_staged
from loomlog.errors import AlreadyExists, Conflict, InvalidArgument, NotFound
from loomlog.staging_logs import staged_log, staging_name
from loomlog.types import Glsn

if TYPE_CHECKING:
    from loomlog.client.log import Log

_WRITER_NAME_MAX: Final = 100  # with the log's name it is the name of a register


class Home(Registry, Protocol):
    """The cluster."""

    async def make_staging_log(self, name: str, like: LogInfo) -> None: ...


class Publications:
    """Of one client."""

    def __init__(
        self,
        home: Home,
        connections: Connections,
        append_timeout_s: float,
        rng: random.Random,
        now_us: Callable[[], int],
    ) -> None:
        self._home = home
        self._connections = connections
        self._timeout_s = append_timeout_s
        self._rng = rng
        self._now_us = now_us
        self._retaining = Retaining(now_us)

    def staging_log(self, name: str) -> Log:
        return self._home.log(name)

    async def stager(self, log: Log) -> Stager:
        """For the rows of one caller; makes the staging log if need be."""
        info = await self._ensure_staging(log)
        active = info.active_streams
        running = [stream.id for stream in active if stream.state == "running"]
        stream = self._rng.choice(running or [stream.id for stream in active])
        return Stager(log.name, self._home.log(info.name).appender, stream)

    async def writer(self, log: Log, name: str, lease: Lease | None = None) -> Writer:
        """Known to the cluster from now on."""
        if not isinstance(name, str) or not 1 <= len(name) <= _WRITER_NAME_MAX:
            raise InvalidArgument(
                f"a writer's name has 1 to {_WRITER_NAME_MAX} characters, not {name!r}"
            )
        await self._ensure_staging(log)
        writer = self._writer(log, name, lease)
        await writer.open()
        return writer

    def _writer(self, log: Log, name: str, lease: Lease | None = None) -> Writer:
        appends = PinnedAppends(log.cached, self._connections, self._timeout_s, self._rng)
        ways = Ways(appends, log.protocols.reserved_appends(), log.protocols.epoch_appends())
        return Writer(log, name, self._home, ways, self._rng, self._now_us, lease)

    async def published(self, log: Log) -> None:
        """Somebody published there, and can do what has to be done now and then."""
        await self._retaining.look_after(log)

    async def trim(self, log: Log, position: Glsn, cut: Callable[[], Awaitable[None]]) -> None:
        """Carry out `cut`, which trims the log itself, and what belongs to it."""
        try:
            await self._home.log(staging_name(log.name)).describe()
        except NotFound:
            await cut()  # nothing was ever staged
            return
        await self._settle_below(log, position)
        await cut()
        await trim_staged(log, self._home, self._now_us())

    async def _settle_below(self, log: Log, position: Glsn) -> None:
        """No reference is trimmed before its writer's register says that it was appended."""
        prefix = writers_prefix(log.name)
        for name, found in (await self._home.registers(prefix)).items():
            intent = writer_state.decode(found.value).intent
            if intent is not None and intent.tail < position:
                await self._writer(log, name.removeprefix(prefix)).sequence()

    async def forget_writers(self, log: str) -> None:
        """After the log was deleted."""
        for name, found in (await self._home.registers(writers_prefix(log))).items():
            try:
                await self._home.register(name).swap(None, found.version)
            except Conflict:
                pass  # of a log that was made anew under this name

    async def _ensure_staging(self, log: Log) -> LogInfo:
        if staged_log(log.name) is not None:
            raise InvalidArgument(f"{log.name!r} is a staging log: write to the log it is for")
        staging = self._home.log(staging_name(log.name))
        attempts = 0
        while True:
            try:
                return await staging.describe()
            except NotFound:
                like = await log.describe()
                if attempts > limits.REQUEST_TIMEOUT_S / backoff.LONGEST_S:
                    raise
            try:
                await self._home.make_staging_log(staging.name, like)
            except AlreadyExists:  # another client makes it just now
                await asyncio.sleep(backoff.delay_s(attempts, self._rng))
            attempts += 1
