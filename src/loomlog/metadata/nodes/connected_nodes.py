"""The storage nodes as seen by this process: their connections, and when each last sent something.

A node is alive if it is connected and sent something within `failure_detection_s`. After a lost
connection, a node may reconnect within a short grace period before it counts as silent. Meanwhile
it is probed: if its process has ended, or it does not answer a ping in time, it is not alive
(core/presence.py). After a start of the metadata repository, all known nodes have the whole
detection time to come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Final

from loomlog import limits
from loomlog.core.conditions import DISK_KINDS, Condition
from loomlog.core.presence import ASK_S, QUIET_S, Presence, Standing
from loomlog.core.retention import ClockReading
from loomlog.errors import LoomError, Unavailable
from loomlog.types import Buffer, LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.conditions import condition_from_wire
from loomlog.wire.link import Connection

logger = logging.getLogger(__name__)

RECONNECT_GRACE_S: Final = (
    1.0  # a lost connection must be back within this time, or its node is silent
)
MICROSECONDS: Final = 1_000_000  # of a second
HELD_UP_S: Final = 0.5  # pause of this process that is logged as a warning
HELD_BACK_S: Final = 10.0  # far longer than the interval at which such a node asks again
TURNED_AWAY_S: Final = 5.0  # the same for a node that may not register
TWIN_S: Final = 60.0  # far longer than a service manager waits before it starts a process again


@dataclass(slots=True)
class ConnectedNode:
    """The state of a storage node since it registered with this process, or was expected to."""

    node_id: NodeId
    connection: Connection | None
    presence: Presence  # on the loop's clock
    reported: Standing = Standing.HERE  # for which `changed` was last called
    was_lost: bool = False  # its connection
    stored_bytes_total: int = 0  # of all protocols
    loglet_bytes: int | None = None  # of protocols that do not report them by stream; None: not yet
    sizes: dict[tuple[LogId, int], int] = field(default_factory=dict)  # of parts of loglets
    conditions: tuple[Condition, ...] = ()  # the conditions that it reports
    clock: ClockReading | None = None
    volumes: tuple[pb.VolumeSpace, ...] = ()  # and their space
    scrub: pb.ScrubStatus | None = None
    denials: int | None = None  # requests that it denied; None: it has not reported that yet
    audit_dropped: int | None = None  # entries that its audit trail left out
    refusals: pb.LimitRefusals | None = None
    restrictions: pb.NodeConditions = field(default_factory=pb.NodeConditions)  # without the words

    @property
    def heard_at(self) -> float | None:
        """When it last sent something, by the loop's clock; None: it has not registered here."""
        return self.presence.heard_at if self.connection or self.was_lost else None


def conditions_of(node: NodeId, message: pb.NodeConditions) -> tuple[Condition, ...]:
    """Return the conditions that a node reports, truncated, because any peer may send them."""
    chars_max = limits.NODE_CONDITION_CHARS_MAX
    listed = map(condition_from_wire, message.conditions[: limits.NODE_CONDITIONS_MAX])
    return tuple(
        replace(
            condition,
            node=condition.node or node,
            text=condition.text[:chars_max],
            help=condition.help[:chars_max],
            volume=condition.volume[:chars_max],
            log="",
        )
        for condition in listed
    )


class ConnectedNodes:
    """All nodes of the cluster, and their connections to this process."""

    def __init__(self, failure_detection_s: float, changed: Callable[[NodeId, bool], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._failure_detection_s = failure_detection_s
        self._grace_s = min(RECONNECT_GRACE_S, failure_detection_s)
        self._check_every_s = min(failure_detection_s / 4, QUIET_S / 12)  # those that are silent
        self._rest_s = min(failure_detection_s / 4, ASK_S)  # between checks while none is
        self._due = float("inf")  # of the next check
        self._changed = changed
        self._nodes: dict[NodeId, ConnectedNode] = {}
        self._node_of: dict[Connection, NodeId] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._grace_timers: dict[NodeId, asyncio.TimerHandle] = {}
        self._held_back: dict[NodeId, tuple[str, float]] = {}  # address, when it asked last
        self._turned_away: dict[NodeId, tuple[str, float]] = {}  # why, when it asked last
        self._twins: dict[NodeId, tuple[str, float]] = {}  # address, when it was refused last

        self._restarting: dict[NodeId, float] = {}  # until when operators expect them back

    def start(self, known: Iterable[NodeId]) -> None:
        """Expect the nodes that were part of the cluster before."""
        now = self._loop.time()
        for node in known:
            self._nodes[node] = ConnectedNode(node, None, Presence(now, self._failure_detection_s))
        self._schedule()

    def stop(self) -> None:
        for timer in (self._timer, *self._grace_timers.values()):
            if timer is not None:
                timer.cancel()
        self._changed = lambda node, alive: None

    # ---- queries

    def alive(self, node: NodeId) -> bool:
        return self.standing(node) is Standing.HERE

    def silent(self, node: NodeId) -> bool:
        """Return whether a node is not alive, and not expected back in a moment."""
        return self.standing(node) is Standing.SILENT

    def standing(self, node: NodeId) -> Standing:
        known = self._nodes.get(node)
        if known is None:
            return Standing.SILENT
        return known.presence.standing(self._loop.time() - self._slept_s())

    def silent_s(self, node: NodeId) -> float:
        """Return how long ago a node last sent something, or its connection was lost."""
        known = self._nodes.get(node)
        return self._loop.time() - known.presence.heard_at if known else float("inf")

    def expect_restart(self, node: NodeId, for_s: float) -> None:
        """Wait for a node that is about to be restarted, until it registers again."""
        self._restarting[node] = self._loop.time() + for_s

    def restart_left_s(self, node: NodeId) -> float:
        """Return for how long a node is still expected back from a restart; 0: it is not."""
        return max(0.0, self._restarting.get(node, 0.0) - self._loop.time())

    def reachable(self, node: NodeId) -> bool:
        return self.connected(node) and self.alive(node)

    def all_reachable(self) -> list[NodeId]:
        return [node for node in sorted(self._nodes) if self.reachable(node)]

    def connected(self, node: NodeId) -> bool:
        known = self._nodes.get(node)
        return known is not None and known.connection is not None

    def was_lost(self, node: NodeId) -> bool:
        """Return whether a node was connected to this process and is no longer."""
        known = self._nodes.get(node)
        return known is not None and known.was_lost

    def is_stopping(self, node: NodeId) -> bool:
        """Return whether a node announced that it stops, and is still connected."""
        known = self._nodes.get(node)
        return known is not None and known.connection is not None and known.presence.ended

    def expected(self, node: NodeId) -> bool:
        """Return whether a node has not registered here yet, but may still do so in time."""
        known = self._nodes.get(node)
        waited_for = known is not None and known.connection is None and not known.was_lost
        return waited_for and self.alive(node)

    def node_of(self, connection: Connection) -> NodeId | None:
        """Return the node that registered on a connection, unless a newer one replaced it."""
        return self._node_of.get(connection)

    def get(self, node: NodeId) -> ConnectedNode | None:
        return self._nodes.get(node)

    def held_back(self, node: NodeId) -> str | None:
        """Return the address of an empty node that asked for this number a moment ago."""
        address, asked_at = self._held_back.get(node, ("", float("-inf")))
        return address if self._loop.time() - asked_at < HELD_BACK_S else None

    def turned_away(self, node: NodeId) -> str:
        """Return why a node that asked a moment ago may not register now; "" if none did."""
        reason, asked_at = self._turned_away.get(node, ("", float("-inf")))
        return reason if self._loop.time() - asked_at < TURNED_AWAY_S else ""

    def twin(self, node: NodeId) -> str:
        """Return the address of a second process of a node that was refused lately; "" if none."""
        address, refused_at = self._twins.get(node, ("", float("-inf")))
        return address if self._loop.time() - refused_at < TWIN_S else ""

    # ---- events

    def refuse_twin(self, node: NodeId, address: str) -> None:
        """Record that a second process of a node was refused."""
        self._twins[node] = address, self._loop.time()

    def turn_away(self, node: NodeId, reason: str) -> None:
        """Record that a known node is up, but may not register now."""
        self._turned_away[node] = reason, self._loop.time()

    def hold_back(self, node: NodeId, address: str) -> None:
        """Record that an empty node asks for the number of a known one."""
        self._held_back[node] = address, self._loop.time()

    def joined(self, node: NodeId, connection: Connection) -> None:
        """Record that a node registered, and close its older connection."""
        known = self._nodes.get(node)
        old = known.connection if known else None
        presence = Presence(self._loop.time(), self._failure_detection_s, connected=True)
        reported = known.reported if known else Standing.SILENT
        self._nodes[node] = ConnectedNode(node, connection, presence, reported)
        self._node_of[connection] = node
        self._held_back.pop(node, None)
        self._turned_away.pop(node, None)
        self._restarting.pop(node, None)
        if (timer := self._grace_timers.pop(node, None)) is not None:
            timer.cancel()
        if old is not None:
            self._node_of.pop(old, None)
            old.close(Unavailable(f"node {node} registered again"))
        self._check(self._nodes[node])

    def let_register_again(self, node: NodeId) -> None:
        """Close the connection of a node, if there is one: another process with its data has
        overwritten its record, and is gone."""
        known = self._nodes.get(node)
        if known is not None and known.connection is not None:
            known.connection.close(Unavailable(f"another process registered as node {node}"))

    def lost(self, connection: Connection) -> ConnectedNode | None:
        """Return the node that registered on a connection that was lost, if any."""
        node = self._node_of.pop(connection, None)
        if node is None:
            return None
        known = self._nodes[node]
        known.connection = None
        known.presence.disconnected(self._loop.time(), self._grace_s)
        known.was_lost = True
        self._grace_timers[node] = self._loop.call_later(self._grace_s, self._grace_over, node)
        return known

    def may_come_back(self, known: ConnectedNode) -> bool:
        """Return whether a node has not registered since then, but does not count as silent yet."""
        return self._nodes.get(known.node_id) is known and known.node_id in self._grace_timers

    def refused(self, known: ConnectedNode) -> None:
        """Record that nothing listens at the address of a node that may come back."""
        known.presence.process_ends()
        self._check(known)

    def stops(self, node: NodeId) -> None:
        """Record that a node is about to stop: others continue without it while it is still
        there."""
        known = self._nodes[node]
        known.presence.process_ends()
        self._check(known)

    def heard(self, node: NodeId) -> ConnectedNode:
        known = self._nodes[node]
        now, presence = self._loop.time(), known.presence
        if known.reported is Standing.HERE and now < presence.heard_at + self._check_every_s:
            presence.heard_at, presence.asked_at = now, inf  # it is there, as before
            return known
        was_here = known.reported is Standing.HERE is presence.standing(now)
        presence.heard(now)
        if (
            not was_here and not presence.ended
        ):  # listeners may not know yet, but the state may have been queried
            known.reported = Standing.HERE
            self._changed(node, True)
        return known

    def take_report(self, node: NodeId, report: pb.GetReportResponse) -> None:
        """Called with every report of a node that registered."""
        known = self.heard(node)
        if report.clock_us:
            known.clock = ClockReading(report.clock_us / MICROSECONDS, known.presence.heard_at)
        if report.HasField("conditions"):  # a heartbeat
            for size in report.sizes:
                if size.stored_bytes:
                    known.sizes[size.loglet_id, size.part] = size.stored_bytes
                else:
                    known.sizes.pop((size.loglet_id, size.part), None)
            known.stored_bytes_total += report.loglet_bytes - (known.loglet_bytes or 0)
            known.loglet_bytes = report.loglet_bytes
            known.volumes = tuple(report.volumes[: limits.VOLUMES_MAX])
            known.scrub = report.scrub if report.HasField("scrub") else None
            known.denials = report.denials
            known.audit_dropped = report.audit_dropped
            known.refusals = report.refusals
            self.take_conditions(node, report.conditions)

    def take_conditions(self, node: NodeId, message: pb.NodeConditions) -> None:
        """Called when a node reports its conditions."""
        known, now = self._nodes[node], pb.NodeConditions()
        known.conditions = conditions_of(node, message)
        now.CopyFrom(message)
        now.ClearField("conditions")
        before, known.restrictions = known.restrictions, now
        if before.takes_nothing is not now.takes_nothing:
            what = "cannot take anything new" if now.takes_nothing else "has room again"
            logger.warning("node %d %s", node, what)
        if before != now:
            self._changed(node, self.alive(node))

    def size_of(self, node: NodeId, loglet: LogId, part: int) -> int | None:
        """Return the approximate bytes that a node stores of a part of a loglet, as last reported;
        None: it did not report them."""
        known = self._nodes.get(node)
        return known.sizes.get((loglet, part)) if known else None

    def restrictions(self, node: NodeId) -> pb.NodeConditions:
        """Return what a node reports that it cannot do."""
        known = self._nodes.get(node)
        return known.restrictions if known else pb.NodeConditions()

    def takes_nothing(self, node: NodeId) -> bool:
        """Return whether a node has reported that its disks are full or broken."""
        return self.restrictions(node).takes_nothing

    def complaints(self, node: NodeId, stream: StreamId = 0) -> str:
        """Return a node's reported problems with its disks, or with a stream, in one line."""
        known = self._nodes.get(node)
        return "; ".join(
            each.sentence
            for each in (known.conditions if known else ())
            if each.kind in DISK_KINDS or (stream and each.stream == stream)
        )

    def takes_more(self, node: NodeId) -> bool:
        """Return whether new data can be placed on a node."""
        return self.reachable(node) and not self.takes_nothing(node)

    def disconnect(self, node: NodeId, error: LoomError) -> None:
        """Drop a node, if it is connected: it has to register again."""
        known = self._nodes.get(node)
        if known is not None and known.connection is not None:
            known.connection.close(error)

    def disconnect_all(self, error: LoomError) -> None:
        """Drop all nodes; nothing more is sent to them."""
        for connection in list(self._node_of):
            connection.close(error)

    def cut(self, node: NodeId) -> None:
        """Close the connection of a node, if any, so that it must register again."""
        known = self._nodes.get(node)
        if known is not None and known.connection is not None:
            known.connection.abort(Unavailable(f"node {node} was given up"))

    def forget(self, node: NodeId) -> None:
        """Forget a node that is no longer part of the cluster."""
        known = self._nodes.pop(node, None)
        if (timer := self._grace_timers.pop(node, None)) is not None:
            timer.cancel()
        if known is not None and known.connection is not None:
            self._node_of.pop(known.connection, None)
            known.connection.close(Unavailable(f"node {node} was removed from the cluster"))

    # ---- silence

    def _grace_over(self, node: NodeId) -> None:
        self._grace_timers.pop(node, None)
        self._check(self._nodes[node])

    def _schedule(self) -> None:
        now = self._loop.time()
        looks_at = (known.presence.look_at(now) for known in self._nodes.values())
        soon_s = min(looks_at, default=inf) - now
        delay_s = max(self._check_every_s, min(soon_s, self._rest_s))
        self._due = now + delay_s
        self._timer = self._loop.call_later(delay_s, self._check_all)

    def _slept_s(self) -> float:
        """Return how long this process itself was suspended or blocked. Messages of nodes may have
        waited meanwhile, so that time does not count as their silence."""
        return max(0.0, self._loop.time() - self._due - self._check_every_s)

    def _check_all(self) -> None:
        slept_s, now = self._slept_s(), self._loop.time()
        if slept_s:
            if slept_s >= HELD_UP_S:
                logger.warning("this process was held up for %.1f s", slept_s)
            for known in self._nodes.values():
                known.presence.heard_at = min(now, known.presence.heard_at + slept_s)
        for known in list(self._nodes.values()):
            if known.connection is not None and known.presence.ask(now):
                known.connection.ping(partial(self._answered, known))
        self._schedule()
        for known in list(self._nodes.values()):
            self._check(known)

    def _answered(self, known: ConnectedNode, answer: pb.Frame | LoomError, _: memoryview) -> None:
        if known.connection is not None and not isinstance(answer, LoomError):
            self.heard(known.node_id)

    def _check(self, known: ConnectedNode) -> None:
        standing = self.standing(known.node_id)
        if standing is not known.reported:
            known.reported = standing
            self._changed(known.node_id, standing is Standing.HERE)

    # ---- messages

    def send(self, node: NodeId, frame: pb.Frame) -> None:
        """Send a message without an answer; it is dropped if the node is not connected."""
        known = self._nodes.get(node)
        if known is not None and known.connection is not None:
            known.connection.send(frame)

    async def request(
        self, node: NodeId, frame: pb.Frame, timeout_s: float = limits.REQUEST_TIMEOUT_S
    ) -> pb.Frame:
        """Return the answer of a node. Raise Unavailable also if the node registered again
        meanwhile, because the answer may be about its earlier data."""
        return (await self.exchange(node, frame, (), timeout_s))[0]

    async def exchange(
        self, node: NodeId, frame: pb.Frame, payload: Sequence[Buffer], timeout_s: float
    ) -> tuple[pb.Frame, memoryview]:
        """Send a request as `request` does, with payloads."""
        connection = self._connection(node)
        answer, content = await connection.request(frame, payload, timeout_s=timeout_s)
        if self._connection(node) is not connection:
            raise Unavailable(f"node {node} registered again")
        assert isinstance(answer, pb.Frame)
        return answer, content

    def _connection(self, node: NodeId) -> Connection:
        known = self._nodes.get(node)
        if known is None or known.connection is None:
            raise Unavailable(f"node {node} is not connected")
        return known.connection
