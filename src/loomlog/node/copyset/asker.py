"""Sends requests to shards of this node and of others, and runs procedures of core/copyset on them.

There is one connection to each other node. Once a node was sent a request, its connection is
restored whenever it is lost, unless the metadata repository says that the node is away: releases
are sent once, and a node that restarted needs them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

from loomlog.core.backoff import Backoff
from loomlog.core.copyset.messages import (
    EpochStoreRequest,
    LogState,
    NodeAnswer,
    NodeRequest,
    Refused,
    Release,
)
from loomlog.core.copyset.nodeset import Authority, Trouble, node_of
from loomlog.core.copyset.procedures import Answer, Exchange, Steps
from loomlog.core.requests import Lost, Outcome, drive
from loomlog.errors import LoomError, Retryable
from loomlog.net.endpoints import connect
from loomlog.node.copyset.epoch_store import EpochStoreClient
from loomlog.node.copyset.shards import LocalShards
from loomlog.types import LogId, NodeId, ShardId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.copyset import KnownNode, answer_from_wire, request_to_wire
from loomlog.wire.link import Connection, Frame

logger = logging.getLogger(__name__)

OnAnswer: TypeAlias = Callable[[NodeAnswer | None], None]

ANSWER_S: Final = 3.0  # nodes that are silent for longer count as dead elsewhere, too
GRACE_S: Final = 0.05  # for further answers, once there are enough
CONNECT_AGAIN: Final = Backoff(0.05, 1.0)


class Asker:
    """Sends requests to shards, of this node and others, and to the epoch store."""

    def __init__(
        self,
        me: NodeId,
        shards: LocalShards,
        epochs: EpochStoreClient,
        codec: Codec,
        connected: Callable[[NodeId], None],
    ) -> None:
        """`connected` is called for each connection that is made to another node."""
        self._me = me
        self._shards = shards
        self._epochs = epochs
        self._codec = codec
        self._connected = connected
        self._peers: dict[NodeId, _PeerNode] = {}
        self._loop = asyncio.get_running_loop()

    def ask(self, shard: ShardId, request: NodeRequest, done: OnAnswer) -> None:
        """Call `done` with the answer, or None without one, always after this has returned."""
        node = node_of(shard)
        if node == self._me:
            self._shards.ask(shard, request, partial(self._later, done))
        else:
            self._peer(node).ask(shard, request, self._shards.stamp_of(request.log), done)

    def release(self, shard: ShardId, release: Release) -> None:
        node = node_of(shard)
        if node == self._me:
            self._shards.release(shard, release)
        else:
            self._peer(node).release(shard, release, self._shards.stamp_of(release.log))

    def authorities(self, log: LogId) -> dict[ShardId, Authority]:
        """Return the authority of the shards for which recovery does not wait: they are gone."""
        return dict.fromkeys(self._epochs.gone.get(log, ()), Authority.UNAVAILABLE)

    async def run(self, steps: Steps[Outcome]) -> Outcome:
        """Drive a procedure to its end."""
        return await drive(steps, self._answer)

    async def run_gently(self, steps: Steps[Outcome]) -> Outcome:
        """Do the same, but rest after each exchange for as long as it took."""

        async def answer(asked: Exchange) -> Sequence[Answer]:
            began_s = self._loop.time()
            answers = await self._answer(asked)
            await asyncio.sleep(self._loop.time() - began_s)
            return answers

        return await drive(steps, answer)

    def _later(self, done: OnAnswer, answer: NodeAnswer) -> None:
        self._loop.call_soon(done, answer)

    async def _answer(self, asked: Exchange) -> Sequence[Answer]:
        answers: list[asyncio.Future[Answer]] = []
        for target, request in asked.asks:
            if isinstance(request, EpochStoreRequest):  # always alone
                return [await self._ask_store(request)]
            assert isinstance(target, int)
            answers.append(asyncio.get_running_loop().create_future())
            self.ask(target, request, partial(_came, answers[-1]))
        await _until_enough(asked, answers)
        return [answer.result() if answer.done() else Lost() for answer in answers]

    async def _ask_store(self, request: EpochStoreRequest) -> LogState | Lost:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._epochs.ask(request) or Lost()
        except TimeoutError:
            return Lost()

    # ---- the other nodes

    def learn(self, nodes: Iterable[KnownNode]) -> None:
        """Update the addresses of the other nodes, and which of them are alive. Nodes that are not
        named have left."""
        known = {node.node_id: node for node in nodes}
        for node_id in {**self._peers, **known}:
            node = known.get(node_id)
            self._peer(node_id).learn(node.address if node else "", bool(node and node.alive))

    def is_connected(self, node: NodeId) -> bool:
        return self._peer(node).connection is not None

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()

    def _peer(self, node: NodeId) -> _PeerNode:
        if node not in self._peers:
            self._peers[node] = _PeerNode(node, self._codec, self._connected)
        return self._peers[node]


def _came(future: asyncio.Future[Answer], answer: NodeAnswer | None) -> None:
    if not future.done():
        future.set_result(answer if answer is not None else Lost())


async def _until_enough(asked: Exchange, answers: Sequence[asyncio.Future[Answer]]) -> None:
    """Wait for enough answers, and then briefly for the others."""
    shards = [ask.target for ask in asked.asks if isinstance(ask.target, int)]
    by_shard = list(zip(shards, answers, strict=True))
    missing = list(answers)
    with suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            while missing and not asked.enough({s: a.result() for s, a in by_shard if a.done()}):
                await asyncio.wait(missing, return_when=asyncio.FIRST_COMPLETED)
                missing = [answer for answer in answers if not answer.done()]
    if missing:
        await asyncio.wait(missing, timeout=GRACE_S)


class _PeerNode:
    """Another node, and the connection to it."""

    def __init__(self, node: NodeId, codec: Codec, connected: Callable[[NodeId], None]) -> None:
        self._node = node
        self._codec = codec
        self._connected = connected
        self._loop = asyncio.get_running_loop()
        self._address = ""
        self._alive = False
        self.connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[tuple[ShardId, NodeRequest, int, OnAnswer]] = []
        self._wanted = False  # it was sent a request
        self._unreachable = False  # the last attempt failed; it will be repeated

    def learn(self, address: str, alive: bool) -> None:
        if address != self._address:
            self._address = address
            self._disconnect()
        came_back = alive and not self._alive
        self._alive = alive
        if came_back and self._wanted:
            self._connect_soon()

    def ask(self, shard: ShardId, request: NodeRequest, stamp: int, done: OnAnswer) -> None:
        """Answer None at once while the node cannot be reached, so that another one is asked."""
        self._wanted = True
        if self.connection is not None:
            _ask(self.connection, shard, request, stamp, done)
        elif not self._address or (self._unreachable and self._connecting is not None):
            self._loop.call_soon(done, None)
        else:
            self._waiting.append((shard, request, stamp, done))
            self._connect_soon()

    def release(self, shard: ShardId, release: Release, stamp: int) -> None:
        """Send a release if there is a connection; a new connection gets all releases again."""
        self._wanted = True
        if self.connection is not None:
            frame = pb.Frame()
            request_to_wire(shard, release, stamp, into=frame.copyset_request)
            self.connection.send(frame)
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
        for *_, done in waiting:
            self._loop.call_soon(done, None)

    def _connect_soon(self) -> None:
        if self._connecting is None and self.connection is None:
            self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        failures = 0
        while True:
            try:
                connection = await connect(
                    self._address, self._codec, self, wanted=("node", self._node)
                )
                break
            except Retryable as error:
                logger.debug("node %d: %s", self._node, error)
            except LoomError as error:
                logger.warning("node %d refuses this one: %s", self._node, error)
            except Exception:  # otherwise there would be no further attempt
                logger.exception("node %d: no connection can be made", self._node)
            self._unreachable = True
            self._give_up()
            if not (self._alive and self._wanted):
                self._connecting = None
                return
            await asyncio.sleep(CONNECT_AGAIN.delay_s(failures))
            failures += 1
        self._connecting = None
        self._unreachable = False
        if connection.closed:
            self._give_up()
            return
        self.connection = connection
        waiting, self._waiting = self._waiting, []
        for asked in waiting:
            _ask(connection, *asked)
        self._connected(self._node)

    # ---- Handler

    def frame_received(
        self, connection: Connection, kind: str, frame: Frame, payload: memoryview
    ) -> None:
        """Ignore the frame: nodes send no requests over accepted connections."""

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        if connection is self.connection:
            self.connection = None
            if self._alive and self._wanted:
                self._connect_soon()


def _ask(
    connection: Connection, shard: ShardId, request: NodeRequest, stamp: int, done: OnAnswer
) -> None:
    def answered(answer: Frame | LoomError, payload: memoryview) -> None:
        done(_answer_of(connection, answer, payload))

    frame = pb.Frame()
    _, batch = request_to_wire(shard, request, stamp, into=frame.copyset_request)
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
