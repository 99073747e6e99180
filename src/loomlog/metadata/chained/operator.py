"""Operators' requests about chains: how many there are, which nodes they are on, and which of these
is the head.

The order of a chain never changes, because the head has every block that another replica may have.
So a replica that is to be elsewhere in it is replaced by a newcomer, which joins at the end. Nor
does the number of chains change: the log is switched to a segment with another one, in which the
other chains are on the same nodes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from loomlog.core.chained.chain import Chain, Projection, Replica
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.segments import Settings
from loomlog.errors import InvalidArgument, NotFound
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.chained.nodes import ChainNodes
from loomlog.metadata.chained.records import ChainedCatalog
from loomlog.metadata.chained.upkeep import Upkeep
from loomlog.metadata.nodes.placement import ReplicaPlacement
from loomlog.metadata.protocol import Resized
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb


class ChainOperator:
    """Carries out operators' commands about chains. The upkeep loop does the work."""

    def __init__(
        self,
        catalog: Catalog,
        records: ChainedCatalog,
        nodes: ChainNodes,
        upkeep: Upkeep,
        placement: ReplicaPlacement,
    ) -> None:
        self._catalog, self._records, self._nodes, self._upkeep = catalog, records, nodes, upkeep
        self._placement = placement
        self.changes: Final[Mapping[int, Callable[[pb.ChangeStream], Awaitable[pb.Changed]]]] = {
            pb.ChangeStream.MOVE: self._move,
            pb.ChangeStream.PRIMARY: self._primary,
            pb.ChangeStream.SYNC: self._sync,
        }

    # ---- the number of chains

    def resized(self, request: pb.ChangeStream) -> Resized | None:
        """Return the segment with one chain more, or one less."""
        if request.action == pb.ChangeStream.ADD:
            log = self._catalog.log(request.log)
            return self._with_another_chain(log, request)
        if request.action == pb.ChangeStream.REMOVE:
            return self._without_a_chain(request)
        return None

    def _with_another_chain(self, log: LogRecord, request: pb.ChangeStream) -> Resized:
        settings, nodes = log.layout.active.settings, tuple(request.nodes)
        if nodes:
            self._placement.check(nodes, settings)
        (added,) = [nodes] if nodes else self._placement.place(1, settings)
        chains = self._chains(self._records.get(log.layout.active.loglet), settings)
        return Resized(log.name, settings._replace(streams=settings.streams + 1), (*chains, added))

    def _without_a_chain(self, request: pb.ChangeStream) -> Resized:
        record = self._record(request)
        log, name = self._catalog.log_of(record), f"stream {record.stream_id}"
        if request.nodes:
            raise InvalidArgument(f"{name} is of chains: name one with --part, and no nodes")
        if log is None or not log.layout.takes_appends(record.loglet):
            raise InvalidArgument(
                f"{name} takes no more appends: it is removed when all its entries are trimmed"
            )
        settings = log.layout.active.settings
        index = request.part if request.HasField("part") else settings.streams - 1
        if index >= settings.streams:
            raise InvalidArgument(
                f"{name} has no chain {index}: the last is {settings.streams - 1}"
            )
        if settings.streams == 1:
            raise InvalidArgument(
                f"{name} has no other chain: add one with `loom stream add {log.name}` first"
            )
        chains = self._chains(record, settings)
        del chains[index]
        return Resized(log.name, settings._replace(streams=settings.streams - 1), tuple(chains))

    def _chains(self, record: ChainedRecord | None, settings: Settings) -> list[tuple[NodeId, ...]]:
        """Return the nodes of the chains, with other nodes for those that cannot stay."""
        usable = set(self._placement.usable_nodes())
        nodes = [] if record is None else nodes_of(record.projection)
        chains = nodes or self._placement.place(settings.streams, settings)
        return [
            chain
            if len(chain) == settings.replicas and usable.issuperset(chain)
            else self._placement.place(1, settings)[0]
            for chain in chains
        ]

    # ---- replicas

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
        if not node:
            raise InvalidArgument(
                f"the head of {_name(record, request.part)} is not chosen for good: the next "
                "replica follows when it leaves"
            )
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

    async def _sync(self, request: pb.ChangeStream) -> pb.Changed:
        """Fill a replica from another one than the tail: one that is joining, or one in the place
        of a replica that the chain lacks."""
        record, node, index = self._record(request), request.to_node, request.part
        source, chain = self._replica_on(record, index, request.from_node)
        self._catalog.node(node)
        what = _name(record, index)
        if source.node_id == node:
            raise InvalidArgument(f"node {node} cannot be filled from itself: name another source")
        if any(replica.node_id == node for replica in chain):  # or the chain would not have it
            return pb.Changed(
                done=f"node {node} has all of {what} already",
                next="nothing is copied; `loom stream scrub` checks what is stored",
                finished=True,
            )
        standing = self._upkeep.standing(record)
        if (
            standing is None
            or source in standing.unfit
            or not self._nodes.reachable(source.node_id)
        ):
            raise InvalidArgument(
                f"node {source.node_id} is away, or does not have all of {what}: choose another one"
            )
        joining = [replica for replica in record.joining if replica.chain == index]
        newcomer = next((replica for replica in joining if replica.node_id == node), None)
        if newcomer is None:
            if joining:
                raise InvalidArgument(
                    f"{what} is just being copied to node {joining[0].node_id}: name that one, or "
                    "wait until it has joined"
                )
            staying = [replica for replica in chain if not record.is_moving(replica)]
            if len(staying) >= standing.replicas_wanted:
                raise InvalidArgument(
                    f"{what} has all its replicas: `loom stream move {record.stream_id} --part "
                    f"{index} --from NODE --to {node}` puts one in the place of another"
                )
            if self._nodes.spare(record, index, node) != node:
                raise InvalidArgument(
                    f"node {node} cannot take {what}: it is away, drained, or full"
                )
            newcomer = await self._upkeep.join(record, index, node)
        self._upkeep.newcomers.prefer_source(newcomer, source)
        return pb.Changed(
            done=f"{what} is copied from node {source.node_id} to node {node}",
            next="it joins the chain when it has all blocks; the last ones come from the tail",
            finished=False,
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


def nodes_of(projection: Projection) -> list[tuple[NodeId, ...]]:
    return [tuple(replica.node_id for replica in chain) for chain in projection.chains]


def _name(record: ChainedRecord, index: int) -> str:
    return f"chain {index} of stream {record.stream_id}"
