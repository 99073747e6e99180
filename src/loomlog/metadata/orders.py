"""Orders to storage nodes about whole replicas: add, trim, remove.

Trims and removals are written down first (catalog), so that a node that is away now is told when
it registers, and one that fails is told again for as long as it is connected; here is only the
telling.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from loomlog.core.ordered import states
from loomlog.errors import LoomError, NotFound
from loomlog.metadata.background import Background
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.committer import Committer
from loomlog.metadata.members import Members
from loomlog.metadata.records import LogRecord, TombstoneRecord
from loomlog.types import LogId, NodeId, Report, StreamId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

ORDER_TIMEOUT_S: Final = 5.0  # less than what a client waits for its own answer
ORDERS_UNDER_WAY_MAX: Final = 64  # each makes or removes files on a node
RETRY_FIRST_S: Final = 0.5
RETRY_MAX_S: Final = 30.0


class Orders:
    def __init__(
        self, catalog: Catalog, committer: Committer, members: Members, background: Background
    ) -> None:
        self._catalog = catalog
        self._committer = committer
        self._members = members
        self._background = background
        self._room = asyncio.Semaphore(ORDERS_UNDER_WAY_MAX)
        self._insisting: set[tuple[str, NodeId, StreamId]] = set()

    def greet(self, node: NodeId) -> None:
        """A node registered: tell it what it may have missed."""
        for log in self._catalog.logs.values():
            for stream_id in log.streams if log.trimmed else ():
                if node in self._replicas(stream_id):
                    self.trim_soon(node, stream_id)
        for stream in self._catalog.streams.values():
            if node in stream.dropping:
                self.drop_soon(node, stream.stream_id)
        for tombstone in self._catalog.tombstones.values():
            if any(node in nodes for _, nodes in tombstone.remains):
                self._background.spawn(
                    self._remove_from(node, tombstone), f"removal on node {node}"
                )

    # ---- add

    async def add(self, log: LogRecord) -> None:
        """Every replica of the log comes into being; the first refusal is raised."""
        orders = (self.add_stream(log.log_id, stream_id) for stream_id in log.streams)
        for failure in await asyncio.gather(*orders, return_exceptions=True):
            if failure is not None:
                raise failure

    async def add_stream(self, log_id: LogId, stream_id: StreamId) -> None:
        orders = (self.add_replica(log_id, stream_id, n) for n in self._replicas(stream_id))
        for failure in await asyncio.gather(*orders, return_exceptions=True):
            if failure is not None:
                raise failure

    async def add_replica(self, log_id: LogId, stream_id: StreamId, node: NodeId) -> None:
        replicas = [
            pb.Replica(storage_node_id=n, address=self._catalog.nodes[n].address)
            for n in self._replicas(stream_id)
        ]
        order = pb.AddLogStream(log_id=log_id, log_stream_id=stream_id, replicas=replicas)
        await self._order(node, pb.Frame(add_log_stream=order))
        stream = self._committer.stream(stream_id)
        if stream is not None and node not in stream.reports:  # its own report may be on the way
            empty = Report(stream_id, 1, 0, 0, 0, states.START, 0, False)
            self._committer.report(node, empty)

    # ---- trim

    async def trim(self, log: LogRecord) -> None:
        """Tell every replica that can be reached."""
        targets = [(node, s) for s in log.streams for node in self._replicas(s)]
        trimmed = await asyncio.gather(*(self._trim_replica(*target) for target in targets))
        for target, done in zip(targets, trimmed, strict=True):
            if not done:
                self.trim_soon(*target)

    def trim_soon(self, node: NodeId, stream_id: StreamId) -> None:
        """As far as its log is trimmed."""
        self._insist("trim", node, stream_id, self._trim_replica)

    async def _trim_replica(self, node: NodeId, stream_id: StreamId) -> bool:
        """True when there is nothing to trim any more."""
        stream = self._catalog.streams.get(stream_id)
        log = self._catalog.log_of(stream) if stream else None
        if log is None or not log.trimmed or node not in self._replicas(stream_id):
            return True
        order = pb.TrimLogStream(log_stream_id=stream_id, glsn=log.trimmed)
        try:
            await self._order(node, pb.Frame(trim_log_stream=order))
        except LoomError as error:
            logger.warning(
                "stream %d is not trimmed to %d on node %d yet: %s",
                *(stream_id, log.trimmed, node, error),
            )
            return False
        return True

    # ---- remove

    async def remove(self, tombstone: TombstoneRecord) -> None:
        """Remove every replica that can be reached; the tombstone keeps the others."""
        nodes = dict.fromkeys(n for _, replicas in tombstone.remains for n in replicas)
        await asyncio.gather(*(self._remove_from(node, tombstone) for node in nodes))

    async def _remove_from(self, node: NodeId, tombstone: TombstoneRecord) -> None:
        mine = [stream_id for stream_id, nodes in tombstone.remains if node in nodes]
        gone = await asyncio.gather(*(self.remove_replica(node, s) for s in mine))
        streams = {stream_id for stream_id, done in zip(mine, gone, strict=True) if done}
        if streams:
            await self._catalog.replicas_gone(tombstone.log_id, streams, node)
        for stream_id in mine:
            if stream_id not in streams:
                remove = partial(self._remove_remains, tombstone.log_id)
                self._insist("deletion", node, stream_id, remove)

    async def _remove_remains(self, log_id: LogId, node: NodeId, stream_id: StreamId) -> bool:
        """What a deleted log left on a node; True if it is gone."""
        gone = await self.remove_replica(node, stream_id)
        if gone:
            await self._catalog.replicas_gone(log_id, {stream_id}, node)
        return gone

    def drop_soon(self, node: NodeId, stream_id: StreamId) -> None:
        """Delete what the node holds of a stream that is not its own (any more)."""
        self._insist("removal", node, stream_id, self._drop)

    async def _drop(self, node: NodeId, stream_id: StreamId) -> bool:
        stream = self._catalog.streams.get(stream_id)
        if stream is None or node not in stream.dropping:
            return True
        return await self.clean_up(node, stream_id)

    async def clean_up(self, node: NodeId, stream_id: StreamId) -> bool:
        """Delete what the node holds of a stream that it is no replica of."""
        if not await self.remove_replica(node, stream_id):
            return False
        await self._catalog.replica_dropped(stream_id, node)
        return True

    async def remove_replica(self, node: NodeId, stream_id: StreamId) -> bool:
        """With its data; True if it is gone."""
        order = pb.RemoveLogStream(log_stream_id=stream_id, delete_data=True)
        try:
            await self._order(node, pb.Frame(remove_log_stream=order))
        except NotFound:
            pass
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
        """Give the order until it is done, or the node is away: then it hears it on its return."""

        async def insist() -> None:
            delay_s = RETRY_FIRST_S
            try:
                while self._members.connected(node) and not await order(node, stream_id):
                    await asyncio.sleep(delay_s)
                    delay_s = min(2 * delay_s, RETRY_MAX_S)
            finally:
                self._insisting.discard(key)

        key = (what, node, stream_id)
        if key not in self._insisting:
            self._insisting.add(key)
            self._background.spawn(insist(), f"{what} of stream {stream_id} on node {node}")

    async def _order(self, node: NodeId, frame: pb.Frame) -> None:
        async with self._room:
            await self._members.request(node, frame, ORDER_TIMEOUT_S)
