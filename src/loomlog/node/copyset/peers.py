"""Requests to other nodes: one connection to each, with as many requests on it as there are.

A node that somebody had something for stays connected: its connection is made again when it is
lost, unless the metadata repository says that the node is away. For releases are told once, and a
node that was started anew has to be told again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeAlias

from loomlog.core.copyset.messages import NodeAnswer, NodeRequest, Refused, Release, Trouble
from loomlog.errors import LoomError, Retryable, Unavailable
from loomlog.net.connection import Connection, Frame
from loomlog.net.endpoints import connect
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.copyset import KnownNode, answer_from_wire, request_to_wire

logger = logging.getLogger(__name__)

OnAnswer: TypeAlias = Callable[[NodeAnswer | None], None]

RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0


class Peers:
    """The other nodes. `connected` is called for each connection that is made."""

    def __init__(self, codec: Codec, connected: Callable[[NodeId], None]) -> None:
        self._codec = codec
        self._connected = connected
        self._nodes: dict[NodeId, _Peer] = {}

    def learn(self, nodes: Iterable[KnownNode]) -> None:
        """Where they are, and whether. Those that are not named have left."""
        known = {node.node_id: node for node in nodes}
        for node_id in {**self._nodes, **known}:
            node = known.get(node_id)
            self._peer(node_id).learn(node.address if node else "", bool(node and node.alive))

    def ask(self, node: NodeId, request: NodeRequest, done: OnAnswer) -> None:
        """`done` gets the answer, never before this returns; None: there is none."""
        self._peer(node).ask(request, done)

    async def request(self, node: NodeId, frame: Frame) -> Frame:
        """Raises what the node answers, or Unavailable."""
        connected: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()

        def tell(connection: Connection | None) -> None:
            if not connected.done():
                connected.set_result(connection)

        self._peer(node).when_connected(tell)
        if (connection := await connected) is None:
            raise Unavailable(f"node {node} cannot be reached")
        answer, _ = await connection.request(frame)
        return answer

    def tell(self, node: NodeId, release: Release) -> None:
        self._peer(node).tell(release)

    def is_connected(self, node: NodeId) -> bool:
        return self._peer(node).connection is not None

    def close(self) -> None:
        for peer in self._nodes.values():
            peer.close()

    def _peer(self, node: NodeId) -> _Peer:
        if node not in self._nodes:
            self._nodes[node] = _Peer(node, self._codec, self._connected)
        return self._nodes[node]


class _Peer:
    def __init__(self, node: NodeId, codec: Codec, connected: Callable[[NodeId], None]) -> None:
        self._node = node
        self._codec = codec
        self._connected = connected
        self._loop = asyncio.get_running_loop()
        self._address = ""
        self._alive = False
        self.connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[Callable[[Connection | None], None]] = []
        self._wanted = False  # somebody had something for it
        self._unreachable = False  # the last attempt failed; there will be others

    def learn(self, address: str, alive: bool) -> None:
        if address != self._address:
            self._address = address
            self._disconnect()
        came_back = alive and not self._alive
        self._alive = alive
        if came_back and self._wanted:
            self._connect_soon()

    def ask(self, request: NodeRequest, done: OnAnswer) -> None:
        """Between two attempts to connect, of which the first failed, there is no answer at once:
        other nodes can do it."""
        if self._unreachable and self._connecting is not None:
            self._wanted = True
            self._loop.call_soon(done, None)
        else:
            self.when_connected(partial(_ask, request, done))

    def when_connected(self, work: Callable[[Connection | None], None]) -> None:
        """None: it is not possible."""
        self._wanted = True
        if self.connection is not None:
            work(self.connection)
        elif not self._address:
            self._loop.call_soon(work, None)
        else:
            self._waiting.append(work)
            self._connect_soon()

    def tell(self, release: Release) -> None:
        """Lost if there is no connection: when there is one, it is told again."""
        self._wanted = True
        if self.connection is not None:
            message, _ = request_to_wire(release)
            self.connection.send(pb.Frame(copyset_request=message))
        elif self._address:
            self._connect_soon()

    def close(self) -> None:
        self._address = ""
        self._wanted = False
        self._disconnect()

    # ---- connecting

    def _disconnect(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
        self._give_up()

    def _give_up(self) -> None:
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            self._loop.call_soon(work, None)

    def _connect_soon(self) -> None:
        if self._connecting is None and self.connection is None:
            self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        delay_s = RETRY_FIRST_S
        while True:
            try:
                connection = await connect(self._address, self._codec, self)
                break
            except Retryable as error:
                logger.debug("node %d: %s", self._node, error)
            except LoomError as error:
                logger.warning("node %d refuses this one: %s", self._node, error)
            except Exception:  # or nobody would ever try again
                logger.exception("node %d: no connection can be made", self._node)
            self._unreachable = True
            self._give_up()
            if not (self._alive and self._wanted):
                self._connecting = None
                return
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)
        self._connecting = None
        self._unreachable = False
        if connection.closed:
            self._give_up()
            return
        self.connection = connection
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work(connection)
        self._connected(self._node)

    # ---- Handler

    def frame_received(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        """Nodes ask nothing of who connects to them."""

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        if connection is self.connection:
            self.connection = None
            if self._alive and self._wanted:
                self._connect_soon()


def _ask(request: NodeRequest, done: OnAnswer, connection: Connection | None) -> None:
    if connection is None:
        done(None)
        return

    def answered(answer: Frame | LoomError, payload: memoryview) -> None:
        done(_answer_of(connection, answer, payload))

    message, batch = request_to_wire(request)
    frame = pb.Frame(copyset_request=message)
    connection.call(frame, (batch,) if len(batch) else (), answered)


def _answer_of(
    connection: Connection, answer: Frame | LoomError, payload: memoryview
) -> NodeAnswer | None:
    if isinstance(answer, LoomError):
        return None if connection.closed else Refused(Trouble.DISABLED, str(answer))
    try:
        return answer_from_wire(answer.copyset_answer, payload)
    except LoomError as error:
        logger.warning("%s answers what makes no sense: %s", connection.peer, error)
        return Refused(Trouble.DISABLED, str(error))
