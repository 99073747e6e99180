"""The keeper of the `copyset` protocol: loglets are made, begun, sealed, trimmed and shown."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, Final

from loomlog.core.conditions import Condition
from loomlog.core.copyset.landmarks import Ages, SequencerTail, last_to_go, tail
from loomlog.core.copyset.log_state import awaited, first_state, holders, is_recovered
from loomlog.core.copyset.losses import Closing, Closings
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import Authority, index_of, node_of, shard_of
from loomlog.core.copyset.outage import outage
from loomlog.core.copyset.record import last_of, skip_zero
from loomlog.core.copyset.upkeep import why_not_closed
from loomlog.core.outage import PartOutage
from loomlog.core.segments import Segment, Settings, Successor
from loomlog.core.sizes import Measured
from loomlog.errors import InvalidArgument, Retryable, Sealed, Unavailable
from loomlog.limits import NODESET_MAX
from loomlog.metadata.catalog.records import LogRecord, NodeRecord
from loomlog.metadata.copyset.completion import Completion
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.instead import INSTEAD
from loomlog.metadata.copyset.nodes import CopysetNodes
from loomlog.metadata.copyset.operator import CopysetOperator
from loomlog.metadata.copyset.rebuild_log import RebuildLog
from loomlog.metadata.copyset.rebuilder import Rebuilder
from loomlog.metadata.copyset.records import CopysetCatalog, CopysetRecord, losses_name, nodes_of
from loomlog.metadata.copyset.recoveries import Recoveries
from loomlog.metadata.copyset.removal import CopysetRemover, CopysetTrimmer
from loomlog.metadata.copyset.status import CopysetStatus, metrics
from loomlog.metadata.copyset.verification import Verification
from loomlog.metadata.copyset.writers import WriterReports
from loomlog.metadata.nodes.placement import LOOK_S
from loomlog.metadata.protocol import (
    Answer,
    KeeperContext,
    LogletKeeper,
    Renewal,
    ReplicaSet,
    TakeReport,
)
from loomlog.metrics import Metric
from loomlog.protocol_names import COPYSET
from loomlog.types import Glsn, LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection

REGISTER_WAIT_S: Final = 3.0  # for nodes, after a takeover
SEAL_WAIT_S: Final = 6.0  # for recovery; less than a client waits for its answer
HOPELESS_S: Final = 1.0  # for the same, while too few nodes are there
TAIL_WAIT_S: Final = 6.0  # for a sequencer, and its recovery
TRIM_WAIT_S: Final = 3.0  # then it continues in the background


class CopysetKeeper(LogletKeeper[CopysetRecord]):
    """Makes, seals and shows copyset loglets; recoveries.py gives them new epochs."""

    protocol: ClassVar[str] = COPYSET
    instead: ClassVar[Mapping[int, str]] = INSTEAD
    records: CopysetCatalog
    has_streams: ClassVar[bool] = False
    has_nodesets: ClassVar[bool] = True
    has_min_replicas: ClassVar[bool] = True

    @classmethod
    async def load(cls, context: KeeperContext) -> CopysetKeeper:
        copysets = await CopysetCatalog.load(context.store, context.catalog)
        return cls(context, copysets, await RebuildLog.load(context.store))

    def __init__(
        self, context: KeeperContext, copysets: CopysetCatalog, rebuild_log: RebuildLog
    ) -> None:
        catalog, self.records = context.catalog, copysets
        self._catalog = catalog
        self._connected = context.nodes
        self._placement = context.placement
        nodes = CopysetNodes(
            catalog, context.nodes, context.lost_nodes, context.settings.failure_detection_s
        )
        self.epochs = EpochStore(
            catalog, copysets, nodes, context.clocks.now_us, context.contradicted
        )
        self._nodes = nodes
        self._closings = Closings()
        self._rebuilder = Rebuilder(context, self.epochs, rebuild_log)
        self.epochs.rebuilt = self._rebuilder.to_wire
        self._nodes.is_given_up = self._rebuilder.view.is_given_up
        self._recoveries = Recoveries(self.epochs, self._rebuilder.view.through, context.background)
        self._nodes.avoided = self._recoveries.avoided
        self._rebuilder.changed = self._look_again
        self.epochs.taken = self._recoveries.look  # nodes may have joined since
        self._status = CopysetStatus(self.epochs, self._recoveries, self._rebuilder)
        self._operator = CopysetOperator(
            self.epochs, self._recoveries, self._status, context.background
        )
        self._completion = Completion(self.epochs, context.background, self._rebuilder.restored)
        self._verification = Verification(self.epochs, context.background)
        self._writers = WriterReports(self.epochs)
        self._trimmer = CopysetTrimmer(self.epochs, context.background)
        self._remover = CopysetRemover(self.epochs, context.background)

    def start(self) -> None:
        for record in self.records:
            self._wake(record)
        self._rebuilder.wake()

    def stop(self) -> None:
        self._recoveries.stop()

    def _look_again(self, loglet: LogId | None) -> None:
        if loglet is None:
            self._recoveries.look_at_all()
            self._verification.look_at_all()
        elif (record := self.records.get(loglet)) is not None:
            self._recoveries.look(record)

    def _wake(self, record: CopysetRecord) -> None:
        self._recoveries.look(record)
        self._completion.look(record)
        self._verification.look(record)
        self._trimmer.look(record)
        self._remover.look(record)

    def check(self, settings: Settings) -> None:
        if settings.streams > 1:
            raise InvalidArgument(
                f"a log of protocol {self.protocol!r} has one stream: leave out how many, and ask "
                "for a larger nodeset to spread it over more nodes"
            )
        replicas, nodeset = settings.replicas, settings.nodeset
        if 0 < nodeset < replicas or nodeset > NODESET_MAX:
            raise InvalidArgument(
                f"a nodeset of {nodeset} nodes cannot be: with {replicas} replicas it has "
                f"{replicas} to {NODESET_MAX}"
            )

    # ---- creation

    def replicas_least(self, settings: Settings) -> int:
        return settings.replicas_least

    async def make(self, log: LogRecord, successor: Successor) -> None:
        """Write a record; nodes learn of the loglet with the first append."""
        settings, loglet = successor.settings, successor.loglet
        if self.records.get(loglet) is not None:
            return
        wanted = max(settings.replicas, settings.nodeset)
        await self._placement.wait_for_nodes(wanted)
        nodeset, least = self._nodes.first_nodeset(loglet, settings), settings.replicas_least
        nodes, usable = {member.node for member in nodeset}, self._placement.usable_nodes()
        if len(nodes) < settings.replicas or len(nodeset) < wanted or len(usable) < least:
            is_nodeset = settings.nodeset > settings.replicas
            what = f"a nodeset of {wanted} needs" if is_nodeset else f"{wanted} replicas need"
            raise self._placement.too_few(wanted, f"{what} as many nodes")
        takers = {node_of(s) for s in self._nodes.takers([member.shard for member in nodeset])}
        if len(takers) < least:
            raise Unavailable(
                f"{settings.replicas} replicas need as many nodes, and {len(takers)} can store "
                "copies now: see `loom status`, or ask for fewer"
            )
        stream_id = (await self._catalog.new_streams())[0]
        stamp = self._catalog.new_stamp()
        state = first_state(nodeset, settings.replicas, stamp=stamp, least=least)
        await self.records.add(CopysetRecord(loglet, log.log_id, stream_id, state))

    async def begin(self, log: LogRecord, segment: Segment) -> bool:
        await self.epochs.begin(segment)
        return True

    def log_changed(self, log: LogRecord) -> None:
        for record in self.records.of_log(log.log_id):
            self._wake(record)

    # ---- the end

    async def why_not_sealed(self, log: LogRecord, segment: Segment) -> str:
        """Return why some epochs cannot be recovered now, which prevents closing the loglet."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REGISTER_WAIT_S):
                while self._why_not_closed(segment):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        return self._why_not_closed(segment)

    def _why_not_closed(self, segment: Segment) -> str:
        record = self.records.get(segment.loglet)
        if record is None or not record.begun:
            return ""
        state, nodes = record.state, self._nodes
        return why_not_closed(state, nodes.alive_of(state), nodes.failing(state))

    async def seal(self, log: LogRecord, segment: Segment) -> Glsn:
        await self.epochs.begin(segment)  # in case it has not begun
        self.log_changed(log)
        try:
            async with asyncio.timeout(SEAL_WAIT_S):
                state = await self.epochs.until(segment.loglet, _is_over)
        except TimeoutError:
            record = self.records.get(segment.loglet)
            why = self._status.condition(record) if record else "it was deleted"
            raise Unavailable(f"segment {segment.loglet} is not closed yet: {why}") from None
        return state.tail

    async def discard(self, log: LogRecord, loglet: LogId) -> None:
        record = self.records.get(loglet)
        if record is not None:
            self._remover.look(record)

    async def trim(self, log: LogRecord) -> None:
        self.log_changed(log)
        with suppress(TimeoutError):
            async with asyncio.timeout(TRIM_WAIT_S):
                await self._trimmer.done(log.log_id)

    # ---- positions

    async def find_tail(self, log: LogRecord, segment: Segment) -> Glsn:
        """Ask the sequencer for the tail; it is started if necessary."""
        try:
            begun_s = asyncio.get_running_loop().time()
            async with asyncio.timeout(TAIL_WAIT_S) as limit:
                while (found := await self._ask_for_tail(segment)) is None:
                    wait_s = TAIL_WAIT_S if self._can_recover(segment) else HOPELESS_S
                    limit.reschedule(begun_s + wait_s)
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            record = self.records.get(segment.loglet)
            why = self._status.condition(record) if record else ""
            why = why or "its nodes do not answer in time"
            raise Unavailable(
                f"where segment {segment.loglet} ends is not known now: {why}; see `loom status`",
                lasting=not self._can_recover(segment),
            ) from None
        self.epochs.take_tail(segment.loglet, found)
        return max(found, segment.start - 1)

    def _can_recover(self, segment: Segment) -> bool:
        """Return whether enough nodes are there to recover all epochs that have ended."""
        record = self.records.get(segment.loglet)
        if record is None or not record.begun:
            return True
        state = record.state
        over = state.epoch - int(self._nodes.alive(state.sequencer))
        return not awaited(state, self._nodes.alive_of(state), over)

    async def _ask_for_tail(self, segment: Segment) -> Glsn | None:
        """Ask the sequencer for the tail; return None if it has to be asked again."""
        record, node, known = self.records.get(segment.loglet), None, None
        if record is not None:
            node = self._nodes.sequencer(segment.loglet, record.state)
        with suppress(Retryable, Sealed):
            if node is not None and not self._is_closed(segment):
                found = await self._nodes.find_tail(node, segment.loglet)
                known = SequencerTail(found.epoch, found.tail)
        record = self.records.get(segment.loglet)
        return tail(record.state, known) if record is not None and record.begun else 0

    def _is_closed(self, segment: Segment) -> bool:
        record = self.records.get(segment.loglet)
        return record is not None and record.state.closed

    def known_tail(self, log: LogRecord, segment: Segment) -> Glsn:
        return self.epochs.known_tail(segment)

    def is_tail_known(self, log: LogRecord, segment: Segment) -> bool:
        return self.epochs.is_tail_known(segment, self._nodes.reachable)

    async def find_time(
        self, log: LogRecord, segment: Segment, timestamp_us: int, first: Glsn
    ) -> Glsn:
        """Find where the time begins, from the landmarks of the nodes. Trims end at partitions of
        the nodes' stores, so that nodes only have to drop whole partitions."""
        record = self.records.get(segment.loglet)
        if record is None or not record.begun:
            raise Unavailable(f"segment {segment.loglet} of log {log.name!r} is not there now")
        there = list(filter(self._nodes.can_ask, record.holders))
        marks = await self._nodes.landmarks(there, record.loglet, timestamp_us)
        last = last_to_go(
            record.state,
            {shard: Ages(mark.older, mark.young) for shard, mark in marks.items()},
            {shard: mark.released for shard, mark in marks.items()},
            {shard: Authority.UNDERREPLICATED for shard, m in marks.items() if m.underreplicated},
        )
        now = self.records.get(segment.loglet)
        if now is None or now.state.history != record.state.history:
            raise Unavailable(f"copies of segment {segment.loglet} moved meanwhile: try again")
        if last is None:
            raise Unavailable(f"too few nodes of segment {segment.loglet} answer")
        return max(first, skip_zero(last + 1))

    async def measure(
        self, log: LogRecord, segment: Segment, first: Glsn, last: Glsn
    ) -> Sequence[Measured]:
        """Add up the measurements of all shards. Each record is counted by the first shard to which
        it was sent, so the records of shards that do not answer may be missing."""
        record = self.records.get(segment.loglet)
        if record is None or not record.begun:
            raise Unavailable(f"segment {segment.loglet} of log {log.name!r} is not there now")
        there = list(filter(self._nodes.can_ask, record.holders))
        clean = last_of(record.state.last_clean)
        found = await self._nodes.measure(there, record.loglet, first, last, clean)
        now = self.records.get(segment.loglet)
        if now is None or now.state.history != record.state.history:
            raise Unavailable(f"copies of segment {segment.loglet} moved meanwhile: try again")
        if not found:
            raise Unavailable(f"no node of segment {segment.loglet} answers: start them")
        return found

    # ---- status

    def stream(self, log: LogRecord, record: CopysetRecord, segment: Segment) -> pb.LogStream:
        return self._status.stream(record, segment)

    def describe_replicas(self, stream_id: StreamId) -> list[pb.ReplicaDescription]:
        record = self.records.of_stream(stream_id)
        return [] if record is None else self._status.replicas(record)

    def segment_conditions(
        self, log: LogRecord, record: CopysetRecord, segment: Segment
    ) -> list[Condition]:
        return self._status.conditions(log, record, segment) if record.begun else []

    def extend_status(self, status: pb.Status) -> None:
        status.rebuilds.extend(self._status.rebuilds())

    def node_conditions(self, node: NodeId) -> list[Condition]:
        return [*self._status.node_conditions(node), *self._verification.conditions(node)]

    def metrics(self, status: pb.Status) -> list[Metric]:
        return metrics(status)

    # ---- nodes

    def placement(self) -> list[tuple[NodeId, ...]]:
        used = (each for each in self.records if not self._remover.is_abandoned(each))
        return [nodes for record in used for nodes in self.records.sets_of(record)]

    def replicas_on(self, node: NodeId) -> list[ReplicaSet]:
        return [
            ReplicaSet(self._catalog.name_of(record), tuple(sorted(nodes)))
            for record in self.records
            if node in (nodes := set(map(node_of, holders(record.state))))
            and not self._remover.is_abandoned(record)
        ]

    async def leave(self, node: NodeId, index: int, stored: Collection[pb.StoredReplica]) -> int:
        """Return how many loglets may have copies on the volume. They move with the rebuilding of
        the shard."""
        self.node_changed(node, alive=True)
        shard = shard_of(node, index)
        return sum(
            shard in holders(record.state) and not self._remover.is_abandoned(record)
            for record in self.records
        )

    def outage(self, log: LogRecord, away: Collection[NodeId]) -> list[PartOutage]:
        return [
            part
            for record in self.records.of_log(log.log_id)
            if log.segment_of(record.loglet) is not None
            for part in outage(
                record.loglet,
                record.state,
                away,
                self._nodes.refusing(record.state),
                self._nodes.losses(record),
            )
        ]

    def renewals(self) -> list[Renewal]:
        """Return the loglets that could use nodes that are new, or were away at their beginning."""
        found = []
        for record in self.records:
            log, state = self._catalog.log_of(record), record.state
            if log is None or not log.layout.takes_appends(record.loglet) or not state.sequencer:
                continue
            fresh = self.epochs.fresh_nodeset(log.layout.active, state)
            before, after = (
                tuple(sorted({member.node for member in nodeset}))
                for nodeset in (state.history[-1].nodeset, fresh)
            )
            joining = set(after).difference(before)
            if joining and all(map(self._nodes.reachable, joining)):
                found.append(Renewal(record.stream_id, before, after))
        return found

    async def change_stream(self, request: pb.ChangeStream) -> pb.Changed:
        change = self._operator.changes.get(request.action)
        return await (change or super().change_stream)(request)

    def stuck_on(self, node: NodeId) -> list[str]:
        """Return the logs whose nodesets need the node."""
        usable = {member.node for member in self._nodes.usable()} - {node}
        return [
            self._catalog.name_of(record)
            for record in self.records
            if node in nodes_of(record.state)
            and not record.state.closed
            and len(usable) < record.state.history[-1].replication
        ]

    def is_needed(self, node: NodeId) -> bool:
        states = (record.state for record in self.records)
        return any(state.sequencer == node and not state.closed for state in states)

    def node_joined(self, node: NodeId) -> None:
        self._rebuilder.wake()
        self._trimmer.node_joined(node)
        for record in self.records:
            if record.is_on(node):
                self._remover.look(record)
        self._recoveries.node_joined(node)
        self._verification.look_at_all()

    def node_changed(self, node: NodeId, *, alive: bool) -> None:
        self._rebuilder.wake()
        self._recoveries.node_changed(node, alive=alive)
        for record in self.records:
            self._remover.look(record)

    # ---- news from nodes

    def has_data(self, request: pb.Register) -> bool:
        return bool(request.lost_shards)

    def note_losses(
        self, node: NodeRecord, request: pb.Register, lost: Collection[int]
    ) -> NodeRecord:
        numbers = {closing.shard: closing.number for closing in request.closings}
        for shard, newest in self.records.newest_on(node.node_id).items():
            index = index_of(shard)
            closing = Closing(request.process, numbers.get(index, 0))
            if index in lost:
                node = self.records.with_loss(node, shard, newest)
            elif index in request.lost_shards:
                through = self._closings.lost_through(shard, closing, newest)
                node = self.records.with_loss(node, shard, through)
            else:
                self._closings.note(shard, closing, newest)
        return node

    def give_up(self, node: NodeRecord) -> NodeRecord:
        for shard, newest in self.records.newest_on(node.node_id).items():
            node = self.records.with_loss(node, shard, newest)
        return node

    def fill_registered(self, node: NodeRecord, answer: pb.Registered) -> None:
        answer.lost.extend(
            pb.LostCopies(loglet_id=loglet, epoch=epoch, shard=index)
            for index in node.shards
            for loglet, epoch in node.losses_of(losses_name(shard_of(node.node_id, index)))
            if loglet
        )
        answer.rebuild.CopyFrom(self._rebuilder.news())

    def report_handler(self) -> TakeReport:
        return self._take_report

    def _take_report(self, node: NodeId, report: pb.GetReportResponse) -> None:
        self.epochs.take_report(node, report)
        self._rebuilder.take_report(node, report)

    # ---- requests

    def requests(self) -> Mapping[str, Answer]:
        return {
            "epoch_store_request": self._epoch_store_request,
            "report_forgotten": self._writers.answer,
        }

    async def _epoch_store_request(self, connection: Connection, frame: pb.Frame) -> pb.Frame:
        node, request = self._connected.node_of(connection), frame.epoch_store_request
        state = await self.epochs.answer(node, request)
        if (record := self.records.get(request.loglet_id)) is not None:
            self._completion.look(record)
            self._verification.look(record)
        return pb.Frame(copyset_state=state)


def _is_over(state: LogState) -> bool:
    return state.closed and is_recovered(state)
