"""`chained` on a storage node: its replicas of chains.

Clients may read and write within their permissions: core/chained decides what an epoch allows,
client_writes.py which blocks are stored. Only the metadata repository may seal, create, fill, trim
and remove a replica, over the connection that this node made to it.

Chains are always synced, whatever the node's --sync: a replica that loses an acknowledged block
breaks the order of its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from loomlog import limits
from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import (
    Answer,
    Before,
    ChainedAsk,
    Create,
    Done,
    Fetch,
    Fetched,
    List,
    Pull,
    Read,
    Refused,
    Remove,
    Request,
    Seal,
    SealedAt,
    Stored,
    Trim,
    TrimmedTo,
    Write,
)
from loomlog.core.chained.newcomer import pull
from loomlog.core.chained.replica import FORGETFUL, NOT_HERE
from loomlog.core.conditions import Condition, Kind
from loomlog.core.requests import Lost, drive
from loomlog.errors import Busy, LoomError, Unauthorized, Unavailable
from loomlog.limits import POSITION_MAX
from loomlog.node.chained.client_writes import ClientWrites
from loomlog.node.chained.forgetful import ForgetfulReplicas
from loomlog.node.chained.volumes import ChainVolume, ChainVolumes
from loomlog.node.long_poll import LongPolls
from loomlog.node.protocol import NodeContext, NodeProtocol
from loomlog.node.scrubber import ScrubNotes, restored
from loomlog.node.volume import Volume
from loomlog.node.workers import called_back
from loomlog.storage.chained.write_once import Answered
from loomlog.types import Glsn, LogId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import (
    ORDERS,
    TicketProofs,
    answer_frame,
    answer_from_wire,
    request_from_wire,
    request_to_wire,
)
from loomlog.wire.link import Connection, Frame, Links, OnlyAnswers, Route

logger = logging.getLogger(__name__)

WAIT_S_MAX: Final = 30.0  # a fetch waits at most this long for more blocks
_LARGE: Final = (Read, Before, List, Fetch)  # requests with large answers
_CHANGED: Final = (Stored, SealedAt, Done)
_NOT_DONE: Final = (Refused, Lost)


class ChainedService(NodeProtocol):
    """Serves the replicas of chains on this node."""

    def __init__(self, context: NodeContext) -> None:
        self._node_id = context.node_id
        self._link = context.link
        self._disks = context.disks
        self._requests = context.requests
        self._volumes = ChainVolumes(context.disks, self._link.register_again)
        self._salvaged: list[ChainVolume] = []  # reported with the last registration
        self._void: frozenset[Replica] | None = None  # None until the node has registered
        self._life = 0  # of this node; 0 until it has registered
        self._forgetful = ForgetfulReplicas(self._link.register_again)
        self._reported: set[Replica] = set()  # reported as damaged
        self._gone: set[Replica] = set()  # their tables have vanished, and they are not replaced
        self._waiting: LongPolls[Replica, Answer] = LongPolls(
            limits.SUBSCRIPTIONS_PER_CONNECTION_MAX
        )
        self._writes = ClientWrites(self._ask, self._volumes.end_of, self._link.request)
        self._creations = asyncio.Lock()
        self._links = Links(context.codec, OnlyAnswers())  # to nodes that were copied from

    def routes(self) -> dict[str, Route]:
        return {"chain_request": self._request}

    def orders(self) -> dict[str, Route]:
        return {"chain_request": self._order}

    def connection_closed(self, connection: Connection) -> None:
        self._waiting.connection_closed(connection)

    async def stop(self) -> None:
        self._links.close()

    # ---- the metadata repository

    def register(self, message: pb.Register) -> None:
        message.chain_replicas.extend(self.found())
        salvaged = [item for item in self._volumes.by_shard() if item[1].is_unreported]
        message.salvaged_chains.extend(shard for shard, _ in salvaged)
        self._salvaged = [volume for _, volume in salvaged]
        log_ids = [replica.log_id for replica in self._volumes.replicas]
        message.highest_log_id = max([message.highest_log_id, *log_ids])

    def registered(self, answer: pb.Registered) -> None:
        """Learn which replicas are older copies or were salvaged. Blocks that they lack may have
        been acknowledged, so they serve nothing until they are sealed in order to be copied. Blocks
        if some were salvaged."""
        self._life = answer.life
        secret = self._disks.opened.identity.cluster_secret
        self._writes.proofs = TicketProofs(secret) if answer.proves_tickets else None
        for volume in self._salvaged:
            volume.note_reported()
        if any(volume.is_unreported for _, volume in self._volumes.by_shard()):
            self._link.register_again()  # salvaged meanwhile
        self._void = frozenset(map(self._replica_of, answer.void))
        self._forgetful.registered(map(self._replica_of, answer.forgetful))

    def _replica_of(self, ref: pb.ChainReplicaRef) -> Replica:
        return Replica(self._node_id, ref.loglet_id, ref.chain, ref.birth)

    def report(self, message: pb.GetReportResponse) -> None:
        message.loglet_bytes += self.stored_bytes

    def conditions(self) -> list[Condition]:
        return [Condition(Kind.STORE_CLOSED, text) for text in self._volumes.problems]

    def restrictions(self, message: pb.NodeConditions) -> None:
        message.chains_unserved = self._volumes.are_unserved
        message.full_loglets.extend(self._volumes.full_loglets)

    async def list_holdings(self, message: pb.Holdings) -> None:
        message.chain_replicas.extend(self.found())

    def sizes(self) -> dict[tuple[LogId, int], int]:
        sizes = self._volumes.sizes()
        return {(replica.log_id, replica.chain): size for replica, size in sizes.items()}

    def stored(self) -> Iterator[pb.StoredReplica]:
        sizes = self._volumes.sizes()
        for replica in self._volumes.replicas:
            if (chains := self._volumes.holding(replica)) is not None:
                yield pb.StoredReplica(
                    loglet_id=replica.log_id,
                    part=replica.chain,
                    path=chains.path,
                    stored_bytes=sizes.get(replica),
                    birth=replica.birth,
                )

    @property
    def stored_bytes(self) -> int:
        return self._volumes.stored_bytes

    def found(self) -> list[pb.ChainReplicaRef]:
        """Return the replicas that are here, for the metadata repository."""
        return [
            pb.ChainReplicaRef(
                loglet_id=replica.log_id,
                chain=replica.chain,
                birth=replica.birth,
                epoch=standing.epoch,
                written=standing.written,
                shard=shard,
                trimmed=standing.trimmed,
            )
            for shard, volume in self._volumes.by_shard()
            for replica, standing in volume.replicas.items()
        ]

    # ---- scrub

    async def scrub(self, notes: ScrubNotes) -> None:
        """Read all blocks. A replica with a damaged block is reported, and replaced as a whole."""
        if notes.scope is not None:
            await self._volumes.look()
        for replica in [r for r in self._gone if notes.want_loglet(r.log_id)]:
            repaired = await restored(partial(self._is_back, replica))
            where = f"chain {replica.chain} of segment {replica.log_id}"
            notes.found(where, repaired=repaired, missing=True)
        for replica in filter(lambda r: notes.want_loglet(r.log_id), list(self._volumes.replicas)):
            position = 1
            while position:
                answer = await self._fetch_own(replica, position)
                match answer:
                    case Fetched(blocks, more):
                        await notes.checked(sum(len(block.batch) for block in blocks))
                        position = blocks[-1].end if blocks and more else 0
                    case TrimmedTo(trimmed):
                        position = trimmed + 1
                    case _:
                        position = 0
                        await self._note_damage(replica, answer, notes)

    def _is_back(self, replica: Replica) -> bool:
        """Return whether a vanished replica is back, or was replaced."""
        return replica not in self._gone

    async def _fetch_own(self, replica: Replica, position: Glsn) -> Answer:
        while True:
            standing = self._volumes.replicas.get(replica)
            if standing is None or replica in (self._void or ()):
                return Fetched([], more=False)
            fetch = Fetch(standing.epoch, position, limits.SCRUB_BYTES)
            try:
                answer: Answer = await called_back(partial(self._ask, replica, fetch))
            except Busy as error:
                return Refused(str(error))
            now = self._volumes.replicas.get(replica)
            if isinstance(answer, Fetched | TrimmedTo | Refused) or now == standing:
                return answer

    async def _note_damage(self, replica: Replica, answer: Answer, notes: ScrubNotes) -> None:
        """Wait until a damaged replica is replaced, which removes it here, and note the damage."""
        volume = self._volumes.holding(replica)
        if volume is None:
            return
        if not volume.is_damaged(replica):
            where = f"chain {replica.chain} of segment {replica.log_id}"
            notes.not_checked(f"{where} cannot be read now: {answer}")
            return
        is_restored = await restored(lambda: self._volumes.holding(replica) is None)
        where = f"a block of chain {replica.chain} of segment {replica.log_id}"
        notes.found(where, repaired=is_restored)

    # ---- requests

    def _request(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame] | None:
        """Handle a request of a client or of another node."""
        message = frame.chain_request
        if message.kind in ORDERS:
            name = pb.ChainRequest.Kind.Name(message.kind)
            raise Unauthorized(f"{name} of a replica is ordered by the metadata repository only")
        if self._void is None:
            raise Unavailable("this node has not registered yet: its data may be an older copy")
        if message.kind == pb.ChainRequest.WRITE:
            return self._write(connection, frame, payload)
        return self._serve(connection, frame, payload)

    def _write(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame] | None:
        replica, write = request_from_wire(frame.chain_request, self._node_id, payload)
        assert isinstance(write, Write)
        done = partial(_answer, connection, frame.id)
        if connection.session is None:
            if write.block.end <= self._writes.reach.get(replica, 0):
                self._ask(replica, write, done)
                return None
        else:
            write = Write(write.epoch, write.block, frame.chain_request.proof)
        later = self._writes.take(connection, replica, write, done)
        return None if later is None else _later_frame(later)

    def _order(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame] | None:
        """Handle an order of the metadata repository, which may send any request."""
        return self._serve(connection, frame, payload)

    def _serve(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame] | None:
        message = frame.chain_request
        replica, request = request_from_wire(message, self._node_id, payload)
        done = partial(_answer, connection, frame.id)
        if isinstance(request, Create):
            return self._create(replica)
        if isinstance(request, Remove):
            return self._remove(replica)
        if isinstance(request, Pull):
            return self._pull(replica, request, message.source.address)
        if isinstance(request, Fetch) and message.wait_ms:
            wait_s = min(message.wait_ms / 1000, WAIT_S_MAX)
            look, nothing = partial(self._look, replica, request), Fetched([], more=False)
            self._waiting.add(connection, replica, look, is_nothing, wait_s, done, nothing)
        elif isinstance(request, _LARGE):
            connection.turns.take(partial(self._read, connection, frame, replica, request))
        else:
            self._ask(replica, request, done)
        return None

    def _read(
        self, connection: Connection, frame: Frame, replica: Replica, request: Request
    ) -> None:
        """Answer a request with a large answer, in its turn."""

        def done(answer: Answer) -> None:
            _answer(connection, frame.id, answer)
            connection.turns.end()

        try:
            self._ask(replica, request, done)
        except Exception as error:
            self._requests.answer_error(connection, frame, "chain_request", error)
            connection.turns.end()

    def volume_changed(self, volume: Volume) -> None:
        """Report the replicas on a volume that failed, so that others replace them."""
        chains = self._volumes.on(volume)
        if volume.lacks(chains.path):
            self._gone.update(chains.replicas)
        else:  # the table may be back
            self._gone.difference_update(chains.replicas)
        chains.volume_changed()
        if chains.works:
            self._reported.difference_update(chains.replicas)
        else:
            for replica in chains.replicas:
                self._report_damage(chains, replica)

    def _ask(self, replica: Replica, request: Request, done: Answered) -> None:
        volume = self._volumes.holding(replica)
        if volume is None or self._void or self._forgetful.replicas or volume.needs_care:
            self._ask_carefully(volume, replica, request, done)
        else:
            volume.ask(replica, request, partial(self._answered, volume, replica, request, done))

    def _ask_carefully(
        self, volume: ChainVolume | None, replica: Replica, request: Request, done: Answered
    ) -> None:
        if self._void and isinstance(request, Seal) and request.salvage:
            self._void -= {replica}
        if volume is not None and volume.is_unreported:
            done(Refused("what is left of this replica was salvaged: wait until that is known"))
        elif (
            volume is not None and replica in (self._void or ()) and not isinstance(request, Remove)
        ):
            done(NOT_HERE)
        elif volume is None:
            done(self._not_here(request))
        elif self._has_forgotten(volume, replica) and not isinstance(request, Seal | Remove):
            self._forgetful.refused(replica, request, volume.replicas.get(replica))
            done(FORGETFUL)
        else:
            volume.ask(replica, request, partial(self._answered, volume, replica, request, done))

    def _has_forgotten(self, volume: ChainVolume, replica: Replica) -> bool:
        """Return whether the replica may have forgotten blocks, because the node crashed before
        this start (which the volume knows) or an earlier one (which the metadata repository
        knows)."""
        return replica in self._forgetful or volume.has_forgotten(replica)

    def _not_here(self, request: Request) -> Answer:
        """Return the answer for a replica that was not found. It may be in a table that is not
        open, or on a missing volume."""
        if problems := self._volumes.problems:
            return Refused(problems[0])
        if missing := self._volumes.missing:
            return Refused(f"volume {missing[0]} is missing, and this replica may be there")
        return Done() if isinstance(request, Remove) else NOT_HERE

    def _look(self, replica: Replica, request: Request, done: Answered) -> None:
        """Like `_ask`, but turn Busy into a refusal, because a waiting fetch has no caller."""
        try:
            self._ask(replica, request, done)
        except Busy as error:
            done(Refused(str(error)))

    def _answered(
        self,
        volume: ChainVolume,
        replica: Replica,
        request: Request,
        done: Answered,
        answer: Answer,
    ) -> None:
        if isinstance(answer, SealedAt):
            volume.was_sealed(replica)
            self._forgetful.sealed(replica)
            answer = replace(answer, life=self._life)
        done(answer)
        if isinstance(answer, _CHANGED):
            if replica in self._waiting.by_key:
                self._waiting.changed(replica)
        elif isinstance(answer, _NOT_DONE) and volume.is_damaged(replica):
            self._report_damage(volume, replica)
        if isinstance(answer, Done):
            match request:
                case Trim(_, position):
                    volume.reclaim_soon(replica, position)
                case Remove():
                    volume.reclaim_soon(replica, POSITION_MAX)
                    logger.info("%s left this node", _name(replica))

    def _report_damage(self, volume: ChainVolume, replica: Replica) -> None:
        """Report a damaged replica once, so that another one replaces it."""
        if replica not in self._reported:
            self._reported.add(replica)
            report = pb.ReportChain(
                loglet_id=replica.log_id,
                epoch=volume.replicas[replica].epoch,
                storage_node_id=self._node_id,
            )
            self._link.notify(pb.Frame(report_chain=report))

    async def _create(self, replica: Replica) -> Frame:
        async with self._creations:
            answer = await self._created(replica)
        if isinstance(answer, Done):
            logger.info("%s is new on this node", _name(replica))
        return _frame(answer)

    async def _remove(self, replica: Replica) -> Frame:
        """Remove a replica that its chain does not need, after any earlier order to create it."""
        async with self._creations:
            answer = await called_back(partial(self._ask, replica, Remove()))
        if isinstance(answer, Done):
            self._gone.discard(replica)
            self._writes.forget(replica)
        return _frame(answer)

    async def _pull(self, replica: Replica, request: Pull, address: str) -> Frame:
        """Copy blocks from the source at this address. Raise Busy if either node is overloaded."""

        async def answer(asks: list[ChainedAsk]) -> list[Answer]:
            return await asyncio.gather(*(self._answer(replica, ask, address) for ask in asks))

        return _frame(await drive(pull(replica, request), answer))

    async def _answer(self, replica: Replica, ask: ChainedAsk, address: str) -> Answer:
        """Answer a request of a copy, to this replica or to its source."""
        assert isinstance(ask.target, Replica)
        if ask.target == replica:
            return await called_back(partial(self._ask, replica, ask.request))
        message, _ = request_to_wire(ask.target, ask.request)
        try:
            connection = await self._links.connect(address, ("node", ask.target.node_id))
            reply, content = await connection.request(pb.Frame(chain_request=message))
        except Busy:
            raise
        except LoomError as error:
            return Refused(f"node {ask.target.node_id}: {error}")
        return answer_from_wire(reply.chain_answer, content)

    async def _created(self, replica: Replica) -> Answer:
        try:
            volume = self._volumes.holding(replica) or await self._volumes.place()
        except LoomError as error:
            return Refused(str(error))
        return await called_back(partial(volume.ask, replica, Create()))


def is_nothing(answer: Answer) -> bool:
    return isinstance(answer, Fetched) and not answer.blocks


def _frame(answer: Answer) -> Frame:
    return answer_frame(0, answer)[0]


async def _later_frame(answer: Awaitable[Answer]) -> Frame:
    return _frame(await answer)


def _answer(connection: Connection, request_id: int, answer: Answer) -> None:
    connection.send(*answer_frame(request_id, answer))


def _name(replica: Replica) -> str:
    return f"replica {replica.birth} of chain {replica.chain} of loglet {replica.log_id}"
