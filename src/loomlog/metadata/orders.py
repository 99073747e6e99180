"""Orders to storage nodes about whole replicas: add, trim, remove.

Trims and removals are written down first (catalog), so that a node that is away now is told when
it registers; here is only the telling.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from loomlog.core.ordered import states
from loomlog.core.ordered.replica import Report
from loomlog.errors import LoomError, NotFound
from loomlog.metadata.background import Background
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.committer import Committer
from loomlog.metadata.members import Members
from loomlog.metadata.records import LogRecord, TombstoneRecord
from loomlog.types import LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

ORDER_TIMEOUT_S: Final = 5.0  # less than what a client waits for its own answer
ORDERS_UNDER_WAY_MAX: Final = 64  # each makes or removes files on a node


class Orders:
    def __init__(
        self, catalog: Catalog, committer: Committer, members: Members, background: Background
    ) -> None:
        self._catalog = catalog
        self._committer = committer
        self._members = members
        self._background = background
        self._room = asyncio.Semaphore(ORDERS_UNDER_WAY_MAX)

    def greet(self, node: NodeId) -> None:
        """A node registered: tell it what it may have missed."""
        for log in self._catalog.logs.values():
            if log.trimmed and any(node in self._replicas(s) for s in log.streams):
                self._background.spawn(self._trim_on(node, log), f"trim on node {node}")
        for tombstone in self._catalog.tombstones.values():
            if any(node in nodes for _, nodes in tombstone.remains):
                self._background.spawn(
                    self._remove_from(node, tombstone), f"removal on node {node}"
                )

    # ---- add

    async def add(self, log: LogRecord) -> None:
        """Every replica of the log comes into being; the first refusal is raised."""
        targets = [(s, node) for s in log.streams for node in self._replicas(s)]
        orders = (self._add_replica(log.log_id, stream, node) for stream, node in targets)
        for failure in await asyncio.gather(*orders, return_exceptions=True):
            if failure is not None:
                raise failure

    async def _add_replica(self, log_id: LogId, stream_id: StreamId, node: NodeId) -> None:
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
        await asyncio.gather(*(self._trim_on(node, log) for node in self._nodes(log.streams)))

    async def _trim_on(self, node: NodeId, log: LogRecord) -> None:
        mine = [stream_id for stream_id in log.streams if node in self._replicas(stream_id)]
        await asyncio.gather(*(self._trim_replica(node, s, log) for s in mine))

    async def _trim_replica(self, node: NodeId, stream_id: StreamId, log: LogRecord) -> None:
        order = pb.TrimLogStream(log_stream_id=stream_id, glsn=log.trimmed)
        try:
            await self._order(node, pb.Frame(trim_log_stream=order))
        except LoomError as error:
            logger.warning(
                "stream %d is not trimmed to %d on node %d yet: %s",
                *(stream_id, log.trimmed, node, error),
            )

    # ---- remove

    async def remove(self, tombstone: TombstoneRecord) -> None:
        """Remove every replica that can be reached; the tombstone keeps the others."""
        nodes = dict.fromkeys(n for _, replicas in tombstone.remains for n in replicas)
        await asyncio.gather(*(self._remove_from(node, tombstone) for node in nodes))

    async def _remove_from(self, node: NodeId, tombstone: TombstoneRecord) -> None:
        mine = [stream_id for stream_id, nodes in tombstone.remains if node in nodes]
        gone = await asyncio.gather(*(self._remove_replica(node, s) for s in mine))
        streams = {stream_id for stream_id, done in zip(mine, gone, strict=True) if done}
        if streams:
            await self._catalog.replicas_gone(tombstone.log_id, streams, node)

    async def _remove_replica(self, node: NodeId, stream_id: StreamId) -> bool:
        order = pb.RemoveLogStream(log_stream_id=stream_id, delete_data=True)
        try:
            await self._order(node, pb.Frame(remove_log_stream=order))
        except NotFound:
            return True
        except LoomError as error:
            logger.warning("stream %d is not removed from node %d yet: %s", stream_id, node, error)
            return False
        return True

    # ---- all

    def _replicas(self, stream_id: StreamId) -> tuple[NodeId, ...]:
        stream = self._catalog.streams.get(stream_id)
        return stream.replicas if stream else ()

    def _nodes(self, streams: Iterable[StreamId]) -> dict[NodeId, None]:
        return dict.fromkeys(node for s in streams for node in self._replicas(s))

    async def _order(self, node: NodeId, frame: pb.Frame) -> None:
        async with self._room:
            await self._members.request(node, frame, ORDER_TIMEOUT_S)
