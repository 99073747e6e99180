"""What is asked of storage nodes and of the epoch store, and what they answer. Pure words.

They are no tuples: answers of different kinds must never be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from loomlog.core.copyset.epoch_metadata import EpochMetadata
from loomlog.core.copyset.lsn import Epoch, Lsn, Offset
from loomlog.core.copyset.record import Record
from loomlog.types import LogId, NodeId

# ---- to a storage node: from the sequencer


@dataclass(frozen=True, slots=True)
class Store:
    """Stored, durably; Preempted; Refused. A store of epoch e also seals e - 1 softly."""

    log: LogId
    record: Record
    draining: bool = False  # the sequencer is leaving: soft seals do not count


@dataclass(frozen=True, slots=True)
class Amend:
    """Stored: the copy that is here has another copyset now; the record comes without its batch.
    NotHere: there is no copy to be amended."""

    log: LogId
    record: Record


@dataclass(frozen=True, slots=True)
class Release:
    """One-way: everything up to `lsn` may be delivered. Counts only as far as all older epochs are
    clean on the node; if they are not, it purges first."""

    log: LogId
    lsn: Lsn


# ---- from recovery


@dataclass(frozen=True, slots=True)
class Seal:
    """SealedAt, durably: no store of an epoch up to this one is taken any more, but recovery's, and
    of that nothing of older attempts. Preempted if a higher seal is there."""

    log: LogId
    epoch: Epoch  # the last one that is sealed: the recovering sequencer's minus one
    wave: int = 1  # of recovery: the number of its attempt


@dataclass(frozen=True, slots=True)
class Digest:
    """Digested: the records of one epoch above an offset, in order."""

    log: LogId
    epoch: Epoch
    after: Offset
    seal: Epoch  # of the one who asks: Preempted if there is a higher one
    bytes_max: int
    batches: bool = True  # False: without what is in them
    wave: int = 1  # of the one who asks: NotHere if it is not the one of the seal


@dataclass(frozen=True, slots=True)
class Clean:
    """Done, durably: the epoch is recovered, and this is what became of it. Preempted."""

    log: LogId
    seal: Epoch
    end: EpochEnd


@dataclass(frozen=True, slots=True)
class GetEnd:
    """How a node that was away learns what became of an epoch: EpochEnd, or NotHere."""

    log: LogId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Purge:
    """Done, durably: from the node to itself, when others told it what became of an epoch that was
    recovered without it. Its leftovers there are gone."""

    log: LogId
    end: EpochEnd


# ---- from readers, and about the whole log


@dataclass(frozen=True, slots=True)
class Read:
    """Delivered. The records that this node has to send of [first, until], and how far it looked:
    what it does not send below that it does not have, or another one sends.

    Single copy delivery: of a record's copyset, shuffled alike by all, the first node that is not
    in `known_down` sends it; with `everything` all of them do."""

    log: LogId
    first: Lsn
    until: Lsn
    bytes_max: int
    known_down: frozenset[NodeId] = frozenset()
    everything: bool = False
    batches: bool = True


@dataclass(frozen=True, slots=True)
class Trim:
    """Done: everything up to `lsn` is gone."""

    log: LogId
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class Forget:
    """Done: all that is here of the log is gone."""

    log: LogId


NodeRequest: TypeAlias = (
    Store | Amend | Release | Seal | Digest | Clean | GetEnd | Purge | Read | Trim | Forget
)

# ---- answers of a storage node


@dataclass(frozen=True, slots=True)
class Stored:
    pass


@dataclass(frozen=True, slots=True)
class Done:
    pass


@dataclass(frozen=True, slots=True)
class NotHere:
    pass


@dataclass(frozen=True, slots=True)
class Preempted:
    """Sealed up to this epoch by another sequencer."""

    seal: Epoch


class Trouble(StrEnum):
    """Why a node takes no record now; each kind keeps it out of copysets for its own time."""

    NO_SPACE = "no space"
    DISABLED = "disabled"  # its disk failed, or it is being rebuilt or drained
    OVERLOADED = "overloaded"


@dataclass(frozen=True, slots=True)
class Refused:
    trouble: Trouble
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """What recovery made of an epoch. It does not change any more."""

    epoch: Epoch
    lng: Offset  # all up to here was stored on R nodes before recovery began
    last: Offset  # of the epoch's last record; 0: it has none
    seal: Epoch  # of the recovery
    wave: int  # of the recovery: the number of its attempt

    @property
    def precedence(self) -> tuple[int, int]:
        """As of a record that this recovery stored. Of two ends that differ, the higher counts."""
        return self.seal + 1, self.wave


@dataclass(frozen=True, slots=True)
class EpochState:
    """What a node knows of an epoch."""

    epoch: Epoch
    lng: Offset  # the highest it heard of
    last: Offset  # of the last copy that it has; 0: none


@dataclass(frozen=True, slots=True)
class SealedAt:
    """The epochs above its last clean one of which it has something, in order."""

    last_clean: Epoch
    trimmed: Lsn
    epochs: Sequence[EpochState]
    underreplicated: bool = False  # it may miss records that it was given


@dataclass(frozen=True, slots=True)
class Digested:
    records: Sequence[Record]
    more: bool
    trimmed: Lsn = 0  # all up to here is gone, maybe since it was sealed


@dataclass(frozen=True, slots=True)
class Delivered:
    records: Sequence[Record]  # in order
    next_lsn: Lsn  # the node has nothing (more) to send below it
    trimmed: Lsn  # all up to here is gone
    released: Lsn  # nothing above is delivered yet
    underreplicated: bool = False  # it may miss records that it was given
    ends: Sequence[EpochEnd] = ()  # of epochs below next_lsn, as far as it knows them
    damaged: Sequence[tuple[Lsn, Lsn]] = ()  # it has copies there that nobody can read any more


NodeAnswer: TypeAlias = (
    Stored | Done | NotHere | Preempted | Refused | SealedAt | Digested | EpochEnd | Delivered
)


# ---- the epoch store, in the metadata repository


@dataclass(frozen=True, slots=True)
class LogState:
    """All that the epoch store has of a log; every change of it is one compare-and-swap."""

    epoch: Epoch  # the newest one taken
    sequencer: NodeId  # who took it
    history: tuple[EpochMetadata, ...]  # oldest first; each holds until the next one's `since`
    last_clean: Epoch  # all epochs up to here are recovered
    tail: Lsn  # of the last record up to there
    closed: bool = False  # for good: there is no next epoch
    trimmed: Lsn = 0

    def metadata_of(self, epoch: Epoch) -> EpochMetadata:
        return next(metadata for metadata in reversed(self.history) if metadata.since <= epoch)


@dataclass(frozen=True, slots=True)
class Activate:
    """LogState with a new epoch for this node, one above the one that was the newest; or the state
    as it is, if that is not `expected`."""

    log: LogId
    node: NodeId
    expected: Epoch


@dataclass(frozen=True, slots=True)
class SetClean:
    """LogState: all epochs up to `epoch` are recovered, and the last record there is at `tail`.
    Nothing changes if the newest epoch is not `by` any more: somebody else recovers it."""

    log: LogId
    by: Epoch
    epoch: Epoch
    tail: Lsn


@dataclass(frozen=True, slots=True)
class GetState:
    """LogState as it is."""

    log: LogId


EpochStoreRequest: TypeAlias = Activate | SetClean | GetState
