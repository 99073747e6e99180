"""The keeper of the `chained` protocol: chains are made, begun, sealed, trimmed and shown."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar, Final

from loomlog.core.chained.chain import Chain, Projection, Replica, first_projection
from loomlog.core.chained.conditions import ChainsView, conditions
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.messages import (
    Create,
    Done,
    Interrupted,
    Refused,
    Seal,
    SealedAt,
    Trimmed,
)
from loomlog.core.chained.outage import outage
from loomlog.core.chained.read import find_tail
from loomlog.core.chained.reconfigure import Goal
from loomlog.core.chained.trim import find_time
from loomlog.core.chained.upkeep import condition, why_appends_wait
from loomlog.core.conditions import Condition
from loomlog.core.outage import PartOutage
from loomlog.core.rebalance import ReplicaGroup
from loomlog.core.segments import Segment, Settings, Successor
from loomlog.errors import InvalidArgument, Timeout, Unavailable
from loomlog.metadata.catalog.records import LogRecord, NodeRecord
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.nodes import ChainNodes
from loomlog.metadata.chained.records import ChainedCatalog
from loomlog.metadata.chained.sequencers import Sequencers
from loomlog.metadata.chained.upkeep import Upkeep
from loomlog.metadata.nodes.placement import LOOK_S
from loomlog.metadata.protocol import (
    Answer,
    AnswerAtOnce,
    Cleanup,
    KeeperContext,
    LogletKeeper,
    ReplicaSet,
)
from loomlog.protocol_names import CHAINED
from loomlog.types import Glsn, LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import projection_to_wire
from loomlog.wire.link import Connection

CHAINS_MAX: Final = 256  # of a segment; a read of any position may ask the tail of each chain
MAKE_TIMEOUT_S: Final = 5.0  # less than a client waits for the answer
TAIL_WAIT_S: Final = 6.0  # for a new epoch; less than a client waits for its answer
TRIM_WAIT_S: Final = 3.0  # then it continues in the background


class ChainedKeeper(LogletKeeper[ChainedRecord]):
    """Makes, seals and shows the chains of one term; upkeep.py repairs and trims them."""

    protocol: ClassVar[str] = CHAINED
    has_min_replicas: ClassVar[bool] = True
    records: ChainedCatalog

    @classmethod
    async def load(cls, context: KeeperContext) -> ChainedKeeper:
        chained = await ChainedCatalog.load(context.store, context.catalog)
        return cls(context, chained)

    def __init__(self, context: KeeperContext, chained: ChainedCatalog) -> None:
        catalog = context.catalog
        self._catalog = catalog
        self._placement = context.placement
        self.records = chained
        self.sequencers = Sequencers(context.leader_epoch, self._why_full)
        self.driver = Driver(
            catalog,
            chained,
            self.sequencers,
            context.nodes,
            context.settings.failure_detection_s,
        )
        self._nodes = ChainNodes(catalog, context.nodes, context.lost_nodes)
        self.upkeep = Upkeep(context, chained, self.sequencers, self.driver, self._nodes)

    def start(self) -> None:
        self.upkeep.start()

    def stop(self) -> None:
        self.upkeep.stop()

    def check(self, settings: Settings) -> None:
        super().check(settings)
        if settings.streams > CHAINS_MAX:
            raise InvalidArgument(
                f"a chained log has at most {CHAINS_MAX} chains, not "
                f"{settings.streams}: give it fewer streams"
            )

    # ---- creation

    def replicas_least(self, settings: Settings) -> int:
        return settings.replicas_least

    async def make(self, log: LogRecord, successor: Successor) -> None:
        await self._placement.wait_for_nodes(successor.settings.replicas)
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
        known = self.records.get(loglet)
        if known is not None and known.made:
            return
        projection = self._first_projection(loglet, successor.settings)
        if known is None:
            stream_id = (await self._catalog.new_streams())[0]
            await self.records.add(ChainedRecord(loglet, log.log_id, stream_id, projection))
        else:  # its creation was interrupted: remove what there may be of it
            await self.records.change(loglet, lambda record: record.make_again(projection))
        making = (self._make_replica(replica) for replica in projection.replicas)
        for failure in await asyncio.gather(*making, return_exceptions=True):
            if failure is not None:
                raise failure
        await self.records.change(loglet, lambda record: replace(record, made=True))
        self.upkeep.wake(loglet)

    def _first_projection(self, loglet: LogId, settings: Settings) -> Projection:
        placed = self._placement.place(settings.streams, settings)
        name, birth = self.sequencers.new_name(), self._catalog.new_stamp()
        projection = first_projection(
            loglet,
            [*map(list, placed)],
            birth=birth,
            sequencer=name,
            least=settings.replicas_least,
        )
        return projection._replace(first=0, start=0)  # where its segment begins is not known yet

    async def _make_replica(self, replica: Replica) -> None:
        for request, expected in ((Create(), Done), (Seal(1), SealedAt)):
            answer = await self.driver.ask(replica, request)
            if not isinstance(answer, expected):
                reason = answer.reason if isinstance(answer, Refused) else "it does not answer"
                raise Unavailable(f"node {replica.node_id} cannot take a chain: {reason}")

    async def begin(self, log: LogRecord, segment: Segment) -> bool:
        await self.upkeep.epochs.begin(segment)
        return True

    def log_changed(self, log: LogRecord) -> None:
        self.upkeep.log_changed(log.log_id)

    # ---- the end

    async def seal(self, log: LogRecord, segment: Segment) -> Glsn:
        await self.upkeep.epochs.begin(segment)  # if it never did
        goal = Goal(close=True)
        closed = await self.upkeep.epochs.next(segment.loglet, goal, "its segment ends")
        return closed.start - 1

    async def discard(self, log: LogRecord, loglet: LogId) -> None:
        self.upkeep.wake(loglet)

    async def trim(self, log: LogRecord) -> None:
        self.upkeep.log_changed(log.log_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(TRIM_WAIT_S):
                await self.upkeep.trimmer.done(log.log_id)

    # ---- positions

    async def find_tail(self, log: LogRecord, segment: Segment) -> Glsn:
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
        """Ask the replicas for the tail; None: ask again."""
        record = self.records.get(segment.loglet)
        if record is None or not record.begun:
            return 0
        outcome = await self.driver.drive(record.loglet, find_tail(record.projection))
        return outcome if isinstance(outcome, int) else None

    def known_tail(self, log: LogRecord, segment: Segment) -> Glsn:
        """Return the last position handed out, or void; in this term it never falls."""
        record = self.records.get(segment.loglet)
        start = record.projection.start if record is not None else 0
        return max(segment.start, start, self.sequencers.end_of(segment.loglet)) - 1

    def is_tail_known(self, log: LogRecord, segment: Segment) -> bool:
        """Return whether it ended, or positions are handed out by this term. Another term may have
        handed out more than this one knows."""
        record = self.records.get(segment.loglet)
        if record is None or not record.begun or record.projection.closed:
            return True
        return self.sequencers.end_of(segment.loglet) > 0

    async def find_time(
        self, log: LogRecord, segment: Segment, timestamp_us: int, first: Glsn
    ) -> Glsn:
        record = self.records.get(segment.loglet)
        if record is None:
            raise Unavailable(f"segment {segment.loglet} of log {log.name!r} is just being deleted")
        ended = segment.end is not None
        last = await self.find_tail(log, segment) if segment.end is None else segment.end
        steps = find_time(record.projection, timestamp_us, first, last, ended=ended)
        outcome = await self.driver.drive(segment.loglet, steps)
        match outcome:
            case Interrupted(reason):
                raise Unavailable(f"segment {segment.loglet}: {reason}")
            case Trimmed(position):
                raise Unavailable(f"segment {segment.loglet} was trimmed to {position} meanwhile")
        return outcome

    # ---- status

    def stream(self, log: LogRecord, record: ChainedRecord, segment: Segment) -> pb.LogStream:
        projection = record.projection
        if not record.begun:  # not yet: it has no entries
            projection = projection._replace(first=segment.start, start=segment.start)
        addresses = {node.node_id: node.address for node in self._catalog.nodes.values()}
        nodes = dict.fromkeys(replica.node_id for replica in projection.replicas)
        tail = self.known_tail(log, segment)
        return pb.LogStream(
            log_stream_id=record.stream_id,
            state=self._state(record),
            seal_epoch=projection.epoch,
            replicas=self._catalog.addressed(nodes),
            last=tail if self.is_tail_known(log, segment) else None,
            condition=self._condition(record, segment),
            joining_node=record.joining[0].node_id if record.joining else 0,
            copied_entries=tail * min(self._filled(record).values(), default=0) // 100,
            loglet_id=record.loglet,
            protocol=segment.settings.protocol,
            projection=projection_to_wire(projection, addresses),
        )

    def _why_full(self, loglet: LogId) -> str:
        """Return why no append may begin for lack of space; "" if they may. Called when one is
        about to."""
        record = self.records.get(loglet) if self._nodes.is_full(loglet) else None
        full = self._nodes.full(record) if record is not None else None
        if not full:
            return ""
        self.upkeep.lacks_space(loglet)
        return self._nodes.why_full(full)

    def _state(self, record: ChainedRecord) -> pb.StreamState:
        if record.projection.closed:
            return pb.STREAM_SEALED
        return pb.RUNNING if record.loglet in self.sequencers else pb.SEALING

    def _condition(self, record: ChainedRecord, segment: Segment) -> str:
        action, trouble = self.upkeep.decide(record), self.upkeep.trouble(record.loglet)
        wanted, filled = segment.settings.replicas, self._filled(record)
        log = self._catalog.log_of(record)
        trimmed = 0 if log is None else log.trimmed
        refusing = self._nodes.refusing()
        waiting = why_appends_wait(record, self._nodes)
        if not waiting and (full := self.upkeep.full(record)):
            waiting = f"takes no appends: {self._nodes.why_full(full)}"
        return condition(
            record.projection, wanted, waiting, action, filled, trouble, trimmed, refusing
        )

    def describe_replicas(self, stream_id: StreamId) -> list[pb.ReplicaDescription]:
        record = self.records.of_stream(stream_id)
        standing = None if record is None else self.upkeep.standing(record)
        if record is None or standing is None:
            return []
        filled = self._filled(record)
        described = []
        for replica in (*record.projection.replicas, *record.joining):
            chain = record.projection.chains[replica.chain]
            place = "joins" if replica in record.joining else _place(chain, replica)
            state = "unfit" if replica in standing.unfit else "whole"
            if replica in filled:
                state = f"{filled[replica]} % copied"
            described.append(
                pb.ReplicaDescription(
                    storage_node_id=replica.node_id,
                    role=f"chain {replica.chain}: {place}",
                    state=state,
                    epoch=record.projection.epoch,
                    part=replica.chain,
                )
            )
        return described

    def _filled(self, record: ChainedRecord) -> dict[Replica, int]:
        """Return how many percent each newcomer has copied."""
        newcomers = self.upkeep.newcomers
        return {replica: newcomers.percent(record, replica) for replica in record.joining}

    def segment_conditions(
        self, log: LogRecord, record: ChainedRecord, segment: Segment
    ) -> list[Condition]:
        standing = self.upkeep.standing(record) if record.begun else None
        if standing is None:
            return []
        last: Glsn | None = segment.end
        if last is None and self.is_tail_known(log, segment):
            last = self.known_tail(log, segment)
        trimmed = max(log.trimmed, segment.start - 1)
        view = ChainsView(
            log.name,
            standing,
            self._nodes,
            self.upkeep.unverified,
            positions=None if last is None else max(last - trimmed, 0),
            sizes=[self._nodes.size_of(chain) for chain in record.projection.chains],
            trimmed=log.trimmed,
            takes_appends=self._state(record) != pb.SEALING,
            action=self.upkeep.decide(record),
            filled=self._filled(record),
            trouble=self.upkeep.trouble(record.loglet),
        )
        return conditions(view)

    # ---- nodes

    def placement(self) -> list[tuple[NodeId, ...]]:
        return [
            tuple(replica.node_id for replica in chain)
            for record in self.records
            for chain in record.projection.chains
        ]

    def replicas_on(self, node: NodeId) -> list[ReplicaSet]:
        chains = [
            ReplicaSet(f"chain {chain[0].chain} of segment {record.loglet}", nodes)
            for record in self.records
            for chain in record.projection.chains
            if node in (nodes := tuple(replica.node_id for replica in chain))
        ]
        joining = [r for record in self.records for r in record.joining if r.node_id == node]
        return chains + [ReplicaSet(f"chain {r.chain} of segment {r.log_id}", ()) for r in joining]

    def stuck_on(self, node: NodeId) -> list[str]:
        return [
            f"chain {replica.chain} of segment {record.loglet}"
            for record in self.records.on_node(node)
            for replica in record.projection.replicas
            if replica.node_id == node
            and self._nodes.spare(record, replica.chain) is None
            and all(newcomer.chain != replica.chain for newcomer in record.joining)
        ]

    async def leave(self, node: NodeId, index: int, stored: Collection[pb.StoredReplica]) -> int:
        return sum([await self._leave(node, replica) for replica in stored])

    async def _leave(self, node: NodeId, stored: pb.StoredReplica) -> bool:
        record = self.records.get(stored.loglet_id)
        chains = record.projection.chains if record is not None else ()
        chain = chains[stored.part] if stored.part < len(chains) else ()
        replica = next((r for r in chain if r.node_id == node), None)
        if record is None or replica is None:
            joining = record.joining if record is not None else ()
            return any((r.node_id, r.chain) == (node, stored.part) for r in joining)
        if not record.is_moving(replica):
            await self.records.change(record.loglet, lambda record: record.move(replica, 0))
            self.upkeep.wake(record.loglet)
        return True

    def replica_groups(self) -> list[ReplicaGroup]:
        return [
            ReplicaGroup(
                record.stream_id,
                index,
                tuple(r.node_id for r in chain),
                self._nodes.size_of(chain) or 0,
            )
            for record in self.records
            if record.begun and not record.joining and not record.moving
            for index, chain in enumerate(record.projection.chains)
        ]

    async def change_stream(self, request: pb.ChangeStream) -> pb.Changed:
        if request.action != pb.ChangeStream.MOVE:
            return await super().change_stream(request)
        record = next(r for r in self.records if r.stream_id == request.log_stream_id)
        chains, index, target = record.projection.chains, request.part, request.to_node
        chain = chains[index] if index < len(chains) else ()
        self._catalog.node(request.from_node)
        replica = next((r for r in chain if r.node_id == request.from_node), None)
        what = f"chain {index} of stream {record.stream_id}"
        if replica is None:
            raise InvalidArgument(f"node {request.from_node} has no replica of {what}")
        if target:
            self._catalog.node(target)
        spare = self._nodes.spare(record, index, target or None)
        if spare is None or (target and spare != target):
            raise InvalidArgument(
                f"node {target} cannot take {what}: it is away, drained, full, or has it"
                if target
                else f"there is no other node for {what}: start one"
            )
        await self.records.change(record.loglet, lambda record: record.move(replica, target))
        self.upkeep.wake(record.loglet)
        return pb.Changed(
            done=f"{what} begins to move from node {request.from_node} to node {spare}",
            next="its blocks are copied while it is in use; then the replica is removed",
        )

    def outage(self, log: LogRecord, away: Collection[NodeId]) -> list[PartOutage]:
        standings = map(self.upkeep.standing, self.records.of_log(log.log_id))
        return [part for standing in standings if standing for part in outage(standing, away)]

    def instead_of_adding(self, log: str) -> str:
        return f": `loom log switch {log} --streams N` gives it another number of chains"

    async def clean_up(self, node: NodeId) -> Cleanup:
        count = await self.upkeep.remover.clean_up(node)
        return Cleanup(f"{count} replicas of chains that nobody knows" if count else "")

    def is_needed(self, node: NodeId) -> bool:
        return any(True for _ in self._used_on(node))

    def _used_on(self, node: NodeId) -> Iterator[ChainedRecord]:
        """Return the loglets with chains on a node that took appends in their newest epoch. Others
        keep the node: it may be back before anybody needs it, and would have to be filled."""
        for record in self.records:
            projection = record.projection
            is_used = self.sequencers.end_of(record.loglet) > projection.start
            if is_used and any(replica.node_id == node for replica in projection.replicas):
                yield record

    def node_joined(self, node: NodeId) -> None:
        self.upkeep.node_joined(node)

    def node_changed(self, node: NodeId, *, alive: bool) -> None:
        if self._nodes.is_stopping(node):
            for record in self._used_on(node):
                self._nodes.reported(record.loglet, node)  # before clients do
        self.upkeep.node_changed(node, alive=alive)

    # ---- news from nodes

    def has_data(self, request: pb.Register) -> bool:
        return bool(request.chain_replicas)

    def note_losses(
        self, node: NodeRecord, request: pb.Register, lost: Collection[int]
    ) -> NodeRecord:
        """Void the replicas on volumes that lost data, and those that were on one of them, or on
        one that was given up, if they are on no other volume."""
        there = {_key_of(ref): ref.shard for ref in request.chain_replicas}
        void = {key for key, shard in there.items() if shard in lost}
        are_gone = lost or (request.given_up and not request.conditions.chains_unserved)
        known = {*request.shards, *lost, *request.given_up}
        if are_gone and known.issuperset(node.generations):  # none is left out
            expected = {replica[1:] for replica in self.records.replicas_on(node.node_id)}
            void |= expected.difference(there)
        return node.with_losses(CHAINED, {*node.losses_of(CHAINED), *void}) if void else node

    def fill_registered(self, node: NodeRecord, answer: pb.Registered) -> None:
        answer.void.extend(
            pb.ChainReplicaRef(loglet_id=loglet, chain=chain, birth=birth)
            for loglet, chain, birth in node.losses_of(CHAINED)
        )

    def registered(self, node: NodeRecord, request: pb.Register) -> None:
        keys = (_key_of(ref) for ref in request.chain_replicas)
        void = set(node.losses_of(CHAINED))
        replicas = (Replica(node.node_id, *key) for key in keys if key not in void)
        self._nodes.registered(node.node_id, replicas)

    # ---- requests

    def requests(self) -> Mapping[str, Answer]:
        return {"report_chain": self._report_chain}

    async def _report_chain(self, connection: Connection, frame: pb.Frame) -> pb.Frame:
        await self.upkeep.report(frame.report_chain)
        return pb.Frame(done=pb.Done())

    def requests_at_once(self) -> Mapping[str, AnswerAtOnce]:
        return {"sequencer_request": self.sequencers.answer_frame}


def _place(chain: Chain, replica: Replica) -> str:
    if replica == chain[0]:
        return "head" if len(chain) > 1 else "head and tail"
    return "tail" if replica == chain[-1] else "middle"


def _key_of(ref: pb.ChainReplicaRef) -> tuple[LogId, int, int]:
    return ref.loglet_id, ref.chain, ref.birth
