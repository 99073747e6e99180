"""The storage nodes as this process sees them now: who is connected, who was heard when.

A node is alive if it is connected and was heard within `failure_detection_s`. A connection that
is lost may come back within a short grace before its node counts as silent; after a start of the
metadata repository all nodes that it knows have the whole detection time to come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from loomlog import limits
from loomlog.core.chained.projection import Replica
from loomlog.errors import Unavailable
from loomlog.net.connection import Connection
from loomlog.types import Buffer, NodeId, Report, StreamId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

RECONNECT_GRACE_S: Final = 1.0  # a lost connection is back within this, or its node is silent


@dataclass(slots=True)
class Member:
    node_id: NodeId
    connection: Connection | None
    heard_at: float  # on the loop's clock; also when the connection was lost
    silence_s: float  # that makes it silent, from `heard_at` on
    alive: bool = True  # as last told to `changed`
    was_lost: bool = False  # its connection
    # Of all that it holds, also of streams that are not its own any more:
    reports: dict[StreamId, Report] = field(default_factory=dict)
    stored_bytes: dict[StreamId, int] = field(default_factory=dict)
    stored_bytes_total: int = 0
    chain_bytes: int = 0
    chain_replicas: set[Replica] = field(default_factory=set)  # with which it registered

    def take(self, report: Report, stored_bytes: int) -> None:
        self.reports[report.stream_id] = report
        self.stored_bytes_total += stored_bytes - self.stored_bytes.get(report.stream_id, 0)
        self.stored_bytes[report.stream_id] = stored_bytes

    def take_chain_bytes(self, chain_bytes: int) -> None:
        self.stored_bytes_total += chain_bytes - self.chain_bytes
        self.chain_bytes = chain_bytes

    def drop(self, stream_id: StreamId) -> None:
        self.reports.pop(stream_id, None)
        self.stored_bytes_total -= self.stored_bytes.pop(stream_id, 0)


class Members:
    def __init__(self, failure_detection_s: float, changed: Callable[[NodeId, bool], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._failure_detection_s = failure_detection_s
        self._grace_s = min(RECONNECT_GRACE_S, failure_detection_s)
        self._check_every_s = failure_detection_s / 4
        self._due = float("inf")  # of the next check
        self._changed = changed
        self._members: dict[NodeId, Member] = {}
        self._node_of: dict[Connection, NodeId] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._grace_timers: dict[NodeId, asyncio.TimerHandle] = {}

    def start(self, known: Iterable[NodeId]) -> None:
        """Expect the nodes that were part of the cluster before."""
        now = self._loop.time()
        for node in known:
            self._members[node] = Member(node, None, now, self._failure_detection_s)
        self._schedule()

    def stop(self) -> None:
        for timer in (self._timer, *self._grace_timers.values()):
            if timer is not None:
                timer.cancel()
        self._changed = lambda node, alive: None

    # ---- questions

    def alive(self, node: NodeId) -> bool:
        member = self._members.get(node)
        if member is None:
            return False
        silent_s = self._loop.time() - member.heard_at - self._slept_s()
        return silent_s < member.silence_s

    def silent_s(self, node: NodeId) -> float:
        """How long ago it was heard, or its connection was lost."""
        member = self._members.get(node)
        return self._loop.time() - member.heard_at if member else float("inf")

    def report_of(self, node: NodeId, stream_id: StreamId) -> Report | None:
        """The last one on its connection: whether, and in what state, it holds a replica."""
        member = self._members.get(node)
        return member.reports.get(stream_id) if member else None

    def reachable(self, node: NodeId) -> bool:
        return self.connected(node) and self.alive(node)

    def all_reachable(self) -> list[NodeId]:
        return [node for node in sorted(self._members) if self.reachable(node)]

    def connected(self, node: NodeId) -> bool:
        member = self._members.get(node)
        return member is not None and member.connection is not None

    def was_lost(self, node: NodeId) -> bool:
        """It was connected to this process, and is not any more."""
        member = self._members.get(node)
        return member is not None and member.was_lost

    def node_of(self, connection: Connection) -> NodeId | None:
        """The node that registered on this connection, unless another one replaced it."""
        return self._node_of.get(connection)

    def get(self, node: NodeId) -> Member | None:
        return self._members.get(node)

    # ---- events

    def joined(self, node: NodeId, connection: Connection) -> None:
        """The node registered; an older connection of it is closed."""
        member = self._members.get(node)
        old = member.connection if member else None
        now = self._loop.time()
        alive = member.alive if member else False
        self._members[node] = Member(node, connection, now, self._failure_detection_s, alive)
        self._node_of[connection] = node
        if (timer := self._grace_timers.pop(node, None)) is not None:
            timer.cancel()
        if old is not None:
            self._node_of.pop(old, None)
            old.close(Unavailable(f"node {node} registered again"))
        self._check(self._members[node])

    def lost(self, connection: Connection) -> None:
        node = self._node_of.pop(connection, None)
        if node is None:
            return
        member = self._members[node]
        member.connection = None
        member.heard_at = self._loop.time()
        member.silence_s = self._grace_s
        member.was_lost = True
        self._grace_timers[node] = self._loop.call_later(self._grace_s, self._grace_over, node)

    def heard(self, node: NodeId) -> Member:
        member = self._members[node]
        now = self._loop.time()
        was_silent = not member.alive or now - member.heard_at >= member.silence_s
        member.heard_at = now
        if was_silent:  # perhaps nobody was told yet, but somebody may have asked
            member.alive = True
            self._changed(node, True)
        return member

    def removed(self, node: NodeId, stream_id: StreamId) -> None:
        """The node does not hold this replica any more."""
        member = self._members.get(node)
        if member is not None:
            member.drop(stream_id)

    def forget(self, node: NodeId) -> None:
        """The node is not part of the cluster any more."""
        member = self._members.pop(node, None)
        if (timer := self._grace_timers.pop(node, None)) is not None:
            timer.cancel()
        if member is not None and member.connection is not None:
            self._node_of.pop(member.connection, None)
            member.connection.close(Unavailable(f"node {node} was removed from the cluster"))

    # ---- silence

    def _grace_over(self, node: NodeId) -> None:
        self._grace_timers.pop(node, None)
        self._check(self._members[node])

    def _schedule(self) -> None:
        self._due = self._loop.time() + self._check_every_s
        self._timer = self._loop.call_later(self._check_every_s, self._check_all)

    def _slept_s(self) -> float:
        """How long this process itself was stopped or held up: what the nodes said meanwhile is
        still to be read, so it is not their silence."""
        return max(0.0, self._loop.time() - self._due - self._check_every_s)

    def _check_all(self) -> None:
        slept_s, now = self._slept_s(), self._loop.time()
        if slept_s:
            logger.warning("this process was held up for %.1f s", slept_s)
            for member in self._members.values():
                member.heard_at = min(now, member.heard_at + slept_s)
        self._schedule()
        for member in list(self._members.values()):
            self._check(member)

    def _check(self, member: Member) -> None:
        alive = self.alive(member.node_id)
        if alive is not member.alive:
            member.alive = alive
            self._changed(member.node_id, alive)

    # ---- messages

    def send(self, node: NodeId, frame: pb.Frame) -> None:
        """One-way; dropped if the node is not connected."""
        member = self._members.get(node)
        if member is not None and member.connection is not None:
            member.connection.send(frame)

    async def request(
        self, node: NodeId, frame: pb.Frame, timeout_s: float = limits.REQUEST_TIMEOUT_S
    ) -> pb.Frame:
        """The answer, or an error; also if the node registered again meanwhile: then the answer
        may be about an earlier life of the node."""
        return (await self.exchange(node, frame, (), timeout_s))[0]

    async def exchange(
        self, node: NodeId, frame: pb.Frame, payload: Sequence[Buffer], timeout_s: float
    ) -> tuple[pb.Frame, memoryview]:
        """As `request`, where more than messages goes to and fro."""
        connection = self._connection(node)
        answer, content = await connection.request(frame, payload, timeout_s=timeout_s)
        if self._connection(node) is not connection:
            raise Unavailable(f"node {node} registered again")
        assert isinstance(answer, pb.Frame)
        return answer, content

    def _connection(self, node: NodeId) -> Connection:
        member = self._members.get(node)
        if member is None or member.connection is None:
            raise Unavailable(f"node {node} is not connected")
        return member.connection
