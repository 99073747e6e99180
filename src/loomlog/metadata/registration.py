"""A storage node joins: is it ours, and is it who it says it is?

Node ids and directory names prove nothing. A cluster has a secret, and so has every node; both are
kept beside the node's data and must match what the metadata knows.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from typing import Final

from loomlog.core.chained.projection import Replica
from loomlog.errors import AlreadyExists, InvalidArgument, Unauthorized, Unavailable
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.committer import Committer
from loomlog.metadata.members import Member, Members
from loomlog.metadata.records import NodeRecord
from loomlog.net.connection import Connection
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.translate import report_from_wire

logger = logging.getLogger(__name__)

_LOCATION: Final = re.compile(r"[A-Za-z0-9._=,:/-]{0,100}")


class Registration:
    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        members: Members,
        heartbeat_s: float,
        joined: Callable[[NodeId], None],
        metadata_addresses: Callable[[], list[str]],
    ) -> None:
        self._catalog = catalog
        self._committer = committer
        self._members = members
        self._heartbeat_s = heartbeat_s
        self._joined = joined
        self._metadata_addresses = metadata_addresses
        self._one_by_one = asyncio.Lock()

    async def register(self, connection: Connection, request: pb.Register) -> pb.Registered:
        async with self._one_by_one:
            self._check(connection, request)
            record = await self._catalog.put_node(
                _record_of(request), copies_lost=request.copies_lost
            )
            if connection.closed:
                raise Unavailable("the connection was lost")
            self._join(connection, request)
        cluster = self._catalog.cluster
        return pb.Registered(
            cluster_id=cluster.cluster_id,
            cluster_secret=cluster.secret,
            heartbeat_s=self._heartbeat_s,
            metadata=self._metadata_addresses(),
            lost_below=record.lost_below,
        )

    def _join(self, connection: Connection, request: pb.Register) -> None:
        node = request.storage_node_id
        self._members.joined(node, connection)
        self._committer.reconnected(node)
        self.take_reports(node, request.uncommit_reports)
        self._members.heard(node).chain_replicas = {
            Replica(node, ref.loglet_id, ref.chain, ref.birth) for ref in request.chain_replicas
        }
        replicas = len(request.uncommit_reports) + len(request.chain_replicas)
        logger.info("node %d registered from %s with %d replicas", node, request.address, replicas)
        # After the answer, which is sent in this turn of the loop.
        asyncio.get_running_loop().call_soon(self._joined, node)

    def take_reports(self, node: NodeId, reports: Iterable[pb.LogStreamUncommitReport]) -> Member:
        member = self._members.heard(node)
        for message in reports:
            report = report_from_wire(message)
            member.take(report, message.stored_bytes)
            self._committer.report(node, report)
        return member

    # ---- checks

    def _check(self, connection: Connection, request: pb.Register) -> None:
        node, cluster = request.storage_node_id, self._catalog.cluster
        if not node or not request.address:
            raise InvalidArgument("a node registers with an id above 0 and its address")
        if not _LOCATION.fullmatch(request.location):
            raise InvalidArgument(
                f"node {node} cannot have the location {request.location!r}: use up to 100 "
                "letters, digits and . _ = , : / - as in rack=a"
            )
        _compare("cluster id", cluster.cluster_id, request.cluster_id, node)
        self._check_not_connected(connection, request)
        if not request.cluster_secret:
            self._note_first_start(request)
            return
        _compare("cluster secret", cluster.secret, request.cluster_secret, node, _short)
        known = self._catalog.nodes.get(node)
        if known is None or known.removing:
            # Who knows the secret was a member once: somebody removed it.
            raise Unauthorized(
                f"node {node} was removed from this cluster: to use it again, start it with empty "
                "volumes"
            )
        _compare("node secret", known.node_secret, request.node_secret, node, _short)

    def _check_not_connected(self, connection: Connection, request: pb.Register) -> None:
        node = request.storage_node_id
        known = self._catalog.nodes.get(node)
        if (
            known is not None
            and known.node_secret != request.node_secret
            and self._members.connected(node)
        ):
            raise AlreadyExists(
                f"node {node} is connected already, from {known.address}: "
                "give this one another storage node id"
            )

    def _note_first_start(self, request: pb.Register) -> None:
        known = self._catalog.nodes.get(request.storage_node_id)
        if known is not None and known.node_secret != request.node_secret:
            logger.warning(
                "node %d came back with empty volumes (node secret %s, was %s): "
                "the replicas that it had are missing",
                request.storage_node_id,
                _short(request.node_secret),
                _short(known.node_secret),
            )


def _record_of(request: pb.Register) -> NodeRecord:
    return NodeRecord(
        request.storage_node_id,
        request.address,
        request.node_secret,
        request.sync_mode,
        tuple(request.volumes),
        location=request.location,
    )


def _compare(
    what: str, expected: str, found: str, node: NodeId, show: Callable[[str], str] = str
) -> None:
    if expected != found:
        raise Unauthorized(
            f"node {node} has another {what}: expected {show(expected)!r}, "
            f"found {show(found)!r}; its volumes belong elsewhere, or it connects to the wrong "
            "metadata repository"
        )


def _short(secret: str) -> str:
    """Enough to tell two apart, too little to use."""
    return f"{secret[:6]}…" if secret else ""
