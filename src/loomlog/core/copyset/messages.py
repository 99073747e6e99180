"""Requests to storage nodes and to the epoch store, and the answers. Pure.

The docstring of a request says how it is answered. They are not tuples: answers of different kinds
must never be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from loomlog.core.copyset.nodeset import EpochMetadata, Trouble
from loomlog.core.copyset.presumption import Presume, Presumption
from loomlog.core.copyset.record import OFFSET_MAX, Epoch, Lsn, Offset, Record, make
from loomlog.types import LogId, NodeId, ShardId

# ---- to a storage node: from the sequencer


@dataclass(frozen=True, slots=True)
class Store:
    """Stored durably; Preempted; Occupied; or Refused. It also seals the previous epoch softly."""

    log: LogId
    record: Record
    draining: bool = False  # the sequencer is leaving: soft seals do not count


@dataclass(frozen=True, slots=True)
class Amend:
    """Stored: the copy here has another copyset now; the record comes without its batch. NotHere:
    there is no copy to amend."""

    log: LogId
    record: Record


@dataclass(frozen=True, slots=True)
class Release:
    """One-way: everything up to `lsn` may be delivered. It counts only as far as all older epochs
    are clean on the node, which otherwise purges first."""

    log: LogId
    lsn: Lsn


# ---- from recovery


@dataclass(frozen=True, slots=True)
class Seal:
    """SealedAt, durably: stores of epochs up to this one are refused, except those of recovery, and
    of that except those of older attempts. Preempted if there is a higher seal."""

    log: LogId
    epoch: Epoch  # the last one that is sealed: the recovering sequencer's minus one
    wave: int = 1  # of recovery: the number of its attempt
    recovered: Epoch = 0  # its state is in the answer, also if it is clean there


@dataclass(frozen=True, slots=True)
class Digest:
    """Digested: the records of one epoch above an offset, in order."""

    log: LogId
    epoch: Epoch
    after: Offset
    seal: Epoch  # of the sender: Preempted if there is a higher one
    bytes_max: int
    batches: bool = True  # False: without what is in them
    wave: int = 1  # of the sender: NotHere if it is not the one of the seal


@dataclass(frozen=True, slots=True)
class Clean:
    """Done, durably: the epoch is recovered, with this result. Preempted."""

    log: LogId
    seal: Epoch
    end: EpochEnd


@dataclass(frozen=True, slots=True)
class Purge:
    """Done, durably: what is left here of an epoch that was recovered without this node is deleted.
    A node sends it to itself when it has the result from the epoch store."""

    log: LogId
    end: EpochEnd


# ---- from donors, when a shard is rebuilt (rebuild/)


@dataclass(frozen=True, slots=True)
class Restore:
    """Stored, durably: a copy of a record, of an epoch with this end. Occupied: another record is
    there. NotHere: the node has to purge the epoch first. Superseded."""

    log: LogId
    record: Record
    end: EpochEnd
    version: int


@dataclass(frozen=True, slots=True)
class Mend:
    """Stored, durably: the copy here, which was damaged, has its batch again. NotHere: there is no
    copy of this record, or this is not its batch. A shard asks only itself."""

    log: LogId
    record: Record


@dataclass(frozen=True, slots=True)
class Reassign:
    """Stored, durably: the copy here has another copyset now, unless it is newer; the record comes
    without its batch. NotHere: there is no copy. Superseded."""

    log: LogId
    record: Record
    version: int


# ---- from readers, and about the whole log


@dataclass(frozen=True, slots=True)
class Read:
    """Delivered: the records of [first, until] that this node has to send, and how far it looked.
    What it does not send below that it does not have, or another node sends. Single copy delivery:
    the first node of the shuffled copyset that is not in `known_down` sends the record; with
    `everything` all of them do."""

    log: LogId
    first: Lsn
    until: Lsn
    bytes_max: int
    known_down: frozenset[ShardId] = frozenset()
    everything: bool = False
    batches: bool = True


@dataclass(frozen=True, slots=True)
class Trim:
    """Done: everything up to `lsn` is deleted."""

    log: LogId
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class Forget:
    """Done: everything here of the log is deleted."""

    log: LogId


@dataclass(frozen=True, slots=True)
class Begin:
    """Done: all data of the log here belongs to this creation. A node sends it to itself."""

    log: LogId
    stamp: int


@dataclass(frozen=True, slots=True)
class FindBatch:
    """FoundBatch: where a producer's batch was to be stored, as far as the node has seen."""

    log: LogId
    producer_id: int
    sequence: int


NodeRequest: TypeAlias = (
    Begin
    | Store
    | Amend
    | Release
    | Seal
    | Digest
    | Clean
    | Purge
    | Restore
    | Reassign
    | Mend
    | Read
    | Trim
    | Forget
    | FindBatch
)

# ---- answers of a storage node


@dataclass(frozen=True, slots=True)
class Stored:
    """The record is stored here, durably."""


@dataclass(frozen=True, slots=True)
class Done:
    """The request was carried out."""


@dataclass(frozen=True, slots=True)
class NotHere:
    """The node does not have what the request is about."""


@dataclass(frozen=True, slots=True)
class Preempted:
    """Another sequencer has sealed up to this epoch."""

    seal: Epoch


@dataclass(frozen=True, slots=True)
class Occupied:
    """There is another record of the same epoch: the epoch was taken twice."""

    lsn: Lsn


@dataclass(frozen=True, slots=True)
class Superseded:
    """The shards that are rebuilt have changed: start again with at least this version."""

    version: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The node did nothing, and takes no such requests for now."""

    trouble: Trouble
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The result of the recovery of an epoch. Whatever is missing up to `last` is lost. It is not
    `exact` if too few nodes were left to tell where the epoch ended: then more may have been
    acknowledged behind `last`, and is lost. A lost record is read if a copy of it comes back.
    It never changes, but for losses of which an `absent` node or a writer knows (evidence.py)."""

    epoch: Epoch
    lng: Offset  # all up to here was on R nodes before recovery began
    last: Offset  # of the last record that is known of; 0: none is
    seal: Epoch  # of the recovery
    wave: int  # of the recovery: the number of its attempt
    exact: bool = True
    found: tuple[tuple[Offset, Offset], ...] = ()  # ranges above `lng` without a hole or bridge
    crashed: tuple[ShardId, ...] = ()  # may have forgotten records
    absent: tuple[ShardId, ...] = ()  # were not asked, and may have what all others have forgotten
    lost: tuple[tuple[Offset, Offset], ...] = ()  # ranges with marks that were acknowledged

    @property
    def precedence(self) -> tuple[int, int]:
        """The precedence of this recovery's records. Of two different ends the higher counts."""
        return self.seal + 1, self.wave

    @property
    def tail(self) -> Lsn:
        """The last position that may be acknowledged: all, if the end is inexact; 0: none."""
        known = make(self.epoch, self.last) if self.last else 0
        return known if self.exact else self.whole

    @property
    def whole(self) -> Lsn:
        """The last position of the epoch."""
        return make(self.epoch, OFFSET_MAX)


@dataclass(frozen=True, slots=True)
class EpochState:
    """The state of an epoch on a node."""

    epoch: Epoch
    lng: Offset  # the highest it knows
    last: Offset  # of the last copy that it has; 0: none


@dataclass(frozen=True, slots=True)
class SealedAt:
    """The epochs above the last clean one that the node has something of, in order."""

    last_clean: Epoch
    trimmed: Lsn
    epochs: Sequence[EpochState]
    lost_through: Epoch = 0  # of epochs up to this one it may have lost records
    newer: Lsn = 0  # the last copy of an epoch above the one that is sealed; 0: none
    life: int = 0  # of the node


@dataclass(frozen=True, slots=True)
class Digested:
    """Records of an epoch, in order; `more`: there are others behind them."""

    records: Sequence[Record]
    more: bool
    trimmed: Lsn = 0  # all up to here is gone, maybe since it was sealed


@dataclass(frozen=True, slots=True)
class Delivered:
    """Records for a reader, and how far the node has looked."""

    records: Sequence[Record]  # in order
    next_lsn: Lsn  # the node has nothing (more) to send below it
    trimmed: Lsn  # all up to here is gone
    released: Lsn  # nothing above is delivered yet
    lost_through: Epoch = 0  # of epochs up to this one it may have lost records
    damaged: Sequence[tuple[Lsn, Lsn]] = ()  # ranges where its copies cannot be read any more
    life: int = 0  # of the node; 0: it does not say


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """The places where a batch was to be stored; `certain`: there are no others."""

    lsns: tuple[Lsn, ...]
    certain: bool


NodeAnswer: TypeAlias = (
    Stored
    | Done
    | NotHere
    | Preempted
    | Occupied
    | Superseded
    | Refused
    | SealedAt
    | Digested
    | Delivered
    | FoundBatch
)


# ---- the epoch store, in the metadata repository


class Acknowledged(NamedTuple):
    """The last LSN that an epoch's sequencer acknowledged; `final`: no more will be."""

    epoch: Epoch
    last: Offset
    final: bool


class Taker(NamedTuple):
    """A node that took an epoch."""

    epoch: Epoch
    node: NodeId


class Life(NamedTuple):
    """The life of a node when an epoch began, or when its copies were checked after that. In a
    later one it may have forgotten records."""

    epoch: Epoch
    node: NodeId
    number: int


@dataclass(frozen=True, slots=True)
class LogState:
    """All that the epoch store has of a log. Every change is one compare-and-swap."""

    epoch: Epoch  # the newest one taken
    sequencer: NodeId  # took the epoch
    history: tuple[EpochMetadata, ...]  # oldest first; each holds until the next one's `since`
    last_clean: Epoch  # all epochs up to here are recovered
    tail: Lsn  # nothing was acknowledged behind it, up to there
    closed: bool = False  # for good: there is no next epoch
    trimmed: Lsn = 0
    ends: tuple[EpochEnd, ...] = ()  # of recovered epochs; one without records has none
    told: tuple[Acknowledged, ...] = ()  # of epochs that are not recovered yet
    stamp: int = 0  # of the creation of the log: what nodes keep of it names it, too
    least: int = 0  # copies that are enough while nodes are away; 0: as many as wanted
    takers: tuple[Taker, ...] = ()  # of epochs before the newest that are not recovered
    lives: tuple[Life, ...] = ()  # of epochs that are not recovered
    # Of recovered epochs, in order of epochs: each holds until the next one of its node.
    witnesses: tuple[Life, ...] = ()
    presumed: tuple[Presumption, ...] = ()  # of epochs that are not recovered
    chosen: NodeId = 0  # an operator wants it to be the sequencer; 0: any node may be

    def sequencers_since(self, epoch: Epoch) -> set[NodeId]:
        """Return the nodes that took an epoch or later ones, of those that are not recovered."""
        takers = (*self.takers, Taker(self.epoch, self.sequencer))
        return {taker.node for taker in takers if taker.epoch >= epoch and taker.node}

    def end_of(self, epoch: Epoch) -> EpochEnd | None:
        """Return the end of an epoch; None if it is not recovered yet."""
        if epoch > self.last_clean and not (self.history and epoch < self.history[0].since):
            return None
        empty = EpochEnd(epoch, lng=0, last=0, seal=epoch, wave=0)
        return next((end for end in self.ends if end.epoch == epoch), empty)

    def acknowledged_in(self, epoch: Epoch) -> Acknowledged:
        """Return how far an epoch was acknowledged, as far as its sequencer reported it."""
        nothing = Acknowledged(epoch, last=0, final=False)
        return next((each for each in self.told if each.epoch == epoch), nothing)

    def lives_in(self, epoch: Epoch) -> dict[NodeId, int]:
        """Return the lives that nodes had when an epoch began."""
        return {life.node: life.number for life in self.lives if life.epoch == epoch}

    def presumed_in(self, epoch: Epoch) -> Presumption | None:
        """Return what earlier attempts to recover an epoch presumed; None: they knew everything."""
        return next((each for each in self.presumed if each.epoch == epoch), None)

    def witnesses_of(self, epoch: Epoch) -> dict[NodeId, int]:
        """Return the lives in which nodes have all that they were given of a recovered epoch."""
        return {life.node: life.number for life in self.witnesses if life.epoch <= epoch}

    @property
    def all_shards(self) -> list[ShardId]:
        """The shards of all nodesets that the log has, in order."""
        return sorted({shard for metadata in self.history for shard in metadata.shards})

    def metadata_of(self, epoch: Epoch) -> EpochMetadata:
        return next(metadata for metadata in reversed(self.history) if metadata.since <= epoch)


@dataclass(frozen=True, slots=True)
class Activate:
    """LogState with the next epoch for this node; unchanged if the newest is not `expected`."""

    log: LogId
    node: NodeId
    expected: Epoch


@dataclass(frozen=True, slots=True)
class SetClean:
    """LogState: all epochs up to that of `end` are recovered. Unchanged if the newest epoch is no
    longer `by`: then another sequencer recovers it."""

    log: LogId
    by: Epoch
    end: EpochEnd


@dataclass(frozen=True, slots=True)
class UseShort:
    """LogState: the recovery of an epoch stores all that it settles on these shards, fewer
    than wanted. Unchanged if the newest epoch is no longer `by`."""

    log: LogId
    by: Epoch
    epoch: Epoch
    shards: tuple[ShardId, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """LogState: the sequencer of an epoch has ended and acknowledged nothing behind `last`."""

    log: LogId
    epoch: Epoch
    last: Offset


@dataclass(frozen=True, slots=True)
class Miss:
    """LogState: all up to `lng` of a recovered epoch was acknowledged, as a node knows that was
    absent from its recovery."""

    log: LogId
    epoch: Epoch
    lng: Offset


@dataclass(frozen=True, slots=True)
class GetState:
    """LogState, unchanged."""

    log: LogId


@dataclass(frozen=True, slots=True)
class Contradict:
    """Report that `shard` has a record at `lsn` which the sequencer of `epoch` did not store: the
    epoch store went back in time. The answer is always an error."""

    log: LogId
    epoch: Epoch
    shard: ShardId
    lsn: Lsn


EpochStoreRequest: TypeAlias = (
    Activate | SetClean | UseShort | Presume | Finish | Miss | GetState | Contradict
)
