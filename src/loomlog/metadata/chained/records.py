"""The records of chained loglets: stored, kept in memory, and drafted after a rollback."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from loomlog.core.chained.chain import Epochs, Projection, Replica, newest_projection
from loomlog.core.history import Unknowable
from loomlog.metadata.catalog.loglet_records import LogletRecords
from loomlog.metadata.catalog.records import LogRecord, NodeRecord
from loomlog.metadata.offline.collector import Caller
from loomlog.metadata.rollback.draft import Draft, LogletDraft
from loomlog.metadata.store.contract import MetaStore
from loomlog.protocol_names import CHAINED
from loomlog.types import Glsn, LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb

PREFIX: Final = "chained/"  # of the keys of records


@dataclass(frozen=True, slots=True)
class ChainedRecord:
    """A loglet of protocol `chained`. It outlives its segment until all replicas are removed."""

    loglet: LogId
    log_id: LogId
    stream_id: StreamId  # of the one stream that its segment shows
    projection: Projection  # in force; before the segment begins, `first` is 0
    made: bool = False  # its replicas exist and are sealed; until then it may be recreated
    joining: tuple[Replica, ...] = ()  # are being filled
    dropping: tuple[Replica, ...] = ()  # left; are to be removed from their nodes
    trimmed: Glsn = 0  # on all replicas
    given_up: tuple[Replica, ...] = ()  # did not join; are to be removed, too

    def __post_init__(self) -> None:
        """Convert the plain tuples of a stored record."""
        object.__setattr__(self, "projection", _projection(self.projection))
        for name in ("joining", "dropping", "given_up"):
            object.__setattr__(self, name, tuple(Replica(*r) for r in getattr(self, name)))

    @property
    def begun(self) -> bool:
        return self.projection.first > 0

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Return all replicas that may exist on any node."""
        return (*self.projection.replicas, *self.joining, *self.needless)

    @property
    def needless(self) -> tuple[Replica, ...]:
        """Return the replicas to remove as soon as nothing depends on them."""
        return (*self.dropping, *self.given_up)


def _projection(fields: Projection) -> Projection:
    projection = Projection(*fields)
    chains = tuple(tuple(Replica(*r) for r in chain) for chain in projection.chains)
    return projection._replace(chains=chains)


class ChainedCatalog(LogletRecords[ChainedRecord]):
    """The chained loglets. Created by `load`. `load_of` counts replicas, also joining ones."""

    def __init__(self, store: MetaStore, load_of: Counter[NodeId]) -> None:
        super().__init__(store, PREFIX)
        self._load_of = load_of

    @classmethod
    async def load(cls, store: MetaStore, load_of: Counter[NodeId]) -> ChainedCatalog:
        catalog = cls(store, load_of)
        await catalog._read(ChainedRecord)
        return catalog

    def on_node(self, node: NodeId) -> list[ChainedRecord]:
        """Return the loglets with a replica on a node that is used or being filled."""
        return [record for record in self if node in _nodes_used(record)]

    def replicas_on(self, node: NodeId) -> list[Replica]:
        return [r for record in self for r in record.replicas if r.node_id == node]

    async def swap(self, projection: Projection) -> bool:
        """Bring it into force, if the previous epoch is in force. Replicas that leave are marked
        for removal. A chain that begins again has to be trimmed again, and newcomers that were
        filled from its lost replicas do not match it."""

        def swapped(record: ChainedRecord) -> ChainedRecord:
            if record.projection.epoch + 1 != projection.epoch:
                return record
            staying = set(projection.replicas)
            left = [r for r in record.projection.replicas if r not in staying]
            again = {r.chain for r in record.joining if projection.chains[r.chain] == (r,)}
            waiting = [r for r in record.joining if r not in staying]
            return replace(
                record,
                projection=projection,
                joining=tuple(r for r in waiting if r.chain not in again),
                dropping=(*record.dropping, *left),
                given_up=(*record.given_up, *(r for r in waiting if r.chain in again)),
                trimmed=record.trimmed if projection.lost == record.projection.lost else 0,
            )

        after = await self.change(projection.log_id, swapped)
        return after.projection == projection

    async def drop(self, loglet: LogId, *replicas: Replica) -> None:
        """Give up replicas that were being filled; what they hold is to be removed."""

        def dropped(record: ChainedRecord) -> ChainedRecord:
            gone = [r for r in record.joining if r in replicas]
            joining = tuple(r for r in record.joining if r not in replicas)
            return replace(record, joining=joining, given_up=(*record.given_up, *gone))

        await self.change(loglet, dropped)

    async def removed(self, loglet: LogId, *replicas: Replica) -> None:
        """Note that replicas are gone from their nodes."""

        def without(record: ChainedRecord) -> ChainedRecord:
            dropping = tuple(r for r in record.dropping if r not in replicas)
            given_up = tuple(r for r in record.given_up if r not in replicas)
            return replace(record, dropping=dropping, given_up=given_up)

        await self.change(loglet, without)

    # ---- the load of nodes

    def _show(self, record: ChainedRecord) -> None:
        super()._show(record)
        self._count(record, 1)

    def _hide(self, record: ChainedRecord) -> None:
        self._count(record, -1)
        super()._hide(record)

    def _changed(self, before: ChainedRecord, after: ChainedRecord) -> None:
        self._count(before, -1)
        self._count(after, 1)

    def _count(self, record: ChainedRecord, by: int) -> None:
        for node in _nodes_used(record):
            self._load_of[node] += by


def _nodes_used(record: ChainedRecord) -> list[NodeId]:
    """Return the node of each replica that is used or being filled."""
    return [r.node_id for r in (*record.projection.replicas, *record.joining)]


class ChainedDraft(LogletDraft[ChainedRecord]):
    """The projections of chained loglets after a rollback, from the replicas that nodes hold."""

    protocol: ClassVar[str] = CHAINED

    def __init__(self) -> None:
        self.chains: dict[LogId, dict[Replica, Epochs]] = {}
        super().__init__(PREFIX, ChainedRecord, self.chains)

    def add(self, caller: Caller, holdings: pb.Holdings) -> None:
        for ref in holdings.chain_replicas:
            replica = Replica(caller.node_id, ref.loglet_id, ref.chain, ref.birth)
            self.chains.setdefault(ref.loglet_id, {})[replica] = Epochs(ref.epoch, ref.written)

    def has_run(self, record: ChainedRecord) -> bool:
        return record.made

    def bring(self, draft: Draft, logs: Mapping[LogId, LogRecord]) -> None:
        void = defaultdict(tuple, {n.node_id: n.void for n in draft.decoded("node/", NodeRecord)})
        for key, record in self.remaining(draft):
            epochs = {
                replica: each
                for replica, each in self.chains.get(record.loglet, {}).items()
                if (replica.log_id, replica.chain, replica.birth) not in void[replica.node_id]
            }
            newest = newest_projection(record.projection, epochs)
            if isinstance(newest, Unknowable):
                draft.reasons.append(f"segment {record.loglet} (chained): {newest.why}")
                continue
            draft.changes[key] = replace(
                record, projection=newest, joining=(), dropping=(), given_up=()
            )
