"""Create, run and remove the streams of `ordered` logs with all their replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from loomlog import limits
from loomlog.core.ordered.rounds import LogRounds, StreamRounds
from loomlog.core.ordered.stream_record import StreamRecord
from loomlog.errors import Busy, InvalidArgument, LoomError, NotFound
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.nodes.placement import ReplicaPlacement
from loomlog.metadata.ordered.committer import Committer
from loomlog.metadata.ordered.orders import Orders
from loomlog.metadata.ordered.repair_loop import Reconciler
from loomlog.metadata.ordered.repair_steps import adopt_wishes
from loomlog.protocol_names import ORDERED
from loomlog.types import LogId, NodeId, StreamId

logger = logging.getLogger(__name__)

ADD_WAIT_S: Final = 4.0  # until an added stream runs; after that, it runs in the background


class OrderedStreams:
    """Creates and removes streams in the catalog, in the commit rounds and on their nodes."""

    def __init__(
        self,
        committer: Committer,
        orders: Orders,
        reconciler: Reconciler,
        placement: ReplicaPlacement,
    ) -> None:
        self._catalog, self._records = committer.catalog, committer.records
        self._committer = committer
        self._orders = orders
        self._reconciler = reconciler
        self._placement = placement

    def rounds_of(self, log: LogRecord) -> LogRounds:
        """Return the commit rounds of a log, which begin with the streams in its record."""
        rounds = self._committer.logs.get(log.log_id)
        if rounds is None:
            rounds = LogRounds(log.log_id)
            for record in self._records.of_log(log.log_id):
                self._add_to(rounds, record)
            self._committer.add(rounds)
        return rounds

    def _add_to(self, rounds: LogRounds, record: StreamRecord) -> StreamRounds:
        stream = rounds.add_stream(
            record.stream_id, record.replicas, record.epoch, sealed=record.sealed
        )
        adopt_wishes(stream, self._records)
        return stream

    async def create(
        self,
        log: LogRecord,
        loglet: LogId,
        replicas: Sequence[tuple[NodeId, ...]],
        *,
        relief: bool = False,
    ) -> list[StreamRecord]:
        """Create a sealed stream on each of the given lists of nodes."""
        if len(self._records.of_log(log.log_id)) + len(replicas) > limits.STREAMS_PER_LOG_MAX:
            raise InvalidArgument(f"a log has at most {limits.STREAMS_PER_LOG_MAX} streams")
        rounds = self.rounds_of(log)
        records = await self._records.add_streams(log, loglet, replicas, relief=relief)
        for record in records:
            self._committer.add_stream(rounds, self._add_to(rounds, record))
        made = await asyncio.gather(
            *(self._orders.add_stream(log.log_id, record.stream_id) for record in records),
            return_exceptions=True,
        )
        errors = [error for error in made if error is not None]
        if errors and not log.unfinished:  # otherwise the whole log is deleted
            logger.warning("log %r gets no other stream: %s", log.name, errors[0])
            for record, error in zip(records, made, strict=True):
                if isinstance(error, LoomError):
                    await self.take_back(record)
        for error in errors:
            raise error
        for record in records:
            nodes = record.replicas
            logger.info("log %r has stream %d on nodes %s", log.name, record.stream_id, nodes)
        return records

    async def run(self, streams: Iterable[StreamId], timeout_s: float) -> bool:
        """Unseal streams; return whether they run within the timeout."""
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

    async def add_stream(
        self, name: str, *, nodes: tuple[NodeId, ...] = (), relief: bool = False
    ) -> tuple[StreamRecord, bool]:
        """Add a stream to the active segment of a log, on these nodes if given. Also return whether
        it already runs."""
        async with self._catalog.lock(name):
            log = self._catalog.log(name)
            if log.protocol != ORDERED:
                raise Busy(f"log {name!r} has just been switched to {log.protocol!r}: try again")
            active = log.layout.active
            if nodes:
                self._placement.check(nodes, active.settings)
            replicas = [nodes] if nodes else self._placement.place(1, active.settings)
            (record,) = await self.create(log, active.loglet, replicas, relief=relief)
        return record, await self.run((record.stream_id,), ADD_WAIT_S)

    async def take_back(self, record: StreamRecord) -> None:
        """Remove a stream that never ran, or is empty."""
        stream = self._committer.stream(record.stream_id)
        if stream is None:
            return
        has_run = not stream.sealed or stream.epoch != record.epoch
        if has_run and not stream.closed:
            return  # a node was slow to answer, but the stream runs
        try:
            await self._orders.abandon(stream)
        except BaseException:
            self._reconciler.wake(record.stream_id)
            raise

    async def retire(self, stream_id: StreamId) -> None:
        """Stop appends to a stream; it is removed when it is empty."""
        log = self._catalog.log_of(self._records.stream(stream_id))
        if log is None:
            raise NotFound(f"stream {stream_id} was deleted")
        async with self._catalog.lock(log.name):
            record = self._records.stream(stream_id)
            self._check_dispensable(self._catalog.log(log.name), record)
            await self._records.update(stream_id, removing=True)
        self._reconciler.wishes_changed(stream_id)

    def _check_dispensable(self, log: LogRecord, record: StreamRecord) -> None:
        segment = log.segment_of(record.loglet)
        if record.removing or (segment is not None and segment.end is not None):
            return
        if segment is None or segment.loglet != log.layout.active.loglet or log.layout.successor:
            raise Busy(f"log {log.name!r} is just being switched: try again")
        others = self._committer.logs[log.log_id].streams.values()
        if not any(
            other.wanted_running and not other.sealed
            for other in others
            if other.stream_id != record.stream_id
        ):
            raise InvalidArgument(
                f"log {log.name!r} has no other stream that takes appends now: add one with "
                f"`loom stream add {log.name}` first"
            )

    async def drop_trimmed(self, log_id: LogId) -> None:
        """Remove the streams of completely trimmed segments, and sealed streams that are being
        removed and are empty."""
        rounds = self._committer.logs.get(log_id)
        for stream_id in list(rounds.streams if rounds else ()):
            record = self._records.get(stream_id)
            if record is not None and self._catalog.segment_of(record) is None:
                await self.take_back(record)
            elif record is not None and record.sealed:
                self._reconciler.wishes_changed(stream_id)
        for stream_id in self._records.without_segment(log_id):
            await self._orders.remove(stream_id)
