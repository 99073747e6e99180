"""Operators' requests about chains: which nodes they are on, and which of these is the head.

The order of a chain never changes, because the head has every block that another replica may have.
So a replica that is to be elsewhere in it is replaced by a newcomer, which joins at the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from loomlog.core.chained.chain import Chain, Replica
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.errors import InvalidArgument, NotFound
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.chained.nodes import ChainNodes
from loomlog.metadata.chained.records import ChainedCatalog
from loomlog.metadata.chained.upkeep import Upkeep
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb


class ChainOperator:
    """Carries out operators' commands about chains. The upkeep loop does the work."""

    def __init__(
        self, catalog: Catalog, records: ChainedCatalog, nodes: ChainNodes, upkeep: Upkeep
    ) -> None:
        self._catalog, self._records, self._nodes, self._upkeep = catalog, records, nodes, upkeep
        self.changes: Final[Mapping[int, Callable[[pb.ChangeStream], Awaitable[pb.Changed]]]] = {
            pb.ChangeStream.MOVE: self._move,
            pb.ChangeStream.PRIMARY: self._primary,
        }

    async def _move(self, request: pb.ChangeStream) -> pb.Changed:
        record, target = self._record(request), request.to_node
        replica, _ = self._replica_on(record, request.part, request.from_node)
        what = _name(record, request.part)
        if target:
            self._catalog.node(target)
        spare = self._nodes.spare(record, request.part, target or None)
        if spare is None or (target and spare != target):
            raise InvalidArgument(
                f"node {target} cannot take {what}: it is away, drained, full, or has it"
                if target
                else f"there is no other node for {what}: start one"
            )
        await self._wish(record, replica, target=target)
        return pb.Changed(
            done=f"{what} begins to move from node {request.from_node} to node {spare}",
            next="its blocks are copied while it is in use; then the replica is removed",
        )

    async def _primary(self, request: pb.ChangeStream) -> pb.Changed:
        """Replace all replicas in front of the new head: on other nodes, or where they are."""
        record, node = self._record(request), request.to_node
        replica, chain = self._replica_on(record, request.part, node)
        what = _name(record, request.part)
        ahead = chain[: chain.index(replica)]
        if not ahead:
            return pb.Changed(done=f"node {node} is the head of {what} already", next="")
        if record.projection.closed:
            raise InvalidArgument(f"{what} takes no more appends: it needs no other head")
        leaves = self._nodes.leaving(node) or record.is_moving(replica)
        if leaves or not self._nodes.reachable(node):
            raise InvalidArgument(f"node {node} is away, or leaves {what}: choose another one")
        for each in ahead:
            if not record.is_moving(each):
                await self._wish(record, each, target=each.node_id)
        names = ", ".join(f"node {each.node_id}" for each in ahead)
        return pb.Changed(
            done=f"node {node} is to be the head of {what}",
            next=f"replicas that take the place of those in front of it ({names}) are filled while "
            "the chain is in use, and join behind it, one after another",
        )

    async def _wish(self, record: ChainedRecord, replica: Replica, *, target: NodeId) -> None:
        await self._records.change(record.loglet, lambda now: now.move(replica, target))
        self._upkeep.wake(record.loglet)

    def _record(self, request: pb.ChangeStream) -> ChainedRecord:
        record = self._records.of_stream(request.log_stream_id)
        if record is None:
            raise NotFound(f"stream {request.log_stream_id} was deleted")
        return record

    def _replica_on(self, record: ChainedRecord, index: int, node: NodeId) -> tuple[Replica, Chain]:
        """Return the replica of a chain on a node, and the chain."""
        chains = record.projection.chains
        chain = chains[index] if index < len(chains) else ()
        self._catalog.node(node)
        replica = next((replica for replica in chain if replica.node_id == node), None)
        if replica is None:
            raise InvalidArgument(f"node {node} has no replica of {_name(record, index)}")
        return replica, chain


def _name(record: ChainedRecord, index: int) -> str:
    return f"chain {index} of stream {record.stream_id}"
