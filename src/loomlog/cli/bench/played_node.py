"""Storage nodes that store nothing, to measure the metadata repository alone.

A played node has a real link to the metadata repository and real state machines for its replicas.
It obeys orders, and reports entries as durable on demand.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from loomlog.cli.bench.measurements import at_once
from loomlog.cli.processes.local_processes import CLUSTER_ID
from loomlog.core.ordered.replica import CommitOutcome, Replica, ReplicaContext
from loomlog.core.packed import LEAST
from loomlog.errors import InvalidArgument, LoomError
from loomlog.node.metadata_link import MetadataLink
from loomlog.types import NodeId, ReplicaState, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, Server
from loomlog.wire.proofs import node_proof
from loomlog.wire.translate import (
    STATE_TO_WIRE,
    commits_from_wire,
    pack_reports,
    report_to_wire,
)

SECRET: Final = "played"
PATIENCE_S: Final = 300.0
JOINING_AT_ONCE: Final = 32


class PlayedNodes:
    """Some storage nodes without disks, in this process."""

    def __init__(self, node_ids: Iterable[NodeId], addresses: Sequence[str]) -> None:
        self._happened = asyncio.Event()
        self._nodes = [PlayedNode(n, addresses, self._happened.set) for n in node_ids]

    async def __aenter__(self) -> PlayedNodes:
        await at_once(JOINING_AT_ONCE, self._nodes, PlayedNode.join)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(node.close() for node in self._nodes))

    @property
    def replicas(self) -> int:
        return sum(len(node.replicas) for node in self._nodes)

    async def until_running(self, replicas: int) -> None:
        """Wait until at least this many replicas run."""
        await self._until(lambda: sum(node.running for node in self._nodes) >= replicas)

    async def commit_one_each(self) -> None:
        """Report one more entry of every replica as durable, and wait until all have positions."""
        for node in self._nodes:
            node.write_one_each()
        await self._until(lambda: not any(node.uncommitted for node in self._nodes))

    async def _until(self, is_done: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_done():
                self._happened.clear()
                await self._happened.wait()


class PlayedNode:
    """One storage node without a disk."""

    def __init__(
        self, node_id: NodeId, addresses: Sequence[str], happened: Callable[[], None]
    ) -> None:
        """`happened` is called when it has obeyed an order or applied commits."""
        self.replicas: dict[StreamId, Replica] = {}
        self.uncommitted = 0  # streams with an entry that has no position yet
        self._id = node_id
        self._codec = Codec("vsn")
        self._happened = happened
        self._stamps: dict[StreamId, tuple[int, int]] = {}
        self._unreported: dict[StreamId, None] = {}
        self._generation = 0
        self._known_run = pb.NoteRun()
        self._packs_reports = False
        self._listener = Server(self._codec, self)
        self._link = MetadataLink(
            addresses,
            self._codec,
            self,
            self._registration,
            self._registered,
            self._heartbeat,
            self._heartbeat,
        )

    async def join(self) -> None:
        await self._listener.start("127.0.0.1:0")
        self._link.start()
        await self._link.registered.wait()

    async def close(self) -> None:
        await self._link.stop()
        await self._listener.stop()

    @property
    def running(self) -> int:
        """The number of replicas that run."""
        return sum(each.state is ReplicaState.RUNNING for each in self.replicas.values())

    def write_one_each(self) -> None:
        """Report one more entry as durable in every replica."""
        self.uncommitted = len(self.replicas)
        for replica in self.replicas.values():
            replica.next_llsn += 1
            replica.written(replica.next_llsn - 1)
            self._changed(replica)

    def _changed(self, replica: Replica) -> None:
        self._unreported[replica.stream_id] = None
        self._link.report_soon(self._report)

    # ---- what it says

    def _registration(self) -> pb.Register:
        message = pb.Register(
            storage_node_id=self._id,
            cluster_id=CLUSTER_ID,
            address=self._listener.address,
            node_secret=SECRET,
            sync_mode="none",
            volumes=["nowhere"],
            shards=[0],
            generations=[self._generation],
            known_run=self._known_run,
            process=f"played-{self._id}",
            reads_packed=True,
        )
        for replica in self.replicas.values():
            stamps = self._stamps[replica.stream_id]
            report_to_wire(replica.report(), 0, *stamps, message.uncommit_reports.add())
        return message

    def _registered(self, answer: pb.Registered) -> None:
        self._generation = answer.generation
        self._packs_reports = answer.reads_packed
        self._unreported.update(dict.fromkeys(self.replicas))

    def _heartbeat(self) -> pb.GetReportResponse:
        message = pb.GetReportResponse(
            storage_node_id=self._id,
            clock_us=time.time_ns() // 1000,
            generations=[self._generation],
        )
        self._report(message)
        return message

    def _report(self, message: pb.GetReportResponse) -> None:
        changed, self._unreported = self._unreported, {}
        for stream_id in changed:
            report, stamps = self.replicas[stream_id].report(), self._stamps[stream_id]
            report_to_wire(report, 0, *stamps, message.uncommit_reports.add())
        if self._packs_reports and len(changed) >= LEAST:
            pack_reports(message)

    # ---- orders

    def frame_received(
        self, connection: Connection, kind: str, frame: Frame, payload: memoryview
    ) -> None:
        if kind == "commit":
            self._commit(frame.commit)
        elif kind == "leader_beat":
            self._link.leader_announced(frame.leader_beat)
        else:
            try:
                answer = self._obey(kind, frame)
            except LoomError as error:
                answer = self._codec.failure_frame(error)
            answer.id, answer.reply = frame.id, True
            connection.send(answer)
        self._happened()

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        """Do nothing: the link sees its own connection end."""

    def _commit(self, request: pb.CommitRequest) -> None:
        for stream_id, commit in commits_from_wire(request):
            replica = self.replicas[stream_id]
            if replica.commit(commit) is CommitOutcome.APPLIED:
                replica.stored(commit.high_watermark)
                self.uncommitted -= bool(commit.length)

    def _obey(self, kind: str, frame: Frame) -> pb.Frame:
        order = getattr(frame, kind)
        if kind == "note_run":
            self._known_run.CopyFrom(order)
            return pb.Frame(done=pb.Done())
        if kind == "prove_node":
            proof = pb.NodeProof(proof=node_proof(self._id, SECRET, order.challenge))
            return pb.Frame(node_proof=proof)
        if kind == "add_log_stream":
            replica = Replica(order.log_stream_id, self._id, 0, ReplicaContext())
            self._stamps[order.log_stream_id] = order.stamp, order.birth
            self.replicas[order.log_stream_id] = replica
            return pb.Frame(done=pb.Done())
        replica = self.replicas[order.log_stream_id]
        if kind == "seal":
            replica.seal(order.seal_epoch, order.last_committed_llsn)
            self._changed(replica)
            return pb.Frame(
                seal_response=pb.SealResponse(
                    state=STATE_TO_WIRE[replica.state],
                    last_committed_llsn=replica.last_committed_llsn,
                    high_watermark=replica.context.high_watermark,
                )
            )
        if kind == "unseal":
            nodes = tuple(each.storage_node_id for each in order.replicas)
            replica.unseal(order.seal_epoch, nodes)
            self._changed(replica)
            return pb.Frame(done=pb.Done())
        raise InvalidArgument(f"a played node does not do {kind}")
