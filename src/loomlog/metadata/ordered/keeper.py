"""The keeper of the `ordered` protocol: streams that get entries while their segment is active.

All ordered segments of a log share its commit rounds, so positions continue across them, and
sealing a segment needs no storage node: once its streams are closed, no round gives them positions,
and the current round, when it is durable, determines the tail. The repair loop seals the replicas
afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Final

from loomlog.core.conditions import Condition
from loomlog.core.ordered.outage import outage
from loomlog.core.ordered.rounds import LogRounds, StreamRounds
from loomlog.core.ordered.stream_record import StreamRecord
from loomlog.core.outage import PartOutage
from loomlog.core.rebalance import ReplicaGroup
from loomlog.core.segments import Segment, Settings, Successor
from loomlog.core.sizes import Measured
from loomlog.errors import LoomError, NotFound, Timeout, Unauthorized, Unavailable
from loomlog.limits import REQUEST_TIMEOUT_S
from loomlog.metadata.catalog.records import LogRecord, NodeRecord
from loomlog.metadata.metrics import shown_logs, stream_sample, streams_of
from loomlog.metadata.ordered.committer import Committer
from loomlog.metadata.ordered.node_choice import NodeChoice
from loomlog.metadata.ordered.orders import Orders
from loomlog.metadata.ordered.records import StreamRecords
from loomlog.metadata.ordered.relief import Relief
from loomlog.metadata.ordered.repair_loop import Reconciler
from loomlog.metadata.ordered.repair_steps import RepairSteps
from loomlog.metadata.ordered.status import StreamStatus
from loomlog.metadata.ordered.stream_operator import StreamOperator
from loomlog.metadata.ordered.streams import OrderedStreams
from loomlog.metadata.protocol import (
    Answer,
    Cleanup,
    KeeperContext,
    ProtocolKeeper,
    ReplicaSet,
    TakeReport,
)
from loomlog.metrics import Metric, Sample, counter, histogram
from loomlog.protocol_names import ORDERED
from loomlog.types import Glsn, LogId, NodeId, ReplicaState, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection

logger = logging.getLogger(__name__)

CREATE_TIMEOUT_S: Final = 8.0  # for the streams of a new log to run; a client waits longer
MAKE_TIMEOUT_S: Final = 3.0  # twice at most: less than a client waits for the answer
FIND_TIME_TIMEOUT_S: Final = 5.0  # for a node that reads its index from a busy disk
BEGIN_WAIT_S: Final = (
    2.0  # for the streams of a segment to run; after that they run in the background
)


class OrderedKeeper(ProtocolKeeper):
    """Connects commit rounds, repair and operators' commands for one term."""

    protocol: ClassVar[str] = ORDERED
    has_min_replicas: ClassVar[bool] = True

    @classmethod
    async def load(cls, context: KeeperContext) -> OrderedKeeper:
        return cls(context, await StreamRecords.load(context.store, context.catalog))

    def __init__(self, context: KeeperContext, records: StreamRecords) -> None:
        background = context.background
        self._catalog = context.catalog
        self._nodes = context.nodes
        self._are_rounds_doubtful = context.round_log.is_doubtful
        self.records = records
        self._placement = context.placement
        self.committer = Committer(
            context.round_log,
            records,
            context.nodes,
            changed=self._stream_changed,
            failed=context.failed,
        )
        self._choice = choice = NodeChoice(self.committer, context.lost_nodes, self._stream_changed)
        self._orders = Orders(self.committer, background)
        steps = RepairSteps(
            self.committer,
            self._orders,
            choice,
            context.forget_if_removed,
            lambda node: self._relief.node_joined(node),
            request_timeout_s=context.settings.failure_detection_s,
            sync_bytes_per_s=context.settings.sync_bytes_per_s,
        )
        self.reconciler = Reconciler(self.committer, background, choice, steps)
        self._streams = OrderedStreams(
            self.committer, self._orders, self.reconciler, context.placement
        )
        self._relief = Relief(self.committer, self._streams, background)
        self._operator = StreamOperator(
            self.committer, choice, self._orders, self.reconciler, self._streams
        )
        self._status = StreamStatus(self.committer, self.reconciler, context.placement)

    def _stream_changed(self, stream_id: StreamId) -> None:
        self.reconciler.wake(stream_id)

    def start(self) -> None:
        for log in self._catalog.logs.values():
            self._streams.rounds_of(log)
        self.committer.start()
        for log in self._catalog.logs.values():
            # Including ended segments, whose replicas know where they begin.
            for segment in log.layout.segments:
                if segment.settings.protocol == self.protocol:
                    self.committer.logs[log.log_id].begin_at(segment.start)
            if self._are_rounds_doubtful:
                self.committer.logs[log.log_id].doubt()
        self._orders.start()
        self._relief.start()

    def stop(self) -> None:
        self.reconciler.stop()
        self._choice.stop()

    def end(self) -> None:
        self.stop()
        self.committer.stop()

    # ---- segments

    def replicas_least(self, settings: Settings) -> int:
        return settings.replicas_least

    async def make(self, log: LogRecord, successor: Successor) -> None:
        """Create streams that are sealed on all their replicas, so that one step lets them run."""
        settings = successor.settings
        await self._placement.wait_for_nodes(settings.replicas)
        made = self.records.of_segment(log, successor.loglet)
        placed = self._placement.place(max(settings.streams - len(made), 0), settings)
        made += await self._streams.create(log, successor.loglet, placed)
        if not log.unfinished:  # else `begin` follows at once
            await self._all_sealed([record.stream_id for record in made])

    async def _all_sealed(self, streams: list[StreamId]) -> None:
        for stream_id in streams:
            self.reconciler.wake(stream_id)
        try:
            async with asyncio.timeout(MAKE_TIMEOUT_S):
                for stream_id in streams:
                    await self.reconciler.until(stream_id, _is_sealed)
        except TimeoutError:
            raise Timeout(
                f"its new streams were not ready within {MAKE_TIMEOUT_S:g} s: look at "
                "`loom status` and try again"
            ) from None

    async def begin(self, log: LogRecord, segment: Segment) -> bool:
        self.committer.logs[log.log_id].begin_at(segment.start)
        streams = [record.stream_id for record in self.records.of_segment(log, segment.loglet)]
        return await self._streams.run(
            streams, CREATE_TIMEOUT_S if log.unfinished else BEGIN_WAIT_S
        )

    def log_changed(self, log: LogRecord) -> None:
        for stream in self.records.of_log(log.log_id):
            self.reconciler.wishes_changed(stream.stream_id)

    async def why_not_sealed(self, log: LogRecord, segment: Segment) -> str:
        """Return a reason only if rounds are lost; otherwise rounds end without any nodes."""
        await self.committer.heard_all(self._rounds(log))
        return self.committer.lost_rounds(log.log_id)

    async def seal(self, log: LogRecord, segment: Segment) -> Glsn:
        self.committer.check_whole(log.log_id, log.name)
        rounds = self._rounds(log)
        await self.committer.settled(rounds)
        return max(rounds.high_watermark, segment.start - 1)

    async def discard(self, log: LogRecord, loglet: LogId) -> None:
        for record in self.records.of_segment(log, loglet):
            await self._streams.take_back(record)

    async def trim(self, log: LogRecord) -> None:
        await self._streams.drop_trimmed(log.log_id)
        await self._orders.trim(self._catalog.log(log.name))

    async def deleted(self, log: LogRecord) -> None:
        self.committer.remove(log.log_id)
        self.reconciler.wake_waiting()  # others may move now
        await asyncio.gather(*map(self._orders.remove, self.records.log_deleted(log.log_id)))

    # ---- positions

    async def find_tail(self, log: LogRecord, segment: Segment) -> Glsn:
        await self.committer.heard_all(self._rounds(log))
        self.committer.check_whole(log.log_id, log.name)
        if unheard := self._rounds(log).unheard:
            nodes = unheard[0].replicas
            raise Unavailable(
                f"nobody has confirmed yet where stream {unheard[0].stream_id} of log {log.name!r} "
                f"ends: start node {' or '.join(map(str, nodes))}",
                lasting=all(self._nodes.silent_s(node) > REQUEST_TIMEOUT_S for node in nodes),
            )
        return self.known_tail(log, segment)

    def known_tail(self, log: LogRecord, segment: Segment) -> Glsn:
        known = self.committer.known_high_watermark(self._rounds(log))
        return max(known, segment.start - 1)  # it may be just about to begin

    def is_tail_known(self, log: LogRecord, segment: Segment) -> bool:
        return not (self.committer.lost_rounds(log.log_id) or self._rounds(log).unheard)

    async def find_time(
        self, log: LogRecord, segment: Segment, timestamp_us: int, first: Glsn
    ) -> Glsn:
        """Ask one replica of each stream for the first entry of the time."""
        last = segment.end
        if last is None:
            self.committer.check_whole(log.log_id, log.name)
            last = self._rounds(log).high_watermark
        streams = self.records.of_segment(log, segment.loglet)
        found = await asyncio.gather(
            *(self._find_time_in(stream, timestamp_us, first, last) for stream in streams)
        )
        return min((last + 1, *(position for position in found if position)))

    async def _find_time_in(
        self, stream: StreamRecord, timestamp_us: int, first: Glsn, last: Glsn
    ) -> Glsn:
        """Return the first position of a time in a stream; 0 if all entries up to `last` are
        older."""
        question = pb.FindTime(
            log_stream_id=stream.stream_id, timestamp_us=timestamp_us, first_glsn=first
        )
        doubt: LoomError = _nobody(stream)
        for node in filter(self._nodes.reachable, stream.replicas):
            try:
                answer = await self._nodes.request(
                    node, pb.Frame(find_time=question), FIND_TIME_TIMEOUT_S
                )
            except LoomError as error:
                doubt = error
                continue
            found = answer.found_time
            if found.position or found.high_watermark >= last:
                return int(found.position)
            doubt = Unavailable(f"node {node} does not know all of stream {stream.stream_id} yet")
        raise doubt

    async def measure(
        self, log: LogRecord, segment: Segment, first: Glsn, last: Glsn
    ) -> Sequence[Measured]:
        streams = self.records.of_segment(log, segment.loglet)
        return await asyncio.gather(*(self._measure(stream, first, last) for stream in streams))

    async def _measure(self, stream: StreamRecord, first: Glsn, last: Glsn) -> Measured:
        """Return the measurement of the replica that knows most."""
        question = pb.MeasureStream(log_stream_id=stream.stream_id, first=first, last=last)
        known: Measured | None = None
        doubt: LoomError = _nobody(stream)
        for node in filter(self._nodes.reachable, stream.replicas):
            try:
                answer = await self._nodes.request(
                    node, pb.Frame(measure_stream=question), FIND_TIME_TIMEOUT_S
                )
            except LoomError as error:
                doubt = error
                continue
            found = Measured(answer.measured.through, answer.measured.size)
            known = max(known or found, found)
            if known.through >= last:
                break
        if known is None:
            raise doubt
        return known

    def _rounds(self, log: LogRecord) -> LogRounds:
        rounds = self.committer.logs.get(log.log_id)
        if rounds is None:
            raise NotFound(f"log {log.name!r} was deleted")
        return rounds

    # ---- status

    def streams(self, log: LogRecord) -> list[pb.LogStream]:
        return self._status.of_log(log)

    def conditions(self, log: LogRecord) -> list[Condition]:
        return self._status.conditions(log)

    def has_stream(self, stream_id: StreamId) -> bool:
        return stream_id in self.records.streams

    def version_of(self, log: LogRecord) -> int:
        return self.records.version_of(log.log_id)

    def extend_status(self, status: pb.Status) -> None:
        status.rounds = self.committer.rounds

    def metrics(self, status: pb.Status) -> list[Metric]:
        logs, lost_rounds = self.committer.logs, self.committer.lost_rounds
        lost = [
            Sample(int(lost_rounds(log.log_id) != ""), {"log": log.name})
            for log in shown_logs(status)
            if lost_rounds(log.log_id) or (log.log_id in logs and not logs[log.log_id].unheard)
        ]
        lags = [
            stream_sample(found.lag, log, stream)
            for log, stream in streams_of(status)
            if (found := self.committer.stream(stream.log_stream_id)) is not None and found.heard
        ]
        return [
            counter("rounds", "Commit rounds.", status.rounds),
            histogram(
                "round_seconds",
                "Time from the begin of a commit round until it is durable.",
                self.committer.round_times,
            ),
            Metric("log_rounds_lost", "gauge", "1 if rounds of a log are lost.", lost),
            Metric(
                "stream_lag_entries",
                "gauge",
                "Entries that the slowest replica of a stream lacks.",
                lags,
            ),
        ]

    # ---- operators

    async def change_stream(self, request: pb.ChangeStream) -> pb.Changed:
        return await self._operator.change_stream(request)

    def describe_replicas(self, stream_id: StreamId) -> list[pb.ReplicaDescription]:
        return self._status.replicas_of(stream_id)

    # ---- storage nodes

    def placement(self) -> list[tuple[NodeId, ...]]:
        return [stream.replicas for stream in self.records.streams.values()]

    def replicas_on(self, node: NodeId) -> list[ReplicaSet]:
        streams = self.records.on_node(node)
        return [ReplicaSet(f"stream {s.stream_id}", s.replicas) for s in streams]

    def stuck_on(self, node: NodeId) -> list[str]:
        streams = [self.committer.stream(s.stream_id) for s in self.records.on_node(node)]
        return [
            f"stream {stream.stream_id}"
            for stream in streams
            if stream and stream.joining is None and self._choice.spare(stream) is None
        ]

    def outage(self, log: LogRecord, away: Collection[NodeId]) -> list[PartOutage]:
        rounds = self.committer.logs.get(log.log_id)
        settings = log.layout.active.settings
        least = settings.replicas_least if settings.protocol == self.protocol else None
        streams = map(self._operator.copies_of, rounds.streams.values() if rounds else ())
        return outage(streams, away, self._placement.usable_nodes(), least)

    async def leave(self, node: NodeId, index: int, stored: Collection[pb.StoredReplica]) -> int:
        return sum([await self._leave(node, replica) for replica in stored])

    async def _leave(self, node: NodeId, stored: pb.StoredReplica) -> bool:
        """Move a replica to another node; if there is none, to another volume of the same one."""
        record = self.records.streams.get(stored.log_stream_id)
        if record is None or node not in (*record.replicas, record.joining):
            return False
        stream = self.committer.stream(record.stream_id)
        if stream is None or record.joining is not None or node not in record.replicas:
            return True
        within = self._choice.spare(stream) is None and self._nodes.takes_more(node)
        leaving = None if within else node
        if record.leaving in (None, node) and record.leaving != leaving:
            await self.records.update(record.stream_id, leaving=leaving)
            self.reconciler.wishes_changed(record.stream_id)
        if within:
            try:
                await self._orders.relocate(node, record)
            except LoomError as error:
                logger.warning("stream %d: node %d: %s", record.stream_id, node, error)
        return True

    def is_needed(self, node: NodeId) -> bool:
        logs = (log.streams.values() for log in self.committer.logs.values())
        in_use = ([s for s in streams if not s.closed and not s.removing] for streams in logs)
        return any(
            any(node in s.replicas for s in streams)
            and all(s.sealed or node in s.replicas for s in streams)
            for streams in in_use
        )

    def replica_groups(self) -> list[ReplicaGroup]:
        return [
            ReplicaGroup(
                record.stream_id,
                0,
                record.replicas,
                max(
                    (self._stored_on(node, record.stream_id) for node in record.replicas), default=0
                ),
            )
            for record in self.records.streams.values()
            if record.joining is None and record.leaving is None and not record.removing
        ]

    def _stored_on(self, node: NodeId, stream_id: StreamId) -> int:
        held = self.committer.held.get(node, stream_id)
        return held.stored_bytes if held else 0

    def stored_bytes(self, node: NodeId) -> int:
        streams = self.records.streams
        held = self.committer.held.on(node)
        return sum(
            replica.stored_bytes
            for stream_id, replica in held.items()
            if stream_id in streams and node in streams[stream_id].replicas
        )

    def forgotten(self, node: NodeId) -> list[str]:
        unknown = self._operator.unknown_streams(node)
        return [f"stream {each}" for each in unknown if each not in self.records.streams]

    def unknown_streams(self, node: NodeId) -> list[StreamId]:
        return self._operator.unknown_streams(node)

    async def clean_up(self, node: NodeId) -> Cleanup:
        cleaned = await self._operator.clean_up(node)
        self.reconciler.wake_waiting()  # the node may now take replicas that old data prevented
        return cleaned

    def node_joined(self, node: NodeId) -> None:
        self.committer.catch_up(node)
        self._choice.came_back(node)
        self.reconciler.node_changed(node, alive=True)
        self._relief.node_joined(node)
        self._orders.greet(node)

    def node_changed(self, node: NodeId, *, alive: bool) -> None:
        for stream in self.records.on_node(node):
            self.reconciler.wishes_changed(stream.stream_id)
        self.reconciler.node_changed(node, alive=alive)
        self._orders.node_changed(node)
        if not alive:
            self._relief.node_silent(node)
        self._relief.node_full(node)
        self._relief.node_given_up(node)

    # ---- news from nodes

    def has_data(self, request: pb.Register) -> bool:
        return bool(request.uncommit_reports)

    def fill_registered(self, node: NodeRecord, answer: pb.Registered) -> None:
        answer.reads_packed = True

    def registered(self, node: NodeRecord, request: pb.Register) -> None:
        self.committer.reconnected(node.node_id, reads_packed=request.reads_packed)
        self.committer.take_report(node.node_id, request)

    def report_handler(self) -> TakeReport:
        return self.committer.take_report

    # ---- requests

    def requests(self) -> Mapping[str, Answer]:
        return {"check_replica": self._check_replica, "hold_log": self._hold_log}

    async def _hold_log(self, connection: Connection, frame: pb.Frame) -> pb.Frame:
        order, node = frame.hold_log, self._nodes.node_of(connection)
        self.committer.hold(node, order.log_stream_id, order.seal_epoch, order.expected_tail)
        return pb.Frame(done=pb.Done())

    async def _check_replica(self, connection: Connection, frame: pb.Frame) -> pb.Frame:
        asked = frame.check_replica
        stream = self.records.stream(asked.log_stream_id)
        if asked.storage_node_id not in (*stream.replicas, stream.joining):
            raise Unauthorized(
                f"node {asked.storage_node_id} has no replica of stream {asked.log_stream_id}"
            )
        return pb.Frame(done=pb.Done())


def _nobody(stream: StreamRecord) -> Unavailable:
    nodes = " or ".join(map(str, stream.replicas))
    return Unavailable(f"no replica of stream {stream.stream_id} is there: start node {nodes}")


def _is_sealed(stream: StreamRounds) -> bool:
    """Return whether every replica exists and is sealed."""
    reports = [stream.reports.get(node) for node in stream.replicas]
    return all(
        report is not None and report.epoch == stream.epoch and report.state is ReplicaState.SEALED
        for report in reports
    )
