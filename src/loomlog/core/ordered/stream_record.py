"""The record of a stream, and how it changes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from loomlog.core.history import Unknowable
from loomlog.core.ordered.evidence import Stream, newest_stream
from loomlog.types import Glsn, LogId, NodeId, Report, StreamId


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream of a log: its replicas, and what operators want of it.

    Methods that change it return a new record, for a compare-and-swap."""

    stream_id: StreamId
    log_id: LogId
    loglet: LogId  # of its segment
    replicas: tuple[NodeId, ...]  # the first is the primary
    epoch: int
    sealed: bool
    wanted_running: bool = True  # False: an operator sealed it
    wanted_replicas: int = 0  # 0: as many as its log says
    joining: NodeId | None = None  # is being filled to become a replica
    leaving: NodeId | None = None  # an operator wants this replica moved or removed
    dropping: tuple[NodeId, ...] = ()  # nodes that have to delete their replica
    left: tuple[NodeId, ...] = ()  # former replicas; keep their data until the log is deleted
    stamp: int = 0  # made at creation and stored with every replica; a deletion must name it
    births: tuple[tuple[NodeId, int], ...] = ()  # of the replicas that were created, by node
    unregistered: tuple[NodeId, ...] = ()  # by an operator; their data is never used again
    taken_back: bool = False  # removed: it never ran, or all its entries were trimmed
    entries_gone: int = 0  # how many it had when it was removed, for a rebuild of the rounds
    relief: bool = False  # it was added because no other stream of its log ran
    removing: bool = False  # takes no more appends; removed when all its entries are trimmed
    sealed_at: Glsn = 0  # the high watermark of the log when it was sealed; 0: not known
    wanted_primary: NodeId | None = None  # an operator wants this replica as primary

    @property
    def placement(self) -> tuple[tuple[NodeId, ...], NodeId | None, NodeId | None]:
        """The replicas, and the nodes that join and leave."""
        return self.replicas, self.joining, self.leaving

    @property
    def filled(self) -> tuple[NodeId, ...]:
        """The nodes with a replica, and the one that is being filled."""
        return self.replicas if self.joining is None else (*self.replicas, self.joining)

    @property
    def holders(self) -> tuple[NodeId, ...]:
        """All nodes that may have data of this stream."""
        return tuple(dict.fromkeys((*self.filled, *self.dropping, *self.left)))

    @property
    def ends_when_trimmed(self) -> bool:
        """True if it is removed once all its entries are trimmed and it is no longer needed."""
        return self.relief or self.removing

    def birth_on(self, node: NodeId) -> int:
        return dict(self.births).get(node, 0)

    def with_replicas(
        self,
        replicas: tuple[NodeId, ...],
        dropping: tuple[NodeId, ...],
        births: Mapping[NodeId, int],
    ) -> StreamRecord:
        left = dict.fromkeys((*self.left, *self.replicas))
        sent_away = () if self.leaving is None else (self.leaving,)
        primary = self.wanted_primary
        is_fulfilled = primary == replicas[0] or primary not in replicas
        unregistered = {*self.unregistered, *sent_away}.difference(replicas, dropping)
        return replace(
            self,
            replicas=replicas,
            joining=None if self.joining in replicas else self.joining,
            leaving=self.leaving if self.leaving in replicas else None,
            dropping=tuple(dict.fromkeys((*self.dropping, *dropping))),
            left=tuple(n for n in left if n not in replicas and n not in dropping),
            births=tuple({**dict(self.births), **births}.items()),
            unregistered=tuple(sorted(unregistered)),
            wanted_primary=None if is_fulfilled else primary,
        )

    def without_dropped(self, node: NodeId) -> StreamRecord:
        return replace(self, dropping=_without((node,), self.dropping))

    def without_holders(self, nodes: Collection[NodeId]) -> StreamRecord:
        """Forget nodes that have no data of this stream any more."""
        return replace(
            self,
            replicas=_without(nodes, self.replicas),
            joining=None if self.joining in nodes else self.joining,
            dropping=_without(nodes, self.dropping),
            left=_without(nodes, self.left),
            unregistered=_without(nodes, self.unregistered),
        )

    def join(self, node: NodeId, birth: int) -> StreamRecord:
        """Add a newcomer. Its own birth makes sure that dropping it deletes no other replica."""
        births = {**dict(self.births), node: birth}
        return replace(self, joining=node, births=tuple(births.items()))

    def drop_joining(self, node: NodeId) -> StreamRecord:
        """Abandon a newcomer; its partial replica is to be deleted."""
        dropping = tuple(dict.fromkeys((*self.dropping, node)))
        return replace(self, joining=None, dropping=dropping)

    def give_up(self, nodes: Collection[NodeId]) -> StreamRecord:
        """Seal the stream, and remove replicas that never come back."""
        gone = [node for node in self.replicas if node in nodes]
        if not gone:
            return self
        return replace(
            self,
            replicas=_without(nodes, self.replicas),
            epoch=self.epoch + 1,
            sealed=True,
            sealed_at=0,
            left=tuple(dict.fromkeys((*self.left, *gone))),
        )

    def as_held(
        self, reports: Mapping[NodeId, Report], births: Mapping[NodeId, int]
    ) -> StreamRecord | Unknowable:
        """Return the record that fits the replicas' reports, after older metadata was restored."""
        before = Stream(self.replicas, self.epoch, self.sealed) if self.epoch else None
        newest = newest_stream(before, reports)
        if isinstance(newest, Unknowable):
            return newest
        joining = () if self.joining is None else (self.joining,)
        left = dict.fromkeys((*self.left, *self.dropping, *joining, *self.replicas, *reports))
        return replace(
            self,
            replicas=newest.replicas,
            epoch=newest.epoch,
            sealed=newest.sealed,
            sealed_at=0,
            joining=None,
            leaving=None,
            dropping=(),
            births=tuple({**dict(self.births), **births}.items()),
            left=_without(newest.replicas, tuple(left)),
        )

    def sealed_unless_same(self, before: StreamRecord | None) -> StreamRecord:
        """Seal the stream if its replicas or epoch changed since `before`: they may not know it."""
        if before and (before.replicas, before.epoch) == (self.replicas, self.epoch):
            return self
        return replace(self, epoch=self.epoch + 1, sealed=True, sealed_at=0)


def _without(gone: Collection[NodeId], nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    return tuple(node for node in nodes if node not in gone)
