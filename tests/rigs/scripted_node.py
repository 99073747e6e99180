"""A storage node without a disk, on a real connection: the real replica state machine, and a test
that decides when something is written, what is refused, and what is not answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from loomlog.core.copyset.record import Lsn, epoch_of, offset_of
from loomlog.core.ordered.replica import CommitOutcome, Replica, ReplicaContext
from loomlog.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    LoomError,
    NotFound,
    Unavailable,
)
from loomlog.net.endpoints import connect
from loomlog.testing.ports import free_address
from loomlog.types import CommitContext, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Server
from loomlog.wire.proofs import node_proof
from loomlog.wire.translate import STATE_TO_WIRE

PATIENCE_S = 20.0  # never waited for in full, unless something is broken


class Peer:
    """Something connected to a metadata repository; also a client that only asks."""

    def __init__(self, role: str = "client") -> None:
        self._codec = Codec(role)
        self._happened = asyncio.Event()
        self.connection: Connection | None = None

    async def connect(self, address: str) -> None:
        self.connection = await connect(address, self._codec, self)

    async def ask(self, frame: pb.Frame) -> pb.Frame:
        assert self.connection is not None
        answer, _ = await self.connection.request(frame)
        assert isinstance(answer, pb.Frame)
        return answer

    async def disconnect(self) -> None:
        assert self.connection is not None
        self.connection.close()

    async def until(self, true: Callable[[], Any]) -> None:
        """Wait until something that happened here made it true."""
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                self._happened.clear()
                await self._happened.wait()

    def frame_received(
        self, connection: Connection, kind: str, frame: Any, payload: memoryview
    ) -> None:
        raise AssertionError(f"unexpected: {frame}")

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        if connection is self.connection:
            self.connection = None
        self._happened.set()


class ScriptedNode(Peer):
    """`tails` are those of copyset loglets; all nodes of a cluster share them."""

    def __init__(self, node_id: int, tails: dict[int, Lsn] | None = None) -> None:
        super().__init__("vsn")
        self.tails: dict[int, Lsn] = {} if tails is None else tails
        self.landmarks = pb.CopysetLandmarks()
        self.recovers = True  # False: a recovery of copysets takes forever
        self._recovering: set[asyncio.Task[None]] = set()
        self.node_id = node_id
        self.address = ""  # it listens there while it joins; empty: at any
        self.node_secret = f"secret-of-{node_id}"
        self.cluster_secret = ""
        self.cluster_id = "test"
        self.replicas: dict[StreamId, Replica] = {}
        self.stamps: dict[StreamId, int] = {}
        self.births: dict[StreamId, int] = {}
        self.orders: list[str] = []  # what came, in order: "add_log_stream 1", "seal 1 epoch 2", …
        self.commits: list[tuple[StreamId, CommitContext]] = []
        self.trimmed: dict[StreamId, int] = {}
        self.refuse: dict[str, LoomError] = {}  # kind of order -> answered so
        self.ignore: set[str] = set()  # kinds of orders that stay without an answer
        self.commit_requests = 0
        self.applies_commits = True
        self.reports_orders = True  # what an order changed; else only its answer tells
        self.unsealed: Callable[[int], None] = lambda node_id: None
        self.peers: dict[str, ScriptedNode] = {}  # by address: where copies go to
        self.copies_at_once: int | None = None  # commits per order to synchronise; None: all
        self.scrubs: dict[StreamId, pb.ScrubResponse] = {}
        self.heartbeat_s = 0.0
        self.clock_ahead_s = 0.0
        self.location = ""
        self.generations = {0: 0}  # of its volumes
        self.highest_id = 0  # of logs and streams, as it says
        self.process = ""
        self.chain_replicas: list[pb.ChainReplicaRef] = []
        self.conditions = pb.NodeConditions()
        self.young_from: dict[StreamId, int] = {}
        self.questions: list[tuple[StreamId, int, int]] = []  # where a time begins
        self._heart: asyncio.Task[None] | None = None
        self.known_run = pb.NoteRun()

    async def join(self, address: str) -> pb.Registered:
        """Connect and register."""
        listener = Server(self._codec, self)
        await listener.start(self.address or free_address())
        self.address = listener.address
        try:
            await self.connect(address)
            answer = await self.ask(pb.Frame(register=self.registration()))
        finally:
            await listener.stop()
        self.cluster_secret = answer.registered.cluster_secret or self.cluster_secret
        self.heartbeat_s = answer.registered.heartbeat_s
        return answer.registered

    def registration(self) -> pb.Register:
        return pb.Register(
            storage_node_id=self.node_id,
            cluster_id=self.cluster_id,
            address=self.address,
            cluster_secret=self.cluster_secret,
            node_secret=self.node_secret,
            sync_mode="always",
            volumes=[f"/data-{shard}" if shard else "/data" for shard in self.generations],
            shards=self.generations,
            location=self.location,
            uncommit_reports=[self._report_of(replica) for replica in self.replicas.values()],
            known_run=self.known_run,
            generations=self.generations.values(),
            highest_log_id=self.highest_id,
            highest_stream_id=self.highest_id,
            process=self.process,
            chain_replicas=self.chain_replicas,
            conditions=self.conditions,
        )

    async def restart(self, address: str) -> None:
        """Lose the connection and everything that is not on disk, and join again."""
        await self.crash()
        for stream_id, old in list(self.replicas.items()):
            context = old.context
            self.replicas[stream_id] = Replica(stream_id, self.node_id, old.epoch, context)
        await self.join(address)

    async def crash(self) -> None:
        self.stop_heartbeat()
        if self.connection is not None:
            await self.disconnect()

    # ---- heartbeat

    def start_heartbeat(self) -> None:
        self._heart = asyncio.get_running_loop().create_task(self._beat())

    def stop_heartbeat(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
            self._heart = None

    async def _beat(self) -> None:
        while True:
            self.report()
            await asyncio.sleep(self.heartbeat_s)

    # ---- writing and reporting

    def write(self, stream_id: StreamId, count: int) -> None:
        """Entries became durable here, as if they had come over replication."""
        replica = self.replicas[stream_id]
        replica.next_llsn += count
        replica.written(replica.next_llsn - 1)
        self.report(stream_id)

    def report(self, *streams: StreamId) -> None:
        reports = [self._report_of(self.replicas[stream_id]) for stream_id in streams]
        message = pb.GetReportResponse(
            storage_node_id=self.node_id,
            uncommit_reports=reports,
            clock_us=int((time.time() + self.clock_ahead_s) * 1_000_000),
        )
        if self.connection is not None:
            self.connection.send(pb.Frame(report=message))

    def _report_of(self, replica: Replica) -> pb.LogStreamUncommitReport:
        report = replica.report()
        return pb.LogStreamUncommitReport(
            log_stream_id=report.stream_id,
            uncommitted_llsn_offset=report.uncommitted_llsn_offset,
            uncommitted_llsn_length=report.uncommitted_llsn_length,
            high_watermark=report.high_watermark,
            seal_epoch=report.epoch,
            state=STATE_TO_WIRE[report.state],
            stored_high_watermark=report.stored_high_watermark,
            resend=report.resend,
            stored_bytes=100,
            damaged=report.damaged,
            stamp=self.stamps.get(report.stream_id, 0),
            birth=self.births.get(report.stream_id, 0),
        )

    # ---- orders

    def frame_received(
        self, connection: Connection, kind: str, frame: Any, payload: memoryview
    ) -> None:
        try:
            if kind in self.refuse:
                raise self.refuse[kind]
            if kind in self.ignore:
                return
            if kind == "recover_copyset":
                self._recover_copyset(frame.recover_copyset, frame.id)
                return
            answer = getattr(self, f"_{kind}")(getattr(frame, kind))
        except LoomError as error:
            answer = self._codec.failure_frame(error)
        finally:
            self._happened.set()
        if answer is not None:
            answer.id, answer.reply = frame.id, True
            connection.send(answer)

    def _commit(self, request: pb.CommitRequest) -> None:
        self.commit_requests += 1
        for result in request.commit_results:
            commit = CommitContext(
                result.high_watermark,
                result.prev_high_watermark,
                result.committed_glsn_offset,
                result.committed_llsn_offset,
                result.committed_glsn_length,
                result.seal_epoch,
            )
            if self.applies_commits:
                self._apply(result.log_stream_id, commit)

    def _apply(self, stream_id: StreamId, commit: CommitContext) -> None:
        replica = self.replicas.get(stream_id)
        if replica is None:
            return
        outcome = replica.commit(commit)
        if outcome is CommitOutcome.APPLIED:
            self.commits.append((stream_id, commit))
            replica.stored(commit.high_watermark)
        if outcome is not CommitOutcome.REPEATED:
            self.report(stream_id)

    def _prove_node(self, question: pb.ProveNode) -> pb.Frame:
        proof = node_proof(self.node_id, self.node_secret, question.challenge)
        return pb.Frame(node_proof=pb.NodeProof(proof=proof, process=self.process))

    def _note_run(self, order: pb.NoteRun) -> pb.Frame:
        self.known_run.CopyFrom(order)
        return pb.Frame(done=pb.Done())

    def _add_log_stream(self, order: pb.AddLogStream) -> pb.Frame:
        stream_id = order.log_stream_id
        self.orders.append(f"add {stream_id}")
        if not (order.stamp and order.birth):
            raise InvalidArgument(f"stream {stream_id}: an order to add it has no stamp")
        if stream_id in self.replicas:
            raise AlreadyExists(f"stream {stream_id} is here already")
        self.replicas[stream_id] = Replica(stream_id, self.node_id, 0, ReplicaContext())
        self.stamps[stream_id], self.births[stream_id] = order.stamp, order.birth
        return pb.Frame(done=pb.Done())

    def _seal(self, order: pb.Seal) -> pb.Frame:
        self.orders.append(f"seal {order.log_stream_id} epoch {order.seal_epoch}")
        replica = self._replica(order.log_stream_id)
        replica.seal(order.seal_epoch, order.last_committed_llsn)
        self._report_order(order.log_stream_id)
        return pb.Frame(
            seal_response=pb.SealResponse(
                state=STATE_TO_WIRE[replica.state],
                last_committed_llsn=replica.last_committed_llsn,
                high_watermark=replica.context.high_watermark,
            )
        )

    def _unseal(self, order: pb.Unseal) -> pb.Frame:
        self.orders.append(f"unseal {order.log_stream_id} epoch {order.seal_epoch}")
        self.unsealed(self.node_id)
        nodes = tuple(replica.storage_node_id for replica in order.replicas)
        self._replica(order.log_stream_id).unseal(order.seal_epoch, nodes)
        self._report_order(order.log_stream_id)
        return pb.Frame(done=pb.Done())

    def _trim_log_stream(self, order: pb.TrimLogStream) -> pb.Frame:
        self.orders.append(f"trim {order.log_stream_id} to {order.glsn}")
        self.trimmed[order.log_stream_id] = order.glsn
        return pb.Frame(done=pb.Done())

    def _remove_log_stream(self, order: pb.RemoveLogStream) -> pb.Frame:
        stream_id = order.log_stream_id
        self.orders.append(f"remove {stream_id}")
        stored = self.stamps.get(stream_id, order.stamp), self.births.get(stream_id, order.birth)
        if stored != (order.stamp, order.birth or stored[1]):
            raise Conflict(f"node {self.node_id} keeps stream {stream_id}")
        for kept in (self.replicas, self.stamps, self.births):
            kept.pop(stream_id, None)
        return pb.Frame(done=pb.Done())

    def _synchronise(self, order: pb.Synchronise) -> pb.Frame:
        """Copy at once, but only some commits per request."""
        source = self._replica(order.log_stream_id)
        self.orders.append(f"copy {source.stream_id} to {order.destination.storage_node_id}")
        peer = self.peers[order.destination.address]
        response = pb.SynchroniseResponse(last_llsn=source.last_committed_llsn)
        try:
            peer.take_copy(source.stream_id, self.commits, self.copies_at_once)
        except LoomError as error:
            response.error = str(error)
        else:
            response.copied_llsn = peer.replicas[source.stream_id].last_committed_llsn
            response.finished = response.copied_llsn >= response.last_llsn
        return pb.Frame(synchronise_response=response)

    def take_copy(
        self,
        stream_id: StreamId,
        commits: list[tuple[StreamId, CommitContext]],
        at_once: int | None,
    ) -> None:
        if self.connection is None:
            raise Unavailable("nobody is there")
        if "sync_start" in self.refuse:
            raise self.refuse["sync_start"]
        replica = self._replica(stream_id)
        replica.begin_synchronise(1)
        begin = replica.context.uncommitted_llsn_begin
        missing = [c for s, c in commits if s == stream_id and c.length and c.llsn >= begin]
        for commit in missing[:at_once]:
            self.commits.append((stream_id, replica.synchronised(commit)))
            replica.stored(commit.high_watermark)
        self.report(stream_id)

    def _scrub(self, order: pb.Scrub) -> pb.Frame:
        [stream_id] = order.log_stream_ids
        if order.start:
            self.orders.append(f"scrub {stream_id}")
        return pb.Frame(scrub_response=self.scrubs.get(stream_id, pb.ScrubResponse()))

    def _find_time(self, question: pb.FindTime) -> pb.Frame:
        """Answer as if the entries from `young_from` on were young enough."""
        self.questions.append((question.log_stream_id, question.timestamp_us, question.first_glsn))
        high = self._replica(question.log_stream_id).context.high_watermark
        young = max(self.young_from.get(question.log_stream_id, high + 1), question.first_glsn)
        found = pb.FoundTime(position=young if young <= high else 0, high_watermark=high)
        return pb.Frame(found_time=found)

    def _report_order(self, stream_id: StreamId) -> None:
        if self.reports_orders:
            self.report(stream_id)

    def _replica(self, stream_id: StreamId) -> Replica:
        if stream_id not in self.replicas:
            raise NotFound(f"no stream {stream_id} here")
        return self.replicas[stream_id]

    # ---- copysets: what it asks

    async def get(self, loglet: int) -> pb.CopysetState:
        return await self._epochs(kind=pb.EpochStoreRequest.GET, loglet_id=loglet)

    async def activate(self, loglet: int, expected: int) -> pb.CopysetState:
        return await self._epochs(
            kind=pb.EpochStoreRequest.ACTIVATE, loglet_id=loglet, expected=expected
        )

    async def set_clean(self, loglet: int, by: int, epoch: int, tail: Lsn) -> pb.CopysetState:
        return await self._epochs(
            kind=pb.EpochStoreRequest.SET_CLEAN,
            loglet_id=loglet,
            by=by,
            end=pb.CopysetEnd(epoch=epoch, last=offset_of(tail) if epoch_of(tail) == epoch else 0),
        )

    async def _epochs(self, **fields: Any) -> pb.CopysetState:
        request = pb.EpochStoreRequest(**fields)
        return (await self.ask(pb.Frame(epoch_store_request=request))).copyset_state

    # ---- copysets: orders ("recover 5 epoch 2", "TRIM 5 17", "FORGET 5 0", "tail 5")

    def _recover_copyset(self, order: pb.RecoverCopyset, request: int) -> None:
        state = order.state
        self.orders.append(f"recover {state.loglet_id} epoch {state.epoch}")
        if self.recovers and self.connection is not None:
            recovery = self._recover(self.connection, request, state)
            task = asyncio.get_running_loop().create_task(recovery)
            self._recovering.add(task)
            task.add_done_callback(self._recovering.discard)

    async def _recover(self, connection: Connection, request: int, state: pb.CopysetState) -> None:
        loglet = state.loglet_id
        tail = self.tails.get(loglet, state.tail)
        try:
            for epoch in range(state.last_clean + 1, state.epoch):
                found = tail if epoch_of(tail) == epoch else state.tail
                await self.set_clean(loglet, state.epoch, epoch, found)
        except LoomError:
            return  # the connection is gone
        connection.send(pb.Frame(id=request, reply=True, done=pb.Done()))

    def _copyset_request(self, order: pb.CopysetRequest) -> pb.Frame:
        kind = pb.CopysetRequest.Kind.Name(order.kind)
        if order.shard not in self.generations:
            raise Unavailable("the volume of the shard is not there")
        self.orders.append(f"{kind} {order.loglet_id} {order.lsn}")
        return pb.Frame(copyset_answer=pb.CopysetAnswer(kind=pb.CopysetAnswer.DONE))

    def _find_copyset_tail(self, question: pb.FindCopysetTail) -> pb.Frame:
        self.orders.append(f"tail {question.loglet_id}")
        tail = self.tails.get(question.loglet_id, 0)
        return pb.Frame(copyset_tail=pb.CopysetTail(tail=tail, epoch=epoch_of(tail)))

    def _find_copyset_landmarks(self, question: pb.FindCopysetLandmarks) -> pb.Frame:
        return pb.Frame(copyset_landmarks=self.landmarks)
