"""Create, delete and trim logs of any protocol."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Final

from loomlog import limits
from loomlog.batch import COMPRESSIONS
from loomlog.core.segments import Settings, Successor
from loomlog.errors import AlreadyExists, InvalidArgument, LoomError, NotFound, Timeout
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.logs.scrub import LogScrubs
from loomlog.metadata.logs.switch import LogSwitches
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.nodes.placement import ReplicaPlacement
from loomlog.metadata.protocol import Keepers, ProtocolKeeper
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.LOG_NAME_CHARS_MAX}}}")


class Admin:
    """Carries out clients' requests about whole logs."""

    def __init__(
        self,
        catalog: Catalog,
        nodes: ConnectedNodes,
        keepers: Keepers,
        placement: ReplicaPlacement,
        switches: LogSwitches,
    ) -> None:
        self._catalog = catalog
        self._keepers = keepers
        self._placement = placement
        self._switches = switches
        self._scrubs = LogScrubs(catalog, nodes, keepers)

    # ---- create

    async def create_log(self, request: pb.CreateLog) -> LogRecord:
        settings = self._checked(request)
        async with self._catalog.lock(request.name):
            await self._finish_deletion(request.name)
            if request.name in self._catalog.logs:
                raise AlreadyExists(f"there is a log {request.name!r} already: choose another name")
            await self._placement.wait_for_nodes(max(settings.replicas, settings.nodeset))
            first = max(request.first_position, 1)
            log = await self._catalog.create_log(request.name, settings, first)
            return await self._bring_up(log, request)

    async def _bring_up(self, log: LogRecord, request: pb.CreateLog) -> LogRecord:
        active = log.layout.active
        keeper = self._keepers.active(log)
        try:
            await keeper.make(log, Successor(active.loglet, active.settings))
            if not await keeper.begin(log, active):
                raise Timeout(
                    f"log {log.name!r} did not take appends in time, so it was not created: look "
                    "at the nodes' logs and try again"
                )
            created = await self._catalog.log_created(
                log.name, request.retention_s, request.retention_bytes
            )
        except LoomError as error:
            logger.warning("log %r was not created: %s", log.name, error)
            await self._delete(log)
            raise
        logger.info("log %r has id %d: %s", log.name, log.log_id, keeper.describe(active.settings))
        return created

    def _checked(self, request: pb.CreateLog) -> Settings:
        check_retention(request)
        if not _NAME.fullmatch(request.name):
            raise InvalidArgument(
                f"{request.name!r} is not a valid log name: use 1 to "
                f"{limits.LOG_NAME_CHARS_MAX} letters, digits, dots, underscores and hyphens"
            )
        if request.first_position > limits.FIRST_POSITION_MAX:
            raise InvalidArgument(
                f"log {request.name!r}: the first position is at most {limits.FIRST_POSITION_MAX}"
            )
        settings = Settings(
            request.protocol,
            request.streams,
            request.replicas,
            request.nodeset,
            request.min_replicas,
            request.compression or COMPRESSIONS[0],
        )
        self._keepers.check(settings)
        return settings

    # ---- delete

    async def delete_log(self, name: str) -> None:
        async with self._catalog.lock(name):
            await self._finish_deletion(name)
            await self._delete(self._catalog.log(name))
        logger.info("log %r is deleted", name)

    async def _finish_deletion(self, name: str) -> None:
        """Delete the rest of a log of that name if the store failed during its deletion."""
        log = self._catalog.logs.get(name)
        if log is not None and log.unfinished:
            await self._delete(log)

    async def _delete(self, log: LogRecord) -> None:
        await self._catalog.delete_log(log.name)
        await asyncio.gather(*(keeper.deleted(log) for keeper in self._keepers.values()))

    # ---- trim

    async def trim_log(self, name: str, position: Glsn) -> LogRecord:
        tail = await self._keepers.find_tail(self._catalog.log(name))
        if position > tail:
            raise InvalidArgument(
                f"log {name!r} ends at position {tail}, so it cannot be trimmed up to {position}: "
                "name a position that is written"
            )
        return await self._trim(name, position)

    async def trim_old(self, name: str, position: Glsn) -> None:
        """Trim up to a position, which may be after the last entry."""
        log = self._catalog.log(name)
        last = min(position, await self._keepers.find_tail(log))
        if last > log.trimmed:
            await self._trim(name, last)

    async def _trim(self, name: str, position: Glsn) -> LogRecord:
        log = await self._catalog.trim_log(name, position)
        await asyncio.gather(*(keeper.trim(log) for keeper in self._keepers.values()))
        logger.info("log %r is trimmed up to position %d", name, log.trimmed)
        return log

    # ---- streams

    async def change_stream(self, request: pb.ChangeStream) -> pb.Changed:
        """Change a stream through the keeper of its protocol, or with a switch of its log."""
        if not request.action:
            raise InvalidArgument(f"there is no change {request.action} of a stream")
        if request.action == pb.ChangeStream.SCRUB:
            return logged(await self._scrubs.scrub(request))
        if request.action == pb.ChangeStream.ADD:
            keeper = self._keepers.active(self._catalog.log(request.log))
            return logged(await self._change_stream(keeper, request))
        for keeper in self._keepers.values():
            if keeper.has_stream(request.log_stream_id):
                return logged(await self._change_stream(keeper, request))
        raise NotFound(f"there is no stream {request.log_stream_id}: look at `loom stream list`")

    async def _change_stream(self, keeper: ProtocolKeeper, request: pb.ChangeStream) -> pb.Changed:
        switched = await self._switches.change_stream(keeper, request)
        return switched or await keeper.change_stream(request)


def check_retention(request: pb.CreateLog | pb.SetRetention) -> None:
    if request.retention_s > limits.RETENTION_S_MAX:
        raise InvalidArgument(
            f"log {request.name!r}: entries are retained for at most a hundred years"
        )
    size = request.retention_bytes
    if size and not limits.RETENTION_BYTES_MIN <= size <= limits.RETENTION_BYTES_MAX:
        raise InvalidArgument(
            f"log {request.name!r}: 1 MiB to 1 EiB are retained, not {size} bytes"
        )


def logged(changed: pb.Changed) -> pb.Changed:
    logger.info("operator: %s; %s", changed.done, changed.next)
    return changed
