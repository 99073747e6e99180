"""The keeper of the `chained` protocol: creates, begins, seals and trims chains."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar, Final, TypeVar

from loomlog.core.chained import losses
from loomlog.core.chained.chain import Projection, Replica, first_projection
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.messages import (
    Create,
    Done,
    Interrupted,
    Refused,
    Seal,
    SealedAt,
    Stop,
    Trimmed,
)
from loomlog.core.chained.outage import outage
from loomlog.core.chained.read import find_tail
from loomlog.core.chained.reconfigure import (
    Goal,
)
from loomlog.core.chained.trim import find_time, measure
from loomlog.core.chained.upkeep import (
    may_become_short,
)
from loomlog.core.conditions import Condition
from loomlog.core.outage import PartOutage
from loomlog.core.rebalance import ReplicaGroup
from loomlog.core.segments import Segment, Settings, Successor
from loomlog.core.sizes import Measured
from loomlog.errors import InvalidArgument, Timeout, Unavailable
from loomlog.metadata.catalog.records import LogRecord, NodeRecord
from loomlog.metadata.chained.decisions import Decisions
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.instead import INSTEAD
from loomlog.metadata.chained.nodes import ChainNodes
from loomlog.metadata.chained.operator import ChainOperator
from loomlog.metadata.chained.records import ChainedCatalog
from loomlog.metadata.chained.sequencers import Sequencers
from loomlog.metadata.chained.status import ChainedStatus
from loomlog.metadata.chained.upkeep import Upkeep
from loomlog.metadata.nodes.placement import LOOK_S
from loomlog.metadata.protocol import (
    Answer,
    AnswerAtOnce,
    Cleanup,
    KeeperContext,
    LogletKeeper,
    ReplicaSet,
    Resized,
)
from loomlog.protocol_names import CHAINED
from loomlog.types import Glsn, LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import TicketProofs
from loomlog.wire.link import Connection

CHAINS_MAX: Final = 256  # of a segment; a read of any position may ask the tail of each chain
MAKE_TIMEOUT_S: Final = 5.0  # less than a client waits for the answer
TAIL_WAIT_S: Final = 6.0  # for a new epoch; less than a client waits for its answer
TRIM_WAIT_S: Final = 3.0  # then it continues in the background


T = TypeVar("T")
_UNCERTAIN: Final = (
    f"{CHAINED}/uncertain"  # in losses: whether replicas that are not void may be lost
)


class ChainedKeeper(LogletKeeper[ChainedRecord]):
    """Creates and seals the chains of one term; upkeep.py repairs and trims them."""

    protocol: ClassVar[str] = CHAINED
    instead: ClassVar[Mapping[int, str]] = INSTEAD
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
        self._nodes = ChainNodes(catalog, context.nodes, context.lost_nodes)
        self.sequencers = Sequencers(
            context.leader_epoch,
            self._nodes.full_on.keys(),
            self._why_full,
            chained.projection_of,
            TicketProofs(catalog.cluster.secret),
        )
        self.driver = Driver(
            catalog,
            chained,
            self.sequencers,
            context.nodes,
            context.settings.failure_detection_s,
        )
        self.upkeep = Upkeep(context, chained, self.sequencers, self.driver, self._nodes)
        self._decisions = Decisions(chained, self.sequencers, self.driver, context.nodes)
        self._status = ChainedStatus(catalog, self.sequencers, self._nodes, self.upkeep)
        self._operator = ChainOperator(
            catalog, chained, self._nodes, self.upkeep, context.placement
        )

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
        projection = self._first_projection(successor)
        if known is None:
            stream_id = (await self._catalog.new_streams())[0]
            await self.records.add(ChainedRecord(loglet, log.log_id, stream_id, projection))
        else:  # its creation was interrupted: remove any parts of it
            await self.records.change(loglet, lambda record: record.make_again(projection))
        making = (self._make_replica(replica) for replica in projection.replicas)
        for failure in await asyncio.gather(*making, return_exceptions=True):
            if failure is not None:
                raise failure
        await self.records.change(loglet, lambda record: replace(record, made=True))
        self.upkeep.wake(loglet)

    def _first_projection(self, successor: Successor) -> Projection:
        loglet, settings = successor.loglet, successor.settings
        placed = successor.nodes or self._placement.place(settings.streams, settings)
        name, birth = self.sequencers.new_name(), self._catalog.new_stamp()
        projection = first_projection(
            loglet,
            [*map(list, placed)],
            birth=birth,
            sequencer=name,
            least=settings.replicas_least,
        )
        nodes = sorted({node for chain in placed for node in chain})
        lives = tuple((node, self._catalog.nodes[node].life) for node in nodes)
        # The start of its segment is not known yet.
        return projection._replace(first=0, start=0, lives=lives)

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
        await self.upkeep.epochs.begin(segment)  # if it never began
        record = self.records.get(segment.loglet)
        standing = None if record is None else self.upkeep.standing(record)
        short = standing is None or may_become_short(standing, self._nodes)
        goal = Goal(close=True, short=short)
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

    async def settle(self, log: LogRecord, segment: Segment) -> Glsn:
        """Begin a new epoch: positions handed out before it and not written never will be."""
        if self.known_tail(log, segment) < segment.start:
            return await super().settle(log, segment)
        goal = Goal(short=False)
        begun = await self.upkeep.epochs.next(segment.loglet, goal, "what is reserved is decided")
        return begun.start - 1

    def known_tail(self, log: LogRecord, segment: Segment) -> Glsn:
        """Return the last position handed out, or void; it never decreases in this term."""
        record = self.records.get(segment.loglet)
        start = record.projection.start if record is not None else 0
        return max(segment.start, start, self.sequencers.end_of(segment.loglet)) - 1

    def is_tail_known(self, log: LogRecord, segment: Segment) -> bool:
        """Return whether the segment has ended, or this term hands out its positions. Another term
        may have handed out more than this one knows."""
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
        return self._unless_stopped(segment, await self.driver.drive(segment.loglet, steps))

    async def measure(
        self, log: LogRecord, segment: Segment, first: Glsn, last: Glsn
    ) -> Sequence[Measured]:
        record = self.records.get(segment.loglet)
        if record is None:
            raise Unavailable(f"segment {segment.loglet} of log {log.name!r} is just being deleted")
        steps = measure(record.projection, first, last)
        return self._unless_stopped(segment, await self.driver.drive(segment.loglet, steps))

    def _unless_stopped(self, segment: Segment, outcome: T | Stop) -> T:
        match outcome:
            case Interrupted(reason):
                raise Unavailable(f"segment {segment.loglet}: {reason}")
            case Trimmed(position):
                raise Unavailable(f"segment {segment.loglet} was trimmed to {position} meanwhile")
        return outcome

    # ---- status

    def stream(self, log: LogRecord, record: ChainedRecord, segment: Segment) -> pb.LogStream:
        tail, is_known = self.known_tail(log, segment), self.is_tail_known(log, segment)
        return self._status.stream(record, segment, tail, is_known=is_known)

    def describe_replicas(self, stream_id: StreamId) -> list[pb.ReplicaDescription]:
        record = self.records.of_stream(stream_id)
        return [] if record is None else self._status.replicas(record)

    def segment_conditions(
        self, log: LogRecord, record: ChainedRecord, segment: Segment
    ) -> list[Condition]:
        last: Glsn | None = segment.end
        if last is None and self.is_tail_known(log, segment):
            last = self.known_tail(log, segment)
        return self._status.conditions(log, record, segment, last)

    def _why_full(self, loglet: LogId) -> str:
        """Return why no append may begin for lack of space; "" if it may. Called before an append
        if a replica lacks space."""
        record = self.records.get(loglet)
        full = self._nodes.full(record) if record is not None else None
        if not full:
            return ""
        self.upkeep.lacks_space(loglet)
        return self._nodes.why_full(full)

    # ---- nodes

    def placement(self) -> list[tuple[NodeId, ...]]:
        return [nodes for record in self.records for nodes in self.records.sets_of(record)]

    def replicas_on(self, node: NodeId) -> list[ReplicaSet]:
        chains = [
            ReplicaSet(self._name_of(record, chain[0].chain), nodes)
            for record in self.records
            for chain in record.projection.chains
            if node in (nodes := tuple(replica.node_id for replica in chain))
        ]
        others = (
            (record, replica)
            for record in self.records
            for replica in (*record.joining, *(each.replica for each in record.unheard))
        )
        return chains + [
            ReplicaSet(self._name_of(record, replica.chain), ())
            for record, replica in others
            if replica.node_id == node
        ]

    def _name_of(self, record: ChainedRecord, chain: int) -> str:
        return f"chain {chain} of {self._catalog.name_of(record)}"

    def stuck_on(self, node: NodeId) -> list[str]:
        return [
            self._name_of(record, replica.chain)
            for record in self.records.on_node(node)
            for replica in record.projection.replicas
            if replica.node_id == node
            and self._nodes.spare(record, replica.chain) is None
            and all(newcomer.chain != replica.chain for newcomer in record.joining)
        ]

    async def leave(self, node: NodeId, index: int, stored: Collection[pb.StoredReplica]) -> int:
        return sum([await self._leave(node, replica) for replica in stored])

    async def _leave(self, node: NodeId, stored: pb.StoredReplica) -> bool:
        """Move a replica to another node; if there is none, to another volume of the same one."""
        record = self.records.get(stored.loglet_id)
        replica = Replica(node, stored.loglet_id, stored.part, stored.birth)
        if record is None or replica not in record.replicas:
            return False
        if replica in record.projection.replicas and not record.is_moving(replica):
            await self.records.change(record.loglet, lambda record: record.move(replica, node))
            self.upkeep.wake(record.loglet)
        return replica not in (*record.damaged, *record.witnesses)

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

    def resized(self, request: pb.ChangeStream) -> Resized | None:
        resized = self._operator.resized(request)
        if resized is not None:
            self.check(resized.settings)
        return resized

    async def change_stream(self, request: pb.ChangeStream) -> pb.Changed:
        change = self._operator.changes.get(request.action)
        return await (change or super().change_stream)(request)

    def outage(self, log: LogRecord, away: Collection[NodeId]) -> list[PartOutage]:
        standings = map(self.upkeep.standing, self.records.of_log(log.log_id))
        return [part for standing in standings if standing for part in outage(standing, away)]

    def forgotten(self, node: NodeId) -> list[str]:
        return [f"segment {loglet}" for loglet in self.upkeep.remover.forgotten(node)]

    async def clean_up(self, node: NodeId) -> Cleanup:
        count = await self.upkeep.remover.clean_up(node)
        return Cleanup(f"{count} replicas of chains that nobody knows" if count else "")

    def is_needed(self, node: NodeId) -> bool:
        return any(True for _ in self._used_on(node))

    def _used_on(self, node: NodeId) -> Iterator[ChainedRecord]:
        """Return the loglets with chains on a node that took appends in their newest epoch. Other
        chains keep the node, which may be back before it is needed, and would have to be filled."""
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
                self._nodes.reported(record.loglet, node)  # before clients report it
        self.upkeep.node_changed(node, alive=alive)

    # ---- news from nodes

    def has_data(self, request: pb.Register) -> bool:
        return bool(request.chain_replicas)

    def note_losses(
        self, node: NodeRecord, request: pb.Register, lost: Collection[int]
    ) -> NodeRecord:
        """Mark the replicas as void that may lack blocks (core/chained/losses.py)."""
        known = {*request.shards, *lost, *request.given_up}
        void, uncertain = losses.judge(
            {replica[1:] for replica in self.records.replicas_on(node.node_id)},
            {_key_of(ref): ref.shard for ref in request.chain_replicas},
            {*lost, *request.salvaged_chains},
            uncertain=bool(request.given_up or node.losses_of(_UNCERTAIN)),
            is_all=known.issuperset(node.generations) and not request.conditions.chains_unserved,
        )
        if void:
            node = node.with_losses(CHAINED, {*node.losses_of(CHAINED), *void})
        if uncertain:
            return node.with_losses(_UNCERTAIN, [(1,)])
        return node.without_losses(_UNCERTAIN) if node.losses_of(_UNCERTAIN) else node

    def give_up(self, node: NodeRecord) -> NodeRecord:
        # Also for replicas that left: others wait for them if they lost everything.
        return node.given_up() if self.records.replicas_on(node.node_id) else node

    def fill_registered(self, node: NodeRecord, answer: pb.Registered) -> None:
        answer.proves_tickets = True
        answer.void.extend(_ref_of(key) for key in node.losses_of(CHAINED))
        answer.forgetful.extend(
            _ref_of(replica[1:])
            for record in self.records
            for replica in record.unserved(node.node_id, node.life)
        )

    def registered(self, node: NodeRecord, request: pb.Register) -> None:
        keys = (_key_of(ref) for ref in request.chain_replicas)
        void = set(node.losses_of(CHAINED))
        replicas = (Replica(node.node_id, *key) for key in keys if key not in void)
        self._nodes.registered(node.node_id, replicas)

    # ---- requests

    def requests(self) -> Mapping[str, Answer]:
        return {
            "report_chain": self._report_chain,
            "report_forgotten": self.upkeep.comparer.answer,
            "decide_position": self._decisions.answer,
        }

    async def _report_chain(self, connection: Connection, frame: pb.Frame) -> pb.Frame:
        await self.upkeep.report(frame.report_chain)
        return pb.Frame(done=pb.Done())

    def requests_at_once(self) -> Mapping[str, AnswerAtOnce]:
        return {"sequencer_request": self.sequencers.answer_frame}


def _ref_of(key: tuple[int, ...]) -> pb.ChainReplicaRef:
    loglet, chain, birth = key
    return pb.ChainReplicaRef(loglet_id=loglet, chain=chain, birth=birth)


def _key_of(ref: pb.ChainReplicaRef) -> tuple[LogId, int, int]:
    return ref.loglet_id, ref.chain, ref.birth
