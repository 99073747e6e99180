"""Logs created, deleted, trimmed, and given another stream."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Final
from weakref import WeakValueDictionary

from loomlog import limits
from loomlog.core.ordered.rounds import LogRounds, StreamRounds
from loomlog.core.segments import Settings, Successor
from loomlog.errors import AlreadyExists, InvalidArgument, LoomError, Timeout
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.committer import Committer
from loomlog.metadata.keepers import LoneKeeper
from loomlog.metadata.orders import Orders
from loomlog.metadata.placing import Placing
from loomlog.metadata.reconcile import Reconciler
from loomlog.metadata.records import LogRecord, StreamRecord
from loomlog.metadata.steps import adopt_wishes
from loomlog.metadata.tails import Tails
from loomlog.types import Glsn, LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

CREATE_TIMEOUT_S: Final = 8.0  # less than what a client waits for the answer
ADD_WAIT_S: Final = 4.0  # for a stream that is there already, and will run
_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.LOG_NAME_CHARS_MAX}}}")


class Admin:
    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        orders: Orders,
        reconciler: Reconciler,
        placing: Placing,
        keepers: Mapping[str, LoneKeeper],
    ) -> None:
        self._catalog = catalog
        self._committer = committer
        self._orders = orders
        self._reconciler = reconciler
        self._placing = placing
        self._keepers = keepers
        self._tails = Tails(committer, keepers)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def one_at_a_time(self, name: str) -> asyncio.Lock:
        """Creating, switching and deleting one name exclude each other."""
        return self._locks.setdefault(name, asyncio.Lock())

    # ---- create

    async def create_log(self, request: pb.CreateLog) -> LogRecord:
        self._check_request(request)
        async with self.one_at_a_time(request.name):
            if request.name in self._catalog.logs:
                raise AlreadyExists(f"there is a log {request.name!r} already: choose another name")
            return await self._bring_up(await self._new_log(request), request.retention_s)

    async def _new_log(self, request: pb.CreateLog) -> LogRecord:
        name, replicas = request.name, request.replicas
        if request.protocol in self._keepers:
            settings = Settings(request.protocol, request.streams, replicas, request.nodeset)
            return await self._catalog.create_lone_log(name, settings)
        placement = self._placing.place(request.streams, replicas)
        return await self._catalog.create_log(name, request.protocol, replicas, placement)

    async def _bring_up(self, log: LogRecord, retention_s: int) -> LogRecord:
        try:
            self._committer.add(self.rounds_of(log))
            await self._make(log)
            log = await self._catalog.log_created(log.name, retention_s)
        except LoomError as error:
            logger.warning("log %r was not created: %s", log.name, error)
            await self._delete(log)
            raise
        logger.info(
            "log %r has id %d, streams %s, %d replicas each",
            *(log.name, log.log_id, list(log.streams), log.replicas),
        )
        return log

    async def _make(self, log: LogRecord) -> None:
        active = log.chain.active
        keeper = self._keepers.get(active.settings.protocol)
        if keeper is not None:
            await keeper.make(log, Successor(active.loglet, active.settings))
            await keeper.begin(log, active)
            return
        await self._orders.add(log)
        if not await self.run(log.streams, CREATE_TIMEOUT_S):
            raise Timeout(
                f"the streams of log {log.name!r} did not run within {CREATE_TIMEOUT_S:g} s; "
                "the log was not created: look at the nodes' logs and try again"
            )

    async def run(self, streams: Iterable[StreamId], timeout_s: float) -> bool:
        """New streams begin sealed; they are unsealed like any other. False: not in time."""
        streams = list(streams)
        for stream_id in streams:
            self._reconciler.wake(stream_id)
        try:
            async with asyncio.timeout(timeout_s):
                for stream_id in streams:
                    await self._reconciler.until(stream_id, lambda stream: not stream.sealed)
        except TimeoutError:
            return False
        return True

    def rounds_of(self, log: LogRecord) -> LogRounds:
        """The log as the rounds see it, before any report."""
        rounds = LogRounds(log.log_id)
        for stream_id in log.streams:
            self._add_stream(rounds, self._catalog.streams[stream_id])
        return rounds

    def _add_stream(self, rounds: LogRounds, record: StreamRecord) -> StreamRounds:
        stream = rounds.add_stream(
            record.stream_id, record.replicas, record.epoch, sealed=record.sealed
        )
        stream.joining = record.joining
        adopt_wishes(stream, self._catalog)
        return stream

    # ---- another stream

    async def add_stream(self, name: str) -> tuple[StreamRecord, bool]:
        """One more stream for a log that goes on meanwhile; and whether it runs already."""
        async with self.one_at_a_time(name):
            log = self._catalog.log(name)
            if log.protocol in self._keepers:
                more = (
                    f": `loom log switch {name} --streams N` gives it another number of chains"
                    if log.protocol == "chained"
                    else ""
                )
                raise InvalidArgument(
                    f"log {name!r} runs with protocol {log.protocol!r}, which has no streams to "
                    f"add{more}"
                )
            (nodes,) = self._placing.place(1, log.replicas)
            record = await self.make_stream(log, nodes, log.chain.active.loglet)
        return record, await self.run((record.stream_id,), ADD_WAIT_S)

    async def make_stream(
        self, log: LogRecord, nodes: tuple[NodeId, ...], loglet: LogId
    ) -> StreamRecord:
        """Sealed, for a segment of the log."""
        if len(log.streams) >= limits.STREAMS_PER_LOG_MAX:
            raise InvalidArgument(f"a log has at most {limits.STREAMS_PER_LOG_MAX} streams")
        record = await self._catalog.add_stream(log.name, nodes, loglet)
        rounds = self._committer.logs[log.log_id]
        self._committer.add_stream(rounds, self._add_stream(rounds, record))
        try:
            await self._orders.add_stream(log.log_id, record.stream_id)
        except LoomError as error:
            logger.warning("log %r gets no other stream: %s", log.name, error)
            await self.take_back_stream(log.name, record)
            raise
        logger.info("log %r has stream %d on nodes %s", log.name, record.stream_id, nodes)
        return record

    async def take_back_stream(self, name: str, record: StreamRecord) -> None:
        """One that never ran, or of which nothing is left."""
        stream = self._committer.stream(record.stream_id)
        if stream is None:
            return
        began = not stream.sealed or stream.epoch != record.epoch
        if began and not stream.closed:
            return  # a node was slow to answer, and the stream has come to run nevertheless
        self._committer.remove_stream(record.stream_id)
        joined = stream.replicas if stream.joining is None else (*stream.replicas, stream.joining)
        await self._catalog.take_back_stream(name, record.stream_id)
        nodes = dict.fromkeys((*record.replicas, *joined))  # a spare may have come in
        await asyncio.gather(*(self._orders.remove_replica(n, record.stream_id) for n in nodes))

    # ---- delete

    async def delete_log(self, name: str) -> None:
        async with self.one_at_a_time(name):
            await self._delete(self._catalog.log(name))
        logger.info("log %r is deleted", name)

    async def _delete(self, log: LogRecord) -> None:
        tombstone = await self._catalog.delete_log(log.name)
        self._committer.remove(log.log_id)
        self._reconciler.wake_waiting()  # others may move now
        for keeper in self._keepers.values():
            keeper.deleted(log)
        await self._orders.remove(tombstone)

    # ---- trim

    async def trim_log(self, name: str, position: Glsn) -> LogRecord:
        log = self._catalog.log(name)
        tail = await self._tails.find_tail(log)
        if position > tail:
            raise InvalidArgument(
                f"log {name!r} ends at position {tail}, so it cannot be trimmed up to {position}: "
                "name a position that is written"
            )
        return await self._trim(name, position)

    async def trim_old(self, name: str, position: Glsn) -> None:
        """Up to there, or as far as the log goes: a mark behind its last entry may be old, too."""
        log = self._catalog.log(name)
        last = min(position, await self._tails.find_tail(log))
        if last > log.trimmed:
            await self._trim(name, last)

    async def _trim(self, name: str, position: Glsn) -> LogRecord:
        log = await self._catalog.trim_log(name, position)
        await self._drop_trimmed_streams(name)
        await asyncio.gather(
            self._orders.trim(self._catalog.log(name)),
            *(keeper.trim(log) for keeper in self._keepers.values()),
        )
        logger.info("log %r is trimmed up to position %d", name, log.trimmed)
        return log

    async def _drop_trimmed_streams(self, name: str) -> None:
        """Those of segments of which nothing is left; others may do it at the same time."""
        for stream_id in self._catalog.without_segment(self._catalog.log(name)):
            record = self._catalog.streams.get(stream_id)
            if record is not None:
                await self.take_back_stream(name, record)

    # ---- checks

    def _check_request(self, request: pb.CreateLog) -> None:
        check_retention(request.name, request.retention_s)
        if not _NAME.fullmatch(request.name):
            raise InvalidArgument(
                f"{request.name!r} is no log name: use 1 to {limits.LOG_NAME_CHARS_MAX} letters, "
                "digits, dots, underscores and hyphens"
            )
        protocols = ("ordered", *self._keepers)
        if request.protocol not in protocols:
            raise InvalidArgument(
                f"there is no protocol {request.protocol!r}: available are {', '.join(protocols)}"
            )
        if not 1 <= request.streams <= limits.STREAMS_PER_LOG_MAX:
            raise InvalidArgument(
                f"a log has 1 to {limits.STREAMS_PER_LOG_MAX} streams, not {request.streams}"
            )
        if request.replicas < 1:
            raise InvalidArgument("a stream has at least 1 replica")
        settings = Settings(request.protocol, request.streams, request.replicas, request.nodeset)
        check_settings(settings)


def check_settings(settings: Settings) -> None:
    """What a protocol makes nothing of is not taken as if it did."""
    protocol, streams, replicas, nodeset = settings
    if streams > 1 and protocol == "copyset":
        raise InvalidArgument(
            f"a log of protocol {protocol!r} has one stream: leave out how many, and ask for a "
            "larger nodeset to spread it over more nodes"
        )
    if nodeset and protocol != "copyset":
        raise InvalidArgument(
            f"protocol {protocol!r} has no nodesets: leave it out, or take 'copyset'"
        )
    if 0 < nodeset < replicas or nodeset > limits.NODESET_MAX:
        raise InvalidArgument(
            f"a nodeset of {nodeset} nodes cannot be: with {replicas} replicas it has "
            f"{replicas} to {limits.NODESET_MAX}"
        )


def check_retention(name: str, retention_s: int) -> None:
    if retention_s > limits.RETENTION_S_MAX:
        raise InvalidArgument(f"log {name!r}: entries are retained for at most a hundred years")
