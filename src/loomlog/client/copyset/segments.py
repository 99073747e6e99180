"""The copyset segments of one log as they are known, and their nodes.

What is known comes with the log's metadata: the state of each segment in the epoch store, the nodes
of the cluster and who of them is alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from loomlog.client.metadata import CachedLog
from loomlog.client.nodes import Connections
from loomlog.core.copyset.messages import LogState
from loomlog.errors import Timeout, Trimmed, Unavailable
from loomlog.net.connection import Connection
from loomlog.types import LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import KnownNode, state_from_wire

PROTOCOL: Final = "copyset"
CONNECT_S: Final = 1.0  # a node that takes longer to be reached is taken for dead


class SegmentGoneError(Trimmed):
    """Nothing is left of a segment, or the log never had it."""


class View(NamedTuple):
    """A segment as it is known."""

    stream: StreamId
    loglet: LogId
    state: LogState
    nodes: Mapping[NodeId, KnownNode]

    @property
    def age(self) -> tuple[int, int, bool]:
        """Grows with what is known."""
        return self.state.epoch, self.state.last_clean, self.state.closed


class Segments:
    """All copyset segments of one log, for one client."""

    def __init__(self, log: CachedLog, connections: Connections) -> None:
        self.log = log
        self._connections = connections
        self._views: dict[StreamId, View] = {}
        self._adopted: pb.Log | None = None  # what the views were taken from

    def view(self, stream: StreamId) -> View:
        """The newest that is known. SegmentGoneError: the log has no such stream any more."""
        if self.log.current is not self._adopted:
            self._adopt(self.log.current)
        found = self._views.get(stream)
        if found is None:
            name = self.log.name
            raise SegmentGoneError(f"the segment of stream {stream} of log {name!r} was trimmed")
        return found

    async def refresh(self, stream: StreamId) -> View:
        """As the metadata repository has it by now."""
        await self.log.refresh()
        return self.view(stream)

    def _adopt(self, log: pb.Log | None) -> None:
        self._adopted = log
        known, self._views = self._views, {}
        for stream in log.streams if log is not None else ():
            if stream.HasField("copyset"):
                view = _view(stream)
                before = known.get(view.stream)
                if before is not None and before.age > view.age:
                    view = before._replace(nodes=view.nodes)
                self._views[view.stream] = view

    def connected(self, view: View, node_id: NodeId) -> Connection | None:
        """The open connection to a node, if more can be sent over it."""
        node = view.nodes.get(node_id)
        connection = None if node is None else self._connections.get(node.address)
        return None if connection is None or connection.congested else connection

    async def connect(self, view: View, node_id: NodeId) -> Connection:
        node = view.nodes.get(node_id)
        if node is None:
            raise Unavailable(f"the address of node {node_id} is not known")
        return await self.connect_to(node.address)

    async def connect_to(self, address: str) -> Connection:
        """A connection that more can be sent over."""
        connection = self._connections.get(address)
        if connection is not None and not connection.congested:
            return connection
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = connection or await self._connections.connect(address)
                await connection.drain()
                return connection
        except TimeoutError:
            raise Timeout(f"no connection to {address} in time") from None


def _view(stream: pb.LogStream) -> View:
    return View(stream.log_stream_id, stream.copyset.loglet_id, *state_from_wire(stream.copyset))
