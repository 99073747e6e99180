"""Segments of the `copyset` protocol: made, begun, sealed, trimmed, shown."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from loomlog.core.copyset.landmarks import SequencerTail, tail
from loomlog.core.copyset.log_state import first_state, holders, is_recovered
from loomlog.core.copyset.messages import LogState
from loomlog.core.segments import Segment, Successor
from loomlog.errors import Retryable, Sealed, Unavailable
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.copyset.catalog import CopysetCatalog
from loomlog.metadata.copyset.conditions import condition, why_not_closed
from loomlog.metadata.copyset.epoch_store import EpochStore, begun_at
from loomlog.metadata.copyset.nodes import CopysetNodes
from loomlog.metadata.copyset.orders import CopysetOrders
from loomlog.metadata.copyset.recoveries import Recoveries
from loomlog.metadata.copyset.removal import Removal
from loomlog.metadata.copyset.trimming import Trimming
from loomlog.metadata.placing import LOOK_S, Placing
from loomlog.metadata.records import CopysetRecord, LogRecord
from loomlog.types import Glsn, LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb

REGISTER_WAIT_S: Final = 3.0  # for nodes, after a takeover
SEAL_WAIT_S: Final = 6.0  # for recovery; less than what a client waits for its answer
TAIL_WAIT_S: Final = 6.0  # for a sequencer, and its recovery; likewise
TRIM_WAIT_S: Final = 3.0  # then it is done as soon as it can be


class CopysetSegments:
    def __init__(
        self,
        catalog: Catalog,
        copysets: CopysetCatalog,
        epochs: EpochStore,
        nodes: CopysetNodes,
        orders: CopysetOrders,
        recoveries: Recoveries,
        trimming: Trimming,
        removal: Removal,
        placing: Placing,
    ) -> None:
        self._catalog = catalog
        self._copysets = copysets
        self._epochs = epochs
        self._nodes = nodes
        self._orders = orders
        self._recoveries = recoveries
        self._trimming = trimming
        self._removal = removal
        self._placing = placing
        self._told: dict[LogId, Glsn] = {}  # the last tails that were told of

    def start(self) -> None:
        """What an earlier leader left to be done."""
        for record in self._copysets:
            self._wake(record)

    def _wake(self, record: CopysetRecord) -> None:
        self._recoveries.look(record)
        self._trimming.look(record)
        self._removal.look(record)

    # ---- made

    async def make(self, log: LogRecord, successor: Successor) -> None:
        """A record: nodes hear of it with the first append."""
        settings, loglet = successor.settings, successor.loglet
        if self._copysets.get(loglet) is not None:
            return
        with suppress(TimeoutError):  # then those that are there have to do
            async with asyncio.timeout(REGISTER_WAIT_S):
                await self._placing.registered(max(settings.replicas, settings.nodeset))
        nodeset = self._nodes.first_nodeset(loglet, settings)
        stream_id = await self._catalog.new_stream()
        state = first_state(nodeset, settings.replicas)
        await self._copysets.add(CopysetRecord(loglet, log.log_id, stream_id, state))

    async def begin(self, log: LogRecord, segment: Segment) -> None:
        await self._epochs.begin(segment)

    def chain_changed(self, log: LogRecord) -> None:
        for record in self._copysets.of_log(log.log_id):
            self._wake(record)

    deleted = chain_changed

    # ---- ended

    async def why_not_sealed(self, segment: Segment) -> str:
        """To close it all its epochs have to be recovered."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REGISTER_WAIT_S):
                while self._why_not_closed(segment):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        return self._why_not_closed(segment)

    def _why_not_closed(self, segment: Segment) -> str:
        record = self._copysets.get(segment.loglet)
        if record is None or not record.begun:
            return ""
        return why_not_closed(record.state, self._nodes.alive_of(record.state))

    async def seal(self, log: LogRecord, segment: Segment) -> Glsn:
        await self._epochs.begin(segment)  # if it never did
        self.chain_changed(log)
        try:
            async with asyncio.timeout(SEAL_WAIT_S):
                state = await self._epochs.until(segment.loglet, _is_over)
        except TimeoutError:
            record = self._copysets.get(segment.loglet)
            why = self._condition(record) if record else "it was deleted"
            raise Unavailable(f"segment {segment.loglet} is not closed yet: {why}") from None
        return state.tail

    async def discard(self, log: LogRecord, loglet: LogId) -> None:
        record = self._copysets.get(loglet)
        if record is not None:
            self._removal.look(record)

    async def trim(self, log: LogRecord) -> None:
        self.chain_changed(log)
        with suppress(TimeoutError):
            async with asyncio.timeout(TRIM_WAIT_S):
                await self._trimming.done(log.log_id)

    # ---- shown

    async def find_tail(self, segment: Segment) -> Glsn:
        """Whoever sequences it knows, or comes to sequence it."""
        try:
            async with asyncio.timeout(TAIL_WAIT_S):
                while (found := await self._ask_for_tail(segment)) is None:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            record = self._copysets.get(segment.loglet)
            why = (self._condition(record) if record else "") or "its nodes do not answer in time"
            raise Unavailable(
                f"where segment {segment.loglet} ends is not known now: {why}; see `loom status`"
            ) from None
        self.take_tail(segment.loglet, found)
        return max(found, segment.start - 1)

    async def _ask_for_tail(self, segment: Segment) -> Glsn | None:
        """None: ask again; of a segment that has not begun, or is gone, nothing is there."""
        node, known = self._nodes.sequencer(segment.loglet), None
        with suppress(Retryable, Sealed):
            if node is not None and not self._is_closed(segment):
                found = await self._orders.find_tail(node, segment.loglet)
                known = SequencerTail(found.epoch, found.tail)
        record = self._copysets.get(segment.loglet)
        return tail(record.state, known) if record is not None and record.begun else 0

    def _is_closed(self, segment: Segment) -> bool:
        record = self._copysets.get(segment.loglet)
        return record is not None and record.state.closed

    def known_tail(self, segment: Segment) -> Glsn:
        """All that is recovered is up to there, and what its sequencer told of; there may be
        more."""
        record = self._copysets.get(segment.loglet)
        known = record.state.tail if record is not None and record.begun else 0
        return max(known, self._told.get(segment.loglet, 0), segment.start - 1)

    def take_tail(self, loglet: LogId, tail: Glsn) -> None:
        """Somebody who sequences it, or did, has acknowledged all up to there."""
        if self._copysets.get(loglet) is not None:
            self._told[loglet] = max(tail, self._told.get(loglet, 0))
        else:
            self._told.pop(loglet, None)

    def streams(self, log: LogRecord) -> list[pb.LogStream]:
        segments = {segment.loglet: segment for segment in log.chain.segments}
        return [
            self._stream(begun_at(record, segments[record.loglet].start), segments[record.loglet])
            for record in sorted(self._copysets.of_log(log.log_id), key=lambda r: r.stream_id)
            if record.loglet in segments
        ]

    def _stream(self, record: CopysetRecord, segment: Segment) -> pb.LogStream:
        state = record.state
        addresses = {node.node_id: node.address for node in self._catalog.nodes.values()}
        return pb.LogStream(
            log_stream_id=record.stream_id,
            state=pb.STREAM_SEALED if state.closed else pb.RUNNING,
            seal_epoch=state.epoch,
            replicas=[
                pb.Replica(storage_node_id=node, address=addresses.get(node, ""))
                for node in state.history[-1].nodes
            ],
            entries=self.known_tail(segment),
            condition=self._condition(record),
            loglet_id=record.loglet,
            protocol=segment.settings.protocol,
            copyset=self._epochs.to_wire(record),
        )

    def _condition(self, record: CopysetRecord) -> str:
        alive, reason = self._nodes.alive_of(record.state), self._recoveries.reason(record)
        return condition(record.state, alive, reason, self._recoveries.trouble(record.loglet))

    def has_stream(self, stream_id: StreamId) -> bool:
        return self._copysets.of_stream(stream_id) is not None

    def version_of(self, log: LogRecord) -> int:
        return self._copysets.version_of(log.log_id)

    # ---- nodes

    def placement(self) -> list[tuple[NodeId, ...]]:
        return [
            record.state.history[-1].nodes
            for record in self._copysets
            if not record.state.closed and not self._removal.is_abandoned(record)
        ]

    def replicas_on(self, node: NodeId) -> list[tuple[NodeId, ...]]:
        """For each loglet that it may have records of, the nodes that may."""
        return [
            tuple(sorted(holders(record.state)))
            for record in self._copysets
            if node in holders(record.state) and not self._removal.is_abandoned(record)
        ]

    def kept_on(self, node: NodeId) -> list[str]:
        names = {
            log.name: None
            for record in self._copysets
            if node in holders(record.state)
            and not self._removal.is_abandoned(record)
            and (log := self._catalog.log_of(record)) is not None
        }
        return sorted(names)

    def can_leave(self, node: NodeId) -> bool:
        """Out of nodesets; what it has stays there."""
        usable = {member for member in self._nodes.usable() if member.node_id != node}
        return all(
            len(usable) >= record.state.history[-1].replication
            for record in self._copysets
            if node in record.state.history[-1].nodes and not record.state.closed
        )

    async def clean_up(self, node: NodeId) -> int:
        """Nodes do not say what they have: what they are to forget is in records."""
        return 0

    def node_joined(self, node: NodeId) -> None:
        self._trimming.node_joined(node)
        for record in self._copysets:
            if node in record.holders:
                self._removal.look(record)
        self._recoveries.node_joined(node)

    def node_changed(self, node: NodeId, *, alive: bool) -> None:
        self._recoveries.node_changed(node, alive=alive)
        for record in self._copysets:
            self._removal.look(record)


def _is_over(state: LogState) -> bool:
    return state.closed and is_recovered(state)
