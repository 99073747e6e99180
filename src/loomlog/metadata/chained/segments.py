"""Segments of the `chained` protocol: made, begun, sealed, trimmed, shown."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Final

from loomlog.core.chained.messages import Create, Done, Refused, Seal, SealedAt
from loomlog.core.chained.projection import Projection, Replica, first_projection
from loomlog.core.chained.reading import find_tail
from loomlog.core.chained.reconfigure import Goal
from loomlog.core.segments import Segment, Settings, Successor
from loomlog.errors import InvalidArgument, Timeout, Unavailable
from loomlog.limits import CHAINS_PER_SEGMENT_MAX
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.chained.catalog import ChainedCatalog
from loomlog.metadata.chained.conditions import condition
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.nodes import ChainNodes
from loomlog.metadata.chained.sequencers import Sequencers
from loomlog.metadata.chained.upkeep import Upkeep
from loomlog.metadata.placing import LOOK_S, Placing
from loomlog.metadata.records import ChainedRecord, LogRecord
from loomlog.types import Glsn, LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import projection_to_wire

REGISTER_WAIT_S: Final = 3.0  # for nodes, after a takeover
MAKE_TIMEOUT_S: Final = 5.0  # with that less than what a client waits for the answer
TAIL_WAIT_S: Final = 6.0  # for a new epoch; less than what a client waits for its answer
TRIM_WAIT_S: Final = 3.0  # then it is done as soon as it can be


class ChainedSegments:
    def __init__(
        self,
        catalog: Catalog,
        chained: ChainedCatalog,
        sequencers: Sequencers,
        driver: Driver,
        nodes: ChainNodes,
        upkeep: Upkeep,
        placing: Placing,
    ) -> None:
        self._catalog = catalog
        self._chained = chained
        self._sequencers = sequencers
        self._driver = driver
        self._nodes = nodes
        self._upkeep = upkeep
        self._placing = placing
        self.node_joined = upkeep.node_joined
        self.node_changed = upkeep.node_changed
        self.clean_up = upkeep.removal.clean_up

    # ---- made

    async def make(self, log: LogRecord, successor: Successor) -> None:
        if successor.settings.streams > CHAINS_PER_SEGMENT_MAX:
            raise InvalidArgument(
                f"a chained log has at most {CHAINS_PER_SEGMENT_MAX} chains, not "
                f"{successor.settings.streams}: give it fewer streams"
            )
        with suppress(TimeoutError):  # then those that are there have to do
            async with asyncio.timeout(REGISTER_WAIT_S):
                await self._placing.registered(successor.settings.replicas)
        try:
            async with asyncio.timeout(MAKE_TIMEOUT_S):
                await self._make(log, successor)
        except TimeoutError:
            raise Timeout(
                f"its chains were not ready within {MAKE_TIMEOUT_S:g} s: look at `loom status` "
                "and try again"
            ) from None

    async def _make(self, log: LogRecord, successor: Successor) -> None:
        loglet = successor.loglet
        known = self._chained.get(loglet)
        if known is not None and known.made:
            return
        birth = known.births + 1 if known else 1
        projection = self._first_projection(loglet, successor.settings, birth)
        if known is None:
            stream_id = await self._catalog.new_stream()
            await self._chained.add(ChainedRecord(loglet, log.log_id, stream_id, projection))
        else:  # somebody began to make it: what there may be of that is removed
            await self._chained.change(
                loglet,
                lambda record: replace(
                    record, projection=projection, births=birth, dropping=record.replicas
                ),
            )
        making = (self._make_replica(replica) for replica in projection.replicas)
        for failure in await asyncio.gather(*making, return_exceptions=True):
            if failure is not None:
                raise failure
        await self._chained.change(loglet, lambda record: replace(record, made=True))
        self._upkeep.wake(loglet)

    def _first_projection(self, loglet: LogId, settings: Settings, birth: int) -> Projection:
        placed = self._placing.place(settings.streams, settings.replicas)
        name = self._sequencers.new_name()
        projection = first_projection(loglet, [*map(list, placed)], birth=birth, sequencer=name)
        return projection._replace(first=0, start=0)  # nobody knows where its segment begins

    async def _make_replica(self, replica: Replica) -> None:
        for request, expected in ((Create(), Done), (Seal(1), SealedAt)):
            answer = await self._driver.ask(replica, request)
            if not isinstance(answer, expected):
                reason = answer.reason if isinstance(answer, Refused) else "it does not answer"
                raise Unavailable(f"node {replica.node_id} cannot take a chain: {reason}")

    async def begin(self, log: LogRecord, segment: Segment) -> None:
        await self._upkeep.epochs.begin(segment)

    def chain_changed(self, log: LogRecord) -> None:
        self._upkeep.log_changed(log.log_id)

    deleted = chain_changed

    # ---- ended

    async def why_not_sealed(self, segment: Segment) -> str:
        """One node of each chain is enough: if there is none, nothing can be appended anyway."""
        return ""

    async def seal(self, log: LogRecord, segment: Segment) -> Glsn:
        await self._upkeep.epochs.begin(segment)  # if it never did
        goal = Goal(close=True)
        closed = await self._upkeep.epochs.next(segment.loglet, goal, "its segment ends")
        return closed.start - 1

    async def discard(self, log: LogRecord, loglet: LogId) -> None:
        self._upkeep.wake(loglet)

    async def trim(self, log: LogRecord) -> None:
        self._upkeep.log_changed(log.log_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(TRIM_WAIT_S):
                await self._upkeep.trimming.done(log.log_id)

    # ---- shown

    async def find_tail(self, segment: Segment) -> Glsn:
        try:
            async with asyncio.timeout(TAIL_WAIT_S):
                while (found := await self._ask_for_tail(segment)) is None:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise Unavailable(
                f"segment {segment.loglet} waits for its nodes before it is known where it ends: "
                "try again soon, and see `loom status`"
            ) from None
        return max(found, segment.start - 1)

    async def _ask_for_tail(self, segment: Segment) -> Glsn | None:
        """None: ask again; of a segment that has not begun, or is gone, nothing is there."""
        record = self._chained.get(segment.loglet)
        if record is None or not record.begun:
            return 0
        outcome = await self._driver.drive(record.loglet, find_tail(record.projection))
        return outcome if isinstance(outcome, int) else None

    def known_tail(self, segment: Segment) -> Glsn:
        """What was handed out, or is over: in this term it never falls."""
        record = self._chained.get(segment.loglet)
        start = record.projection.start if record is not None else 0
        return max(segment.start, start, self._sequencers.end_of(segment.loglet)) - 1

    def streams(self, log: LogRecord) -> list[pb.LogStream]:
        records = self._chained.of_log(log.log_id)
        segments = {segment.loglet: segment for segment in log.chain.segments}
        return [
            self._stream(record, segments[record.loglet])
            for record in sorted(records, key=lambda record: record.stream_id)
            if record.loglet in segments
        ]

    def _stream(self, record: ChainedRecord, segment: Segment) -> pb.LogStream:
        projection = record.projection
        if not record.begun:  # it is about to: nothing is there
            projection = projection._replace(first=segment.start, start=segment.start)
        addresses = {node.node_id: node.address for node in self._catalog.nodes.values()}
        nodes = dict.fromkeys(replica.node_id for replica in projection.replicas)
        tail = self.known_tail(segment)
        return pb.LogStream(
            log_stream_id=record.stream_id,
            state=self._state(record),
            seal_epoch=projection.epoch,
            replicas=[
                pb.Replica(storage_node_id=node, address=addresses.get(node, "")) for node in nodes
            ],
            entries=tail,
            condition=self._condition(record, segment),
            joining_node=record.joining[0].node_id if record.joining else 0,
            copied_entries=tail * min(self._filled(record).values(), default=0) // 100,
            loglet_id=record.loglet,
            protocol=segment.settings.protocol,
            projection=projection_to_wire(projection, addresses),
        )

    def _state(self, record: ChainedRecord) -> pb.StreamState:
        if record.projection.closed:
            return pb.STREAM_SEALED
        return pb.RUNNING if record.loglet in self._sequencers else pb.SEALING

    def _condition(self, record: ChainedRecord, segment: Segment) -> str:
        action, trouble = self._upkeep.decide(record), self._upkeep.trouble(record.loglet)
        wanted, filled = segment.settings.replicas, self._filled(record)
        return condition(record.projection, wanted, action, filled, trouble)

    def _filled(self, record: ChainedRecord) -> dict[Replica, int]:
        """How many percent of what there is each newcomer has."""
        filling = self._upkeep.filling
        return {replica: filling.percent(record.loglet, replica) for replica in record.joining}

    def has_stream(self, stream_id: StreamId) -> bool:
        return self._chained.of_stream(stream_id) is not None

    def version_of(self, log: LogRecord) -> int:
        return self._chained.version_of(log.log_id)

    # ---- nodes

    def placement(self) -> list[tuple[NodeId, ...]]:
        return [
            tuple(replica.node_id for replica in chain)
            for record in self._chained
            for chain in record.projection.chains
        ]

    def replicas_on(self, node: NodeId) -> list[tuple[NodeId, ...]]:
        chains = [nodes for nodes in self.placement() if node in nodes]
        joining = [r for record in self._chained for r in record.joining if r.node_id == node]
        return chains + [()] * len(joining)

    def kept_on(self, node: NodeId) -> list[str]:
        return []

    def can_leave(self, node: NodeId) -> bool:
        return all(
            self._nodes.spare(record, replica.chain) is not None
            or any(newcomer.chain == replica.chain for newcomer in record.joining)
            for record in self._chained.on_node(node)
            for replica in record.projection.replicas
            if replica.node_id == node
        )
