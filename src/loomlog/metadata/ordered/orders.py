"""Orders to storage nodes about whole replicas: add, trim, remove.

Trims and removals are recorded first (catalog), so that a node that is away gets them when it
registers, and one that fails gets them again while it is connected; this module only sends them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from loomlog.core.backoff import Backoff
from loomlog.core.ordered.replica import START
from loomlog.errors import Conflict, LoomError, NotFound, NotLeader
from loomlog.metadata.background import Background
from loomlog.metadata.catalog.records import LogRecord, TombstoneRecord
from loomlog.metadata.ordered.committer import Committer
from loomlog.types import LogId, NodeId, Report, StreamId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

ORDER_TIMEOUT_S: Final = 5.0  # less than a client waits for its own answer
ORDERS_UNDER_WAY_MAX: Final = 64  # each makes or removes files on a node
RETRY: Final = Backoff(0.5, 30.0)


class Orders:
    """Sends orders about replicas to nodes, and repeats those that fail."""

    def __init__(self, committer: Committer, background: Background) -> None:
        self._catalog, self._members = committer.catalog, committer.members
        self._committer = committer
        self._background = background
        self._room = asyncio.Semaphore(ORDERS_UNDER_WAY_MAX)
        self._insisting: set[tuple[str, NodeId, StreamId]] = set()

    def greet(self, node: NodeId) -> None:
        """Send a node that registered the orders it may have missed."""
        for log in self._catalog.logs.values():
            for stream_id in log.streams if log.trimmed else ():
                if node in self._replicas(stream_id):
                    self.trim_soon(node, stream_id)
        for stream in self._catalog.streams.values():
            if node in stream.dropping:
                self.drop_soon(node, stream.stream_id)
        for tombstone in self._catalog.tombstones.values():
            if any(node in remains.nodes for remains in tombstone.remains):
                self._background.spawn(
                    self._remove_from(node, tombstone), f"removal on node {node}"
                )

    # ---- add

    async def add_stream(self, log_id: LogId, stream_id: StreamId) -> None:
        """Create every replica of the stream; raise the first refusal."""
        orders = (self.add_replica(log_id, stream_id, n) for n in self._replicas(stream_id))
        for failure in await asyncio.gather(*orders, return_exceptions=True):
            if failure is not None:
                raise failure

    async def add_replica(self, log_id: LogId, stream_id: StreamId, node: NodeId) -> None:
        replicas = self._catalog.addressed(self._replicas(stream_id))
        record = self._catalog.stream(stream_id)
        order = pb.AddLogStream(
            log_id=log_id,
            log_stream_id=stream_id,
            replicas=replicas,
            stamp=record.stamp,
            birth=record.birth_on(node),
        )
        await self._order(node, pb.Frame(add_log_stream=order))
        stream = self._committer.stream(stream_id)
        if stream is not None and node not in stream.reports:  # its own report may be on the way
            empty = Report(stream_id, 1, 0, 0, 0, START, 0, False)
            self._committer.report(node, empty)

    # ---- trim

    async def trim(self, log: LogRecord) -> None:
        """Trim every replica that can be reached."""
        targets = [(node, s) for s in log.streams for node in self._replicas(s)]
        trimmed = await asyncio.gather(*(self._trim_replica(*target) for target in targets))
        for target, done in zip(targets, trimmed, strict=True):
            if not done:
                self.trim_soon(*target)

    def trim_soon(self, node: NodeId, stream_id: StreamId) -> None:
        """Trim a replica as far as its log, retrying until it succeeds."""
        self._insist("trim", node, stream_id, self._trim_replica)

    async def _trim_replica(self, node: NodeId, stream_id: StreamId) -> bool:
        """Trim one replica; return whether nothing is left to trim."""
        stream = self._catalog.streams.get(stream_id)
        log = self._catalog.log_of(stream) if stream else None
        if stream is None or log is None:
            return True
        if not log.trimmed or node not in stream.replicas:
            return True
        order = pb.TrimLogStream(log_stream_id=stream_id, glsn=log.trimmed, stamp=stream.stamp)
        try:
            await self._order(node, pb.Frame(trim_log_stream=order))
        except LoomError as error:
            logger.warning(
                "stream %d is not trimmed to %d on node %d yet: %s",
                stream_id,
                log.trimmed,
                node,
                error,
            )
            return False
        return True

    # ---- remove

    async def remove(self, tombstone: TombstoneRecord) -> None:
        """Remove every replica that can be reached; the tombstone keeps the others."""
        nodes = dict.fromkeys(n for remains in tombstone.remains for n in remains.nodes)
        await asyncio.gather(*(self._remove_from(node, tombstone) for node in nodes))

    async def _remove_from(self, node: NodeId, tombstone: TombstoneRecord) -> None:
        mine = {r.stream_id: r.stamp for r in tombstone.remains if node in r.nodes}
        gone = await asyncio.gather(*(self.remove_replica(node, s, mine[s]) for s in mine))
        streams = {stream_id for stream_id, done in zip(mine, gone, strict=True) if done}
        try:
            if streams:
                await self._catalog.replicas_gone(tombstone.log_id, streams, node)
        except LoomError as error:
            logger.warning("what is deleted on node %d is not written yet: %s", node, error)
            streams = set()
        for stream_id, stamp in mine.items():
            if stream_id not in streams:
                remove = partial(self._remove_remains, tombstone.log_id, stamp)
                self._insist("deletion", node, stream_id, remove)

    async def _remove_remains(
        self, log_id: LogId, stamp: int, node: NodeId, stream_id: StreamId
    ) -> bool:
        """Remove what a deleted log left on a node; return whether it is gone."""
        gone = await self.remove_replica(node, stream_id, stamp)
        if gone:
            await self._catalog.replicas_gone(log_id, {stream_id}, node)
        return gone

    def drop_soon(self, node: NodeId, stream_id: StreamId) -> None:
        """Delete the data on a node of a stream that it is not, or no longer, a replica of."""
        self._insist("removal", node, stream_id, self._drop)

    async def _drop(self, node: NodeId, stream_id: StreamId) -> bool:
        stream = self._catalog.streams.get(stream_id)
        if stream is None or node not in stream.dropping:
            return True
        birth = stream.birth_on(node)
        if birth and not await self.remove_replica(node, stream_id, stream.stamp, birth):
            return False
        await self._catalog.replica_dropped(stream_id, node)
        return True

    async def clean_up(self, node: NodeId, stream_id: StreamId) -> bool:
        """Delete the reported data of a stream that the node is no replica of."""
        stamp = self._members.stamp_of(node, stream_id)
        if stamp is None or not await self.remove_replica(node, stream_id, stamp):
            return False
        record = self._catalog.streams.get(stream_id)
        if record is not None and record.stamp == stamp:
            await self._catalog.replica_cleaned_up(stream_id, node)
        return True

    async def remove_replica(
        self, node: NodeId, stream_id: StreamId, stamp: int, birth: int = 0
    ) -> bool:
        """Delete a replica and its data; True if there is none with this stamp and birth."""
        order = pb.RemoveLogStream(log_stream_id=stream_id, stamp=stamp, birth=birth)
        try:
            await self._order(node, pb.Frame(remove_log_stream=order))
        except NotFound:
            pass
        except Conflict as error:
            logger.warning("stream %d is not deleted: %s", stream_id, error)
            return True
        except LoomError as error:
            logger.warning("stream %d is not removed from node %d yet: %s", stream_id, node, error)
            return False
        self._members.removed(node, stream_id)
        return True

    # ---- all

    def _replicas(self, stream_id: StreamId) -> tuple[NodeId, ...]:
        stream = self._catalog.streams.get(stream_id)
        return stream.replicas if stream else ()

    def _insist(
        self,
        what: str,
        node: NodeId,
        stream_id: StreamId,
        order: Callable[[NodeId, StreamId], Awaitable[bool]],
    ) -> None:
        """Repeat the order until it is done or the node is away; then it gets it on its return."""

        async def insist() -> None:
            failures = 0
            try:
                while self._members.connected(node) and not await self._is_done(
                    order(node, stream_id), what
                ):
                    await asyncio.sleep(RETRY.delay_s(failures))
                    failures += 1
            finally:
                self._insisting.discard(key)

        key = (what, node, stream_id)
        if key not in self._insisting:
            self._insisting.add(key)
            self._background.spawn(insist(), f"{what} of stream {stream_id} on node {node}")

    async def _is_done(self, order: Awaitable[bool], what: str) -> bool:
        """Carry it out; False, too, if its completion could not be recorded."""
        try:
            return await order
        except NotLeader:
            raise
        except LoomError as error:
            logger.warning("%s is tried again: %s", what, error)
            return False

    async def _order(self, node: NodeId, frame: pb.Frame) -> None:
        async with self._room:
            await self._members.request(node, frame, ORDER_TIMEOUT_S)
