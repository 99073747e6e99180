"""Logs created, deleted and trimmed."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Final
from weakref import WeakValueDictionary

from loomlog import limits
from loomlog.core.ordered.rounds import LogRounds
from loomlog.errors import AlreadyExists, InvalidArgument, LoomError, Timeout
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.committer import Committer
from loomlog.metadata.members import Members
from loomlog.metadata.orders import Orders
from loomlog.metadata.placement import place
from loomlog.metadata.reconcile import Reconciler
from loomlog.metadata.records import LogRecord
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

PROTOCOLS: Final = ("ordered",)
CREATE_TIMEOUT_S: Final = 8.0  # less than what a client waits for the answer
_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.LOG_NAME_CHARS_MAX}}}")


class Admin:
    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        members: Members,
        orders: Orders,
        reconciler: Reconciler,
    ) -> None:
        self._catalog = catalog
        self._committer = committer
        self._members = members
        self._orders = orders
        self._reconciler = reconciler
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def _one_at_a_time(self, name: str) -> asyncio.Lock:
        """Creating and deleting one name exclude each other."""
        return self._locks.setdefault(name, asyncio.Lock())

    # ---- create

    async def create_log(self, request: pb.CreateLog) -> LogRecord:
        _check_request(request)
        async with self._one_at_a_time(request.name):
            if request.name in self._catalog.logs:
                raise AlreadyExists(f"there is a log {request.name!r} already: choose another name")
            nodes = self._members.all_reachable()
            if request.replicas > len(nodes):
                raise InvalidArgument(
                    f"{request.replicas} replicas need as many nodes, and {len(nodes)} are alive: "
                    "ask for fewer replicas or start more nodes"
                )
            existing = [stream.replicas for stream in self._catalog.streams.values()]
            placement = place(request.streams, request.replicas, nodes, existing)
            log = await self._catalog.create_log(
                request.name, request.protocol, request.replicas, placement
            )
            return await self._bring_up(log)

    async def _bring_up(self, log: LogRecord) -> LogRecord:
        try:
            self._committer.add(self.rounds_of(log))
            await self._orders.add(log)
            await self._run(log)
            log = await self._catalog.log_created(log.name)
        except LoomError as error:
            logger.warning("log %r was not created: %s", log.name, error)
            await self._delete(log)
            raise
        logger.info(
            "log %r has id %d, streams %s, %d replicas each",
            *(log.name, log.log_id, list(log.streams), log.replicas),
        )
        return log

    async def _run(self, log: LogRecord) -> None:
        """New streams begin sealed; they are unsealed like any other."""
        for stream_id in log.streams:
            self._reconciler.wake(stream_id)
        try:
            async with asyncio.timeout(CREATE_TIMEOUT_S):
                await self._reconciler.running(log.streams)
        except TimeoutError:
            raise Timeout(
                f"the streams of log {log.name!r} did not run within {CREATE_TIMEOUT_S:g} s; "
                "the log was not created: look at the nodes' logs and try again"
            ) from None

    def rounds_of(self, log: LogRecord) -> LogRounds:
        """The log as the rounds see it, before any report."""
        rounds = LogRounds(log.log_id)
        for stream_id in log.streams:
            stream = self._catalog.streams[stream_id]
            rounds.add_stream(stream_id, stream.replicas, stream.epoch, sealed=stream.sealed)
        return rounds

    # ---- delete

    async def delete_log(self, name: str) -> None:
        async with self._one_at_a_time(name):
            await self._delete(self._catalog.log(name))
        logger.info("log %r is deleted", name)

    async def _delete(self, log: LogRecord) -> None:
        tombstone = await self._catalog.delete_log(log.name)
        self._committer.remove(log.log_id)
        await self._orders.remove(tombstone)

    # ---- trim

    async def trim_log(self, name: str, position: Glsn) -> LogRecord:
        log = self._catalog.log(name)
        tail = self._committer.logs[log.log_id].high_watermark
        if position > tail:
            raise InvalidArgument(
                f"log {name!r} ends at position {tail}: it cannot be trimmed up to {position}"
            )
        log = await self._catalog.trim_log(name, position)
        await self._orders.trim(log)
        logger.info("log %r is trimmed up to position %d", name, log.trimmed)
        return log


def _check_request(request: pb.CreateLog) -> None:
    if not _NAME.fullmatch(request.name):
        raise InvalidArgument(
            f"{request.name!r} is no log name: use 1 to {limits.LOG_NAME_CHARS_MAX} letters, "
            "digits, dots, underscores and hyphens"
        )
    if request.protocol not in PROTOCOLS:
        raise InvalidArgument(
            f"there is no protocol {request.protocol!r}: available are {', '.join(PROTOCOLS)}"
        )
    if not 1 <= request.streams <= limits.STREAMS_PER_LOG_MAX:
        raise InvalidArgument(
            f"a log has 1 to {limits.STREAMS_PER_LOG_MAX} streams, not {request.streams}"
        )
    if request.replicas < 1:
        raise InvalidArgument("a stream has at least 1 replica")
