"""A stand-in for the metadata repository that only listens: nodes come to its address by
themselves, and are asked what they know of the rounds.

It gives no orders and commits nothing, and no node is turned away for good: whoever does not belong
here is told to try again later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from loomlog.errors import LoomError, Unavailable
from loomlog.metadata.records import ClusterRecord, NodeRecord
from loomlog.net.connection import Connection, Frame
from loomlog.net.endpoints import Server
from loomlog.net.service import Service
from loomlog.types import CommitContext, Glsn, NodeId, Report, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.translate import commit_from_wire, report_from_wire

logger = logging.getLogger(__name__)

HEARTBEAT_S: Final = 1.0
_MESSAGES: Final = [field.name for field in pb.Frame.DESCRIPTOR.oneofs_by_name["body"].fields]


@dataclass(frozen=True, slots=True)
class Told:
    """What a replica told."""

    report: Report
    ran_epoch: int
    commits: tuple[CommitContext, ...]


@dataclass(frozen=True, slots=True)
class Caller:
    """A node that registered."""

    node_id: NodeId
    connection: Connection
    sync_mode: str
    leader_epoch: int
    streams: frozenset[StreamId]  # of which it holds something


class Collector(Service):
    def __init__(self, cluster: ClusterRecord, nodes: dict[NodeId, NodeRecord]) -> None:
        codec = Codec("vmr", cluster_id=cluster.cluster_id)
        refused = dict.fromkeys(_MESSAGES, self._refuse)
        super().__init__(
            codec,
            {
                **refused,
                "register": self._register,
                "report": self._ignore,
                "ask_leader": self._nobody_leads,
            },
        )
        self._cluster = cluster
        self._known = nodes
        self._server = Server(codec, self)
        self._came = asyncio.Event()
        self.callers: dict[NodeId, Caller] = {}

    @property
    def address(self) -> str:
        return self._server.address

    async def start(self, address: str) -> None:
        await self._server.start(address)

    async def close(self) -> None:
        await self._server.stop()
        await self.stop()

    async def wait_for(
        self,
        nodes: Collection[NodeId],
        timeout_s: float,
        waiting: Callable[[list[NodeId]], None],
    ) -> None:
        """Until all of them came, or the time is over; `waiting` is told who is still missing."""
        try:
            async with asyncio.timeout(timeout_s):
                while missing := [node for node in nodes if node not in self.callers]:
                    waiting(missing)
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            pass

    async def ask(self, node: NodeId, stream_id: StreamId, after: Glsn) -> Told:
        """What a replica knows above a high watermark; its report is as new as the last commit."""
        caller = self.callers.get(node)
        if caller is None:
            raise Unavailable(f"node {node} is not connected")
        commits: list[CommitContext] = []
        while True:
            question = pb.ListCommits(log_stream_id=stream_id, after=after)
            frame, _ = await caller.connection.request(pb.Frame(list_commits=question))
            answer: pb.CommitList = frame.commit_list
            commits += map(commit_from_wire, answer.commits)
            if not answer.more:
                return Told(report_from_wire(answer.report), answer.ran_epoch, tuple(commits))
            after = commits[-1].high_watermark

    # ---- who comes

    async def _register(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        request = frame.register
        self._check(request)
        node = request.storage_node_id
        self.callers[node] = Caller(
            node,
            connection,
            request.sync_mode,
            frame.leader_epoch,
            _streams(request.uncommit_reports),
        )
        self._came.set()
        registered = pb.Registered(
            cluster_id=self._cluster.cluster_id,
            cluster_secret=self._cluster.secret,
            heartbeat_s=HEARTBEAT_S,
        )
        return pb.Frame(registered=registered, leader_epoch=frame.leader_epoch)

    def _check(self, request: pb.Register) -> None:
        known = self._known.get(request.storage_node_id)
        same = (
            known is not None
            and request.cluster_id == self._cluster.cluster_id
            and request.cluster_secret == self._cluster.secret
            and request.node_secret == known.node_secret
        )
        if not same:
            logger.warning(
                "node %d at %s is not the one that the metadata knows: new, or with empty volumes",
                *(request.storage_node_id, request.address),
            )
            raise self._busy()

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        for caller in list(self.callers.values()):
            if caller.connection is connection:
                del self.callers[caller.node_id]

    # ---- everything else

    def _ignore(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        """Reports: replicas are asked when all are there."""

    async def _nobody_leads(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        return pb.Frame(leader_beat=pb.LeaderBeat())

    def _refuse(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        raise self._busy()

    def _busy(self) -> Unavailable:
        return Unavailable("the metadata is being rebuilt: try again later")


def _streams(reports: Iterable[pb.LogStreamUncommitReport]) -> frozenset[StreamId]:
    return frozenset(report.log_stream_id for report in reports)
