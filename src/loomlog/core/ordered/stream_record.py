"""The record of a stream, and how it changes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from loomlog.core.history import Unknowable
from loomlog.core.ordered.evidence import Stream, newest_stream
from loomlog.types import Glsn, LogId, NodeId, Report, StreamId


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream of a log, with its replicas and what operators want of it.

    Each change returns the record to be swapped in."""

    stream_id: StreamId
    log_id: LogId
    loglet: LogId  # of its segment
    replicas: tuple[NodeId, ...]  # the first is the primary
    epoch: int
    sealed: bool
    wanted_running: bool = True  # False: an operator sealed it
    wanted_replicas: int = 0  # 0: as many as its log says
    joining: NodeId | None = None  # is being filled, to become a replica
    leaving: NodeId | None = None  # an operator wants this replica elsewhere, or gone
    dropping: tuple[NodeId, ...] = ()  # what these hold of it is to be deleted
    left: tuple[NodeId, ...] = ()  # were replicas, and keep what they have until the log is deleted
    stamp: int = 0  # of its creation; stored with every replica, and named to delete one
    births: tuple[tuple[NodeId, int], ...] = ()  # of the replicas that were ordered, by node
    unregistered: tuple[NodeId, ...] = ()  # by an operator; what they keep is not taken up again
    taken_back: bool = False  # it never ran, or has nothing left
    entries_gone: int = 0  # those it had when it was taken back, for a rebuild of the rounds
    relief: bool = False  # it was added because no other stream of its log ran
    removing: bool = False  # it takes nothing more, and goes when nothing of it is left
    sealed_at: Glsn = 0  # when it was sealed, its log ended here (or at 0); 0: not known
    wanted_primary: NodeId | None = None  # an operator wants this replica to be the primary

    @property
    def placement(self) -> tuple[tuple[NodeId, ...], NodeId | None, NodeId | None]:
        """The replicas, and which of them join and leave."""
        return self.replicas, self.joining, self.leaving

    @property
    def filled(self) -> tuple[NodeId, ...]:
        """The nodes with a replica, or with one that is being made there."""
        return self.replicas if self.joining is None else (*self.replicas, self.joining)

    @property
    def holders(self) -> tuple[NodeId, ...]:
        """All nodes that may have something of it."""
        return tuple(dict.fromkeys((*self.filled, *self.dropping, *self.left)))

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
        """Forget nodes that have nothing of it any more."""
        return replace(
            self,
            replicas=_without(nodes, self.replicas),
            joining=None if self.joining in nodes else self.joining,
            dropping=_without(nodes, self.dropping),
            left=_without(nodes, self.left),
            unregistered=_without(nodes, self.unregistered),
        )

    def join(self, node: NodeId, birth: int) -> StreamRecord:
        """Begin to fill a node. It gets a birth of its own: giving it up deletes nothing else."""
        births = {**dict(self.births), node: birth}
        return replace(self, joining=node, births=tuple(births.items()))

    def drop_joining(self, node: NodeId) -> StreamRecord:
        """Give up a newcomer; its partial replica is to be deleted."""
        dropping = tuple(dict.fromkeys((*self.dropping, node)))
        return replace(self, joining=None, dropping=dropping)

    def give_up(self, nodes: Collection[NodeId]) -> StreamRecord:
        """Seal it without replicas that never come back."""
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
        """Return it as its replicas report it, after the metadata went back in time."""
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
        """Seal it if its replicas may not know of a change since `before`."""
        if before and (before.replicas, before.epoch) == (self.replicas, self.epoch):
            return self
        return replace(self, epoch=self.epoch + 1, sealed=True, sealed_at=0)


def _without(gone: Collection[NodeId], nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    return tuple(node for node in nodes if node not in gone)
