"""A stand-in for the metadata repository that only collects: nodes connect to its address, and are
asked what they know of the rounds.

It gives no orders and commits nothing. No node is refused permanently: an unexpected one is asked
to try again later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from loomlog.errors import LoomError, Unavailable
from loomlog.metadata.catalog.records import ClusterRecord, NodeRecord
from loomlog.net.credentials import Credentials
from loomlog.types import CommitContext, Glsn, NodeId, Report, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, Server, Service
from loomlog.wire.translate import commit_from_wire, report_from_wire

logger = logging.getLogger(__name__)

HEARTBEAT_S: Final = 1.0
HOLDINGS_S: Final = 60.0  # a node may have very many logs
_MESSAGES: Final = [field.name for field in pb.Frame.DESCRIPTOR.oneofs_by_name["body"].fields]


@dataclass(frozen=True, slots=True)
class ReplicaAnswer:
    """The report of a replica."""

    report: Report
    stamp: int  # of the stream that it is a replica of
    ran_epoch: int
    commits: tuple[CommitContext, ...]


@dataclass(frozen=True, slots=True)
class Caller:
    """A node that registered."""

    node_id: NodeId
    connection: Connection
    registration: pb.Register
    leader_epoch: int

    @property
    def sync_mode(self) -> str:
        return str(self.registration.sync_mode)

    @property
    def streams(self) -> frozenset[StreamId]:
        """Return the streams that it holds something of."""
        return frozenset(r.log_stream_id for r in self.registration.uncommit_reports)


class Collector(Service):
    """Admits only `nodes`, or, if they are not given, all that know the cluster's secret."""

    def __init__(
        self, cluster: ClusterRecord, nodes: dict[NodeId, NodeRecord] | None = None
    ) -> None:
        codec = Codec("vmr", cluster_id=cluster.cluster_id, credentials=Credentials.of_stand_in())
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
        """Wait until all nodes have registered or the time is up; `waiting` is called with the
        missing ones."""
        try:
            async with asyncio.timeout(timeout_s):
                while missing := [node for node in nodes if node not in self.callers]:
                    waiting(missing)
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            pass

    async def ask(self, node: NodeId, stream_id: StreamId, after: Glsn) -> ReplicaAnswer:
        """Return what a replica knows above a high watermark, with an equally new report."""
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
                report = report_from_wire(answer.report)
                return ReplicaAnswer(report, answer.report.stamp, answer.ran_epoch, tuple(commits))
            after = commits[-1].high_watermark

    async def holdings(self, caller: Caller) -> pb.Holdings:
        """Return all that is stored on a node."""
        question = pb.Frame(list_holdings=pb.ListHoldings())
        answer, _ = await caller.connection.request(question, timeout_s=HOLDINGS_S)
        holdings: pb.Holdings = answer.holdings
        return holdings

    # ---- registrations

    async def _register(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        request = frame.register
        connection.require("node", request.storage_node_id)
        self._check(request)
        node = request.storage_node_id
        self.callers[node] = Caller(node, connection, request, frame.leader_epoch)
        self._came.set()
        cluster_id = self._cluster.cluster_id
        registered = pb.Registered(cluster_id=cluster_id, heartbeat_s=HEARTBEAT_S)
        return pb.Frame(registered=registered, leader_epoch=frame.leader_epoch)

    def _check(self, request: pb.Register) -> None:
        ours = (
            request.cluster_id == self._cluster.cluster_id
            and request.cluster_secret == self._cluster.secret
        )
        if not ours or not self._is_known(request):
            logger.warning(
                "node %d at %s is not the one that the metadata knows: new, or with empty volumes",
                request.storage_node_id,
                request.address,
            )
            raise self._busy()

    def _is_known(self, request: pb.Register) -> bool:
        if self._known is None:
            return True
        known = self._known.get(request.storage_node_id)
        return known is not None and request.node_secret == known.node_secret

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        for caller in list(self.callers.values()):
            if caller.connection is connection:
                del self.callers[caller.node_id]

    # ---- everything else

    def _ignore(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        """Ignore reports, because replicas are asked once all nodes have registered."""

    async def _nobody_leads(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        return pb.Frame(leader_beat=pb.LeaderBeat())

    def _refuse(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        raise self._busy()

    def _busy(self) -> Unavailable:
        return Unavailable("the metadata is being rebuilt: try again later")
