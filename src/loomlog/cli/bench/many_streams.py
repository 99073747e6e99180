"""Commit rounds over very many log streams: what they cost the leader, and how long they take.

The storage nodes are simulated: they answer orders and report that one more entry is durable in
every stream, so that the metadata repository is what is measured, and no disk is filled.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

from loomlog.cli.bench.machine import CpuUse
from loomlog.cli.bench.measurements import percentile_ms
from loomlog.cli.bench.private_cluster import Target, private_cluster
from loomlog.cli.processes.local_processes import CLUSTER_ID
from loomlog.core.ordered.replica import CommitOutcome, Replica, ReplicaContext
from loomlog.errors import InvalidArgument, LoomError
from loomlog.net.endpoints import connect
from loomlog.types import ReplicaState, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Server
from loomlog.wire.proofs import node_proof
from loomlog.wire.translate import STATE_TO_WIRE, commit_from_wire, report_to_wire

PATIENCE_S: Final = 120.0
HEARTBEAT_S: Final = 0.5
CREATE_TIMEOUT_S: Final = 300.0
STREAMS_PER_LOG: Final = 500
SECRET: Final = "played"


@dataclass(frozen=True, slots=True)
class RoundRate:
    """Rounds that each commit one entry of every stream, one after the other."""

    streams: int
    metadata: int
    created_s: float  # until all streams run
    rounds: int
    p50_ms: float  # from the report to the last commit of a round
    p99_ms: float
    leader_cpu_percent: float  # of one core, while rounds follow each other without a pause
    idle_cpu_percent: float


async def measure(target: Target, metadata: int, streams: int, seconds: float) -> RoundRate:
    """Measure commit rounds on a private cluster without storage nodes."""
    private = private_cluster(target, 0, metadata, CREATE_TIMEOUT_S)
    async with private as cluster:
        status = await cluster.client.status()
        leader = f"vmr-{status.leader or 1}"
        node = await _PlayedNode.join(status.metadata_address)
        begun = perf_counter()
        for made in range(0, streams, STREAMS_PER_LOG):
            count = min(STREAMS_PER_LOG, streams - made)
            await cluster.client.create_log(f"bench-streams-{made}", streams=count, replicas=1)
            await node.until_running(made + count)
        created_s = perf_counter() - begun
        return await _rounds(node, cluster.processes.pids[leader], metadata, created_s, seconds)


async def _rounds(
    node: _PlayedNode, leader: int, metadata: int, created_s: float, seconds: float
) -> RoundRate:
    try:
        idle = CpuUse(leader)
        await asyncio.sleep(seconds)
        idle_percent = idle.percent()
        took: list[float] = []
        busy, begun = CpuUse(leader), perf_counter()
        while not took or perf_counter() - begun < seconds:
            started = perf_counter()
            await node.commit_one_each()
            took.append(perf_counter() - started)
        percent = busy.percent()
    finally:
        node.close()
    took.sort()
    return RoundRate(
        streams=len(node.replicas),
        metadata=metadata,
        created_s=created_s,
        rounds=len(took),
        p50_ms=percentile_ms(took, 0.5) or 0.0,
        p99_ms=percentile_ms(took, 0.99) or 0.0,
        leader_cpu_percent=percent,
        idle_cpu_percent=idle_percent,
    )


class _PlayedNode:
    """A node with real replica state machines and a real connection that stores nothing."""

    def __init__(self) -> None:
        self._codec = Codec("vsn")
        self._happened = asyncio.Event()
        self._connection: Connection | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._uncommitted = 0
        self.replicas: dict[StreamId, Replica] = {}
        self._stamps: dict[StreamId, tuple[int, int]] = {}

    @classmethod
    async def join(cls, address: str) -> _PlayedNode:
        node = cls()
        node._connection = await connect(address, node._codec, node)
        listener = Server(node._codec, node)  # the metadata repository looks whether it is there
        await listener.start("127.0.0.1:0")
        registration = pb.Register(
            storage_node_id=1,
            cluster_id=CLUSTER_ID,
            address=listener.address,
            node_secret=SECRET,
            sync_mode="none",
            volumes=["nowhere"],
            shards=[0],
            generations=[0],
        )
        try:
            await node._connection.request(pb.Frame(register=registration))
        finally:
            await listener.stop()
        node._beat()
        return node

    def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        if self._connection is not None:
            self._connection.close()

    async def until_running(self, streams: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while sum(_runs(replica) for replica in self.replicas.values()) < streams:
                self._happened.clear()
                await self._happened.wait()

    async def commit_one_each(self) -> None:
        """Report one more entry in every stream, and wait until all are committed."""
        self._uncommitted = len(self.replicas)
        for replica in self.replicas.values():
            replica.next_llsn += 1
            replica.written(replica.next_llsn - 1)
        self._report(*self.replicas.values())
        async with asyncio.timeout(PATIENCE_S):
            while self._uncommitted:
                self._happened.clear()
                await self._happened.wait()

    def _beat(self) -> None:
        self._report()
        self._beating = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat)

    def _report(self, *replicas: Replica) -> None:
        stamps = self._stamps
        reports = [report_to_wire(r.report(), 0, *stamps[r.stream_id]) for r in replicas]
        message = pb.GetReportResponse(storage_node_id=1, uncommit_reports=reports)
        if self._connection is not None and not self._connection.closed:
            self._connection.send(pb.Frame(report=message))

    # ---- orders

    def frame_received(self, connection: Connection, frame: Any, payload: memoryview) -> None:
        kind = self._codec.kind(frame)
        if kind == "commit":
            self._commit(frame.commit)
        else:
            try:
                answer = self._obey(kind, frame)
            except LoomError as error:
                answer = self._codec.failure_frame(error)
            answer.id, answer.reply = frame.id, True
            connection.send(answer)
        self._happened.set()

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        self._happened.set()

    def _commit(self, request: pb.CommitRequest) -> None:
        for result in request.commit_results:
            commit = commit_from_wire(result)
            replica = self.replicas[result.log_stream_id]
            if replica.commit(commit) is CommitOutcome.APPLIED:
                replica.stored(commit.high_watermark)
                self._uncommitted -= bool(commit.length)

    def _obey(self, kind: str, frame: Any) -> pb.Frame:
        order = getattr(frame, kind)
        if kind == "note_run":
            return pb.Frame(done=pb.Done())
        if kind == "prove_node":
            proof = pb.NodeProof(proof=node_proof(1, SECRET, order.challenge))
            return pb.Frame(node_proof=proof)
        if kind == "add_log_stream":
            replica = Replica(order.log_stream_id, 1, 0, ReplicaContext())
            self._stamps[order.log_stream_id] = order.stamp, order.birth
            self.replicas[order.log_stream_id] = replica
            return pb.Frame(done=pb.Done())
        replica = self.replicas[order.log_stream_id]
        if kind == "seal":
            replica.seal(order.seal_epoch, order.last_committed_llsn)
            self._report(replica)
            return pb.Frame(
                seal_response=pb.SealResponse(
                    state=STATE_TO_WIRE[replica.state],
                    last_committed_llsn=replica.last_committed_llsn,
                    high_watermark=replica.context.high_watermark,
                )
            )
        if kind == "unseal":
            replica.unseal(order.seal_epoch, (1,))
            self._report(replica)
            return pb.Frame(done=pb.Done())
        raise InvalidArgument(f"a played node does not do {kind}")


def _runs(replica: Replica) -> bool:
    return replica.state is ReplicaState.RUNNING
