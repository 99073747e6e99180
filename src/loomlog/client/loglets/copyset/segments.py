"""The cached state of a log's copyset segments, connections to their nodes, and their sequencers.

The state comes with the log's metadata: each segment's state in the epoch store, and which nodes of
the cluster are alive. The sequencer of a segment is the live node with the highest rendezvous hash.
A node that is not the sequencer names the one it knows, which is remembered until it fails or names
another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from loomlog.client.cached_log import CachedLog
from loomlog.client.loglets.views import SegmentViews
from loomlog.client.servers import Connections
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import node_of, sequencer_of
from loomlog.core.copyset.record import Epoch
from loomlog.errors import NotLeader, Retryable, Timeout, Unavailable
from loomlog.types import Buffer, LogId, NodeId, ShardId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import KnownNode, gone_shards, state_from_wire
from loomlog.wire.link import Connection

CONNECT_S: Final = 1.0  # until a node counts as dead
HOPS_MAX: Final = 3  # redirects followed without a pause


class View(NamedTuple):
    """The known state of a segment."""

    stream: StreamId
    loglet: LogId
    state: LogState
    nodes: Mapping[NodeId, KnownNode]
    lost: Mapping[ShardId, Epoch] = {}  # shards that are gone with what they had, up to an epoch

    @property
    def age(self) -> tuple[int, int, bool]:
        """Return a key by which newer views compare greater."""
        return self.state.epoch, self.state.last_clean, self.state.closed


class Segments(SegmentViews[View]):
    """All copyset segments of one log."""

    def __init__(self, log: CachedLog, connections: Connections) -> None:
        super().__init__(log)
        self._connections = connections

    async def refresh(self, stream: StreamId) -> View:
        """Return the view after a refresh of the log's metadata."""
        await self.log.refresh()
        return self.view(stream)

    async def try_to_refresh(self) -> None:
        """Refresh the log's metadata; keep what is cached if that fails for now."""
        with suppress(Retryable):
            await self.log.refresh()

    def _view_of(self, stream: pb.LogStream) -> View | None:
        if not stream.HasField("copyset"):
            return None
        state, nodes = state_from_wire(stream.copyset)
        lost = gone_shards(stream.copyset)
        return View(stream.log_stream_id, stream.copyset.loglet_id, state, nodes, lost)

    def _kept(self, newer: View, described: View) -> View:
        return newer._replace(nodes=described.nodes, lost=described.lost)

    def connected(self, view: View, shard: ShardId) -> Connection | None:
        """Return the open connection to the node of a shard; None if there is none or it is
        congested."""
        node = view.nodes.get(node_of(shard))
        connection = None if node is None else self._connections.get(node.address)
        return None if connection is None or connection.congested else connection

    async def connect(self, view: View, shard: ShardId) -> Connection:
        node = view.nodes.get(node_of(shard))
        if node is None:
            raise Unavailable(f"the address of node {node_of(shard)} is not known")
        return await self.connect_to(node.address)

    async def connect_to(self, address: str) -> Connection:
        """Return a connection that is not congested."""
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


class Sequencers:
    """The sequencers of the copyset segments of one log."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._named: dict[LogId, str] = {}  # address of the sequencer named by a redirect
        self._chosen: dict[LogId, tuple[View, str]] = {}  # by a view, and its address
        self._reported: dict[LogId, tuple[str, Epoch]] = {}  # epoch reported by an address

    def address(self, view: View) -> str:
        """Return the address of the node to ask next."""
        named = self._named.get(view.loglet)
        if named is not None:
            return named
        chosen = self._chosen.get(view.loglet)
        if chosen is None or chosen[0] is not view:
            chosen = self._chosen[view.loglet] = view, _chosen(view)
        return chosen[1]

    async def connect(self, view: View) -> Connection:
        return await self._segments.connect_to(self.address(view))

    def epoch(self, view: View, address: str) -> Epoch:
        """Return the epoch in which the node at `address` sequences, or would start to."""
        state = view.state
        reporter, reported = self._reported.get(view.loglet, ("", 0))
        if reporter == address and reported >= state.epoch:
            return reported
        node = view.nodes.get(state.sequencer)
        return state.epoch if node is not None and node.address == address else state.epoch + 1

    def epoch_reported(self, view: View, address: str, epoch: Epoch) -> None:
        self._reported[view.loglet] = address, epoch

    async def ask(
        self, view: View, frame: pb.Frame, timeout_s: float, payload: Sequence[Buffer] = ()
    ) -> pb.Frame:
        """Return the sequencer's answer to an idempotent request, following redirects."""
        for _ in range(HOPS_MAX):
            try:
                connection = await self.connect(view)
                answer: pb.Frame
                answer, _ = await connection.request(frame, payload, timeout_s=timeout_s)
                return answer
            except Retryable as error:
                self.failed(view, error)
                if not isinstance(error, NotLeader):
                    raise
        raise Unavailable(f"the sequencer of stream {view.stream} is being chosen: try again")

    def failed(self, view: View, error: Retryable) -> None:
        """Note that the node asked failed, or named another sequencer."""
        leader = error.leader if isinstance(error, NotLeader) else ""
        if leader and leader != self._named.get(view.loglet):
            self._named[view.loglet] = leader
        else:
            self._named.pop(view.loglet, None)


def _chosen(view: View) -> str:
    """Return the address of the node that nodes choose as sequencer, too."""
    alive = [node for node in view.nodes.values() if node.alive]
    staying = [node for node in alive if not node.draining] or alive
    weights = {node.node_id: 1.0 for node in staying}
    chosen = sequencer_of(view.loglet, weights, view.state.chosen)
    if chosen is None:
        raise Unavailable(f"no node is alive that could sequence stream {view.stream}")
    return view.nodes[chosen].address
