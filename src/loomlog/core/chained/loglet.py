"""The record of a chained loglet, and how it changes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from loomlog.core.chained.chain import (
    Projection,
    Replica,
    ReplicaEpochs,
    Unheard,
    newest_projection,
)
from loomlog.core.history import Unknowable
from loomlog.types import Glsn, LogId, NodeId, StreamId


@dataclass(frozen=True, slots=True)
class ChainedRecord:
    """A loglet of protocol `chained`. It outlives its segment until all replicas are removed.

    Methods that change it return a new record, for a compare-and-swap, or the record itself if
    nothing changes."""

    loglet: LogId
    log_id: LogId
    stream_id: StreamId  # the only stream of its segment
    projection: Projection  # in force; before the segment begins, `first` is 0
    made: bool = False  # its replicas exist and are sealed; until then it may be recreated
    joining: tuple[Replica, ...] = ()  # being filled
    dropping: tuple[Replica, ...] = ()  # left; to be removed from their nodes
    trimmed: Glsn = 0  # on all replicas
    given_up: tuple[Replica, ...] = ()  # newcomers that did not join; to be removed, too
    # Replicas that operators move to a node. 0: to any other; its own node: elsewhere if possible,
    # else to another volume.
    moving: tuple[tuple[Replica, NodeId], ...] = ()
    damaged: tuple[Replica, ...] = ()  # leaving or left, because blocks cannot be read
    unheard: tuple[Unheard, ...] = ()  # left; compared with their chains when they are back
    witnesses: tuple[Replica, ...] = ()  # left; may have blocks that all others have lost

    def __post_init__(self) -> None:
        """Convert the plain tuples of a stored record."""
        object.__setattr__(self, "projection", _projection(self.projection))
        for name in ("joining", "dropping", "given_up", "damaged", "witnesses"):
            object.__setattr__(self, name, tuple(Replica(*r) for r in getattr(self, name)))
        moving = tuple((Replica(*replica), node) for replica, node in self.moving)
        object.__setattr__(self, "moving", moving)
        unheard = tuple(Unheard(Replica(*r), *rest) for r, *rest in self.unheard)
        object.__setattr__(self, "unheard", unheard)

    @property
    def begun(self) -> bool:
        return self.projection.first > 0

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """All replicas that may exist on any node."""
        return (*self.projection.replicas, *self.joining, *self.needless)

    @property
    def needless(self) -> tuple[Replica, ...]:
        """The replicas to remove as soon as nothing depends on them."""
        return (*self.dropping, *self.given_up)

    @property
    def nodes_used(self) -> list[NodeId]:
        """The node of each replica that is used or being filled."""
        return [r.node_id for r in (*self.projection.replicas, *self.joining)]

    def older(self, *chains: int) -> list[Replica]:
        """Return the replicas of these chains that are not in force but may have blocks, most
        trustworthy first.

        Newcomers have only decided blocks. A replica that left may have blocks in places that later
        went to others, perhaps on another chain; so those that left last come first."""
        older = (*self.joining, *reversed(self.given_up), *reversed(self.dropping))
        return [replica for replica in older if replica.chain in chains]

    def unserved(self, node: NodeId, life: int) -> list[Replica]:
        """Return the replicas of a node that must serve nothing until they are sealed again.

        These are all in force if the node crashed, and those that left: if a chain began again
        without them, they would serve clients that do not know of it yet."""
        has_crashed = self.projection.has_crashed(node, life)
        unserved = (*self.needless, *(self.projection.replicas if has_crashed else ()))
        return [replica for replica in unserved if replica.node_id == node]

    # ---- changes

    def make_again(self, projection: Projection) -> ChainedRecord:
        """Start over after an interrupted creation, and remove the replicas of that attempt."""
        return replace(
            self,
            projection=projection,
            dropping=self.replicas,
            given_up=(),
            moving=(),
            unheard=(),
            witnesses=(),
        )

    def begin(self, start: Glsn, sequencer: int) -> ChainedRecord:
        """Begin to hand out positions, from the start of the segment."""
        projection = self.projection._replace(first=start, start=start, sequencer=sequencer)
        return replace(self, projection=projection)

    def swap(self, projection: Projection, unheard: tuple[Unheard, ...] = ()) -> ChainedRecord:
        """Bring a projection into force, if the previous epoch is in force.

        Replicas that leave are marked for removal, `unheard` ones for a comparison before that. A
        chain that begins again has to be trimmed again, and its newcomers are given up, because
        they were filled from the lost replicas."""
        if self.projection.epoch + 1 != projection.epoch:
            return self
        staying = set(projection.replicas)
        left = [r for r in self.projection.replicas if r not in staying]
        again = {r.chain for r in self.joining if projection.chains[r.chain] == (r,)}
        waiting = [r for r in self.joining if r not in staying]
        return replace(
            self,
            projection=projection,
            joining=tuple(r for r in waiting if r.chain not in again),
            dropping=(*self.dropping, *left),
            given_up=(*self.given_up, *(r for r in waiting if r.chain in again)),
            trimmed=0 if again else self.trimmed,
            moving=tuple(move for move in self.moving if move[0] in staying),
            unheard=(*self.unheard, *unheard),
            witnesses=tuple(r for r in self.witnesses if r not in staying),
        )

    def move(self, replica: Replica, target: NodeId) -> ChainedRecord:
        """Record that a replica is to be moved to another node."""
        others = tuple(move for move in self.moving if move[0] != replica)
        return replace(self, moving=(*others, (replica, target)))

    def is_moving(self, replica: Replica) -> bool:
        return any(moving == replica for moving, _ in self.moving)

    def admit(self, *newcomers: Replica) -> ChainedRecord:
        """Record newcomers before they are created."""
        return replace(self, joining=(*self.joining, *newcomers))

    def note_damaged(self, *replicas: Replica) -> ChainedRecord:
        """Record that replicas leave because of damage. If their chain lost blocks, they are
        kept."""
        return replace(self, damaged=tuple(dict.fromkeys((*self.damaged, *replicas))))

    def note_witnesses(self, *replicas: Replica) -> ChainedRecord:
        """Record replicas that a chain begins again without: their nodes were given up, but may
        come back nevertheless."""
        return replace(self, witnesses=tuple(dict.fromkeys((*self.witnesses, *replicas))))

    def is_unheard(self, replica: Replica) -> bool:
        return any(each.replica == replica for each in self.unheard)

    def hear(self, *replicas: Replica, witnesses: tuple[Replica, ...] = ()) -> ChainedRecord:
        """Record that replicas were compared with their chains, or need not be, and which of them
        have blocks that their chains lost. The losses are recorded in the projection."""
        unheard = tuple(each for each in self.unheard if each.replica not in replicas)
        return replace(self.note_witnesses(*witnesses), unheard=unheard)

    def give_up(self, *newcomers: Replica) -> ChainedRecord:
        """Abandon newcomers, which are to be removed."""
        gone = [r for r in self.joining if r in newcomers]
        joining = tuple(r for r in self.joining if r not in newcomers)
        return replace(self, joining=joining, given_up=(*self.given_up, *gone))

    def forget(self, *replicas: Replica) -> ChainedRecord:
        """Record that replicas were removed from their nodes."""
        dropping = tuple(r for r in self.dropping if r not in replicas)
        given_up = tuple(r for r in self.given_up if r not in replicas)
        damaged = tuple(r for r in self.damaged if r not in replicas)
        witnesses = tuple(r for r in self.witnesses if r not in replicas)
        gone = replace(
            self, dropping=dropping, given_up=given_up, damaged=damaged, witnesses=witnesses
        )
        return gone.hear(*replicas)

    def restore(self, epochs: Mapping[Replica, ReplicaEpochs]) -> ChainedRecord | Unknowable:
        """Return the record after a rollback of the metadata, given all replicas on all nodes that
        are not void. Replicas that may have blocks their chains lost are still compared, and
        kept."""
        newest = newest_projection(self.projection, epochs)
        if isinstance(newest, Unknowable):
            return newest
        kept = tuple(r for r in self.dropping if r in self.witnesses or self.is_unheard(r))
        return replace(self, projection=newest, joining=(), dropping=kept, given_up=(), moving=())

    def abandon(self) -> ChainedRecord:
        """Mark all replicas for removal: the loglet no longer belongs to a log."""
        if not self.nodes_used:
            return self
        empty = self.projection._replace(chains=())
        return replace(
            self,
            projection=empty,
            joining=(),
            dropping=self.replicas,
            given_up=(),
            moving=(),
            unheard=(),
            witnesses=(),
        )


def _projection(fields: Projection) -> Projection:
    projection = Projection(*fields)
    chains = tuple(tuple(Replica(*r) for r in chain) for chain in projection.chains)
    lives = tuple((node, life) for node, life in projection.lives)
    return projection._replace(chains=chains, lives=lives)
