"""The records of chained loglets: stored, in memory, and drafted after a rollback."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import ClassVar, Final

from loomlog.core.chained.chain import Projection, Replica, ReplicaEpochs, Unheard
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.history import Unknowable
from loomlog.metadata.catalog.loglet_records import LogletRecords
from loomlog.metadata.catalog.records import LogRecord, NodeRecord
from loomlog.metadata.offline.collector import Caller
from loomlog.metadata.rollback.draft import Draft, LogletDraft
from loomlog.protocol_names import CHAINED
from loomlog.types import LogId, NodeId
from loomlog.wire import loomlog_pb2 as pb

PREFIX: Final = "chained/"  # of the keys of records


class ChainedCatalog(LogletRecords[ChainedRecord]):
    """The chained loglets. Created by `load`."""

    prefix: ClassVar[str] = PREFIX
    kind = ChainedRecord

    def on_node(self, node: NodeId) -> list[ChainedRecord]:
        """Return the loglets with a replica on a node that is in use or being filled."""
        return [record for record in self if node in record.nodes_used]

    def replicas_on(self, node: NodeId) -> list[Replica]:
        return [r for record in self for r in record.replicas if r.node_id == node]

    def projection_of(self, loglet: LogId) -> Projection | None:
        """Return the projection in force; None if there is no such loglet."""
        record = self.get(loglet)
        return None if record is None else record.projection

    async def swap(self, projection: Projection, unheard: tuple[Unheard, ...]) -> bool:
        """Bring a projection into force if the previous epoch is in force; return whether it is."""
        after = await self.change(
            projection.log_id, lambda record: record.swap(projection, unheard)
        )
        return after.projection == projection

    # ---- the load of nodes

    def sets_of(self, record: ChainedRecord) -> list[tuple[NodeId, ...]]:
        chains = record.projection.chains
        return [tuple(replica.node_id for replica in chain) for chain in chains]

    def _show(self, record: ChainedRecord) -> None:
        super()._show(record)
        self._count(record, 1)

    def _hide(self, record: ChainedRecord) -> None:
        self._count(record, -1)
        super()._hide(record)

    def _changed(self, before: ChainedRecord, after: ChainedRecord) -> None:
        super()._changed(before, after)
        self._count(before, -1)
        self._count(after, 1)

    def _count(self, record: ChainedRecord, by: int) -> None:
        for node in record.nodes_used:
            self.catalog.load_of[node] += by


class ChainedDraft(LogletDraft[ChainedRecord]):
    """The projections of chained loglets after a rollback, from the replicas on nodes."""

    protocol: ClassVar[str] = CHAINED

    def __init__(self) -> None:
        self.chains: dict[LogId, dict[Replica, ReplicaEpochs]] = {}
        self.unserved: set[NodeId] = set()  # have chains that cannot be opened
        super().__init__(PREFIX, ChainedRecord, self.chains)

    def add(self, caller: Caller, holdings: pb.Holdings) -> None:
        for ref in holdings.chain_replicas:
            replica = Replica(caller.node_id, ref.loglet_id, ref.chain, ref.birth)
            epochs = ReplicaEpochs(ref.epoch, ref.written)
            self.chains.setdefault(ref.loglet_id, {})[replica] = epochs
            self.add_trim(ref.loglet_id, ref.trimmed)
        if caller.registration.conditions.chains_unserved:
            self.unserved.add(caller.node_id)

    def is_held(self, draft: Draft, log: LogRecord) -> bool | None:
        held = super().is_held(draft, log)
        return True if held is False and self.unserved else held

    def has_run(self, record: ChainedRecord) -> bool:
        return record.made

    def bring(self, draft: Draft, logs: Mapping[LogId, LogRecord]) -> None:
        void = defaultdict(
            tuple, {n.node_id: n.losses_of(CHAINED) for n in draft.decoded("node/", NodeRecord)}
        )
        for key, record in self.remaining(draft):
            if record.loglet in draft.dropped:
                continue
            epochs = {
                replica: each
                for replica, each in self.chains.get(record.loglet, {}).items()
                if (replica.log_id, replica.chain, replica.birth) not in void[replica.node_id]
            }
            if why := self._why_unknown(record, epochs, logs.get(record.log_id)):
                draft.reasons.append(why)
                continue
            restored = record.restore(epochs)
            if isinstance(restored, Unknowable):
                draft.reasons.append(f"segment {record.loglet} (chained): {restored.why}")
            else:
                draft.changes[key] = restored

    def _why_unknown(
        self, record: ChainedRecord, there: Collection[Replica], log: LogRecord | None
    ) -> str:
        """Return why chains that cannot be opened may know more than the replicas that are `there`;
        "" if they do not: an append needs more replicas than there are nodes with such chains."""
        if log is None or not record.made or not self.unserved:
            return ""
        found, chains = {replica.chain for replica in there}, record.projection.chains
        if found.issuperset(range(len(chains))) and len(self.unserved) < log.replicas_least:
            return ""
        nodes = ", ".join(map(str, sorted(self.unserved)))
        return (
            f"segment {record.loglet} (chained) of log {log.name}: chains on node {nodes} cannot "
            "be opened, or a volume is missing, and they may be the newest: the log of the node "
            "says why; put it back in order, and start the node again"
        )
