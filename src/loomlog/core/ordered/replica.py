"""A replica of a log stream as a pure state machine.

It makes the decisions; its driver (node/ordered/replica.py) does all I/O. No clock in here.

Entries pass these marks, in LLSN order:

    committed | written (durable, reported) | in flight (handed to the journal) | next
              ^ uncommitted_llsn_begin      ^ uncommitted_llsn_end              ^ next_llsn

Fencing: every seal raises the epoch by one. A replica's uncommitted entries were written in its own
epoch, so the seal of the next epoch keeps those up to the last commit. A replica that missed an
epoch drops all uncommitted entries: other replicas may have reused their LLSNs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from loomlog.errors import Conflict, DataLoss, InvalidArgument, LoomError, Sealed, Unavailable
from loomlog.types import (
    CommitContext,
    Glsn,
    Llsn,
    NodeId,
    Precondition,
    ReplicaState,
    Report,
    StreamId,
)

SEALING, SEALED, RUNNING = ReplicaState.SEALING, ReplicaState.SEALED, ReplicaState.RUNNING

START = SEALING  # of a new replica, and after every restart


class Event(StrEnum):
    """An event that may change the state of a replica."""

    SEALED_WHOLE = "Seal(last committed) when own last committed = that"
    SEALED_BEHIND = "Seal(last committed) when own last committed < that"
    SELF_SEALED = "replication or the disk failed"
    UNSEALED = "Unseal"
    DAMAGED = "committed entries cannot be read, or nothing can be written"


# docs/design/ordered.md shows this table.
TRANSITIONS: dict[tuple[ReplicaState, Event], ReplicaState] = {
    (SEALING, Event.SEALED_WHOLE): SEALED,
    (SEALING, Event.SEALED_BEHIND): SEALING,
    (SEALING, Event.SELF_SEALED): SEALING,
    (SEALED, Event.SEALED_WHOLE): SEALED,
    (SEALED, Event.SELF_SEALED): SEALED,
    (SEALED, Event.UNSEALED): RUNNING,
    (RUNNING, Event.SEALED_WHOLE): SEALED,
    (RUNNING, Event.SEALED_BEHIND): SEALING,
    (RUNNING, Event.SELF_SEALED): SEALING,
    (SEALING, Event.DAMAGED): SEALING,
    (SEALED, Event.DAMAGED): SEALING,
    (RUNNING, Event.DAMAGED): SEALING,
}


def next_state(state: ReplicaState, event: Event) -> ReplicaState | None:
    """Return the state after the event, or None if the table refuses it."""
    return TRANSITIONS.get((state, event))


@dataclass(slots=True)
class ReplicaContext:
    """The state of a replica, recovered from disk at start. `high_watermark` and
    `uncommitted_llsn_begin` change together, when a commit is applied."""

    high_watermark: Glsn = 0
    uncommitted_llsn_begin: Llsn = 1
    uncommitted_llsn_end: Llsn = 1
    local_low_watermark: Glsn = 0  # first committed entry kept; 0: none
    local_high_watermark: Glsn = 0  # last committed entry; 0: none
    stored_high_watermark: Glsn = 0  # of the newest commit context that survives a crash

    @property
    def committed_llsn_end(self) -> Llsn:
        """One past the last committed entry."""
        return self.uncommitted_llsn_begin


class CommitOutcome(Enum):
    APPLIED = auto()
    REPEATED = auto()  # was applied already: ignore it
    MISSED = auto()  # an earlier commit or entry is missing: report, with `resend`


class Replica:
    """One replica of one log stream."""

    def __init__(
        self, stream_id: StreamId, node_id: NodeId, epoch: int, context: ReplicaContext
    ) -> None:
        self.stream_id = stream_id
        self.node_id = node_id
        self.epoch = epoch
        self.context = context
        self.state = START
        self.replicas: tuple[NodeId, ...] = ()
        self.damaged = False  # committed entries cannot be read
        self.next_llsn: Llsn = context.uncommitted_llsn_end
        self.precondition: Precondition | None = None  # of a batch that is not committed yet
        self._missed = False
        self._missed_after: Glsn = -1  # a resend from here was requested already; -1: none was

    @property
    def is_primary(self) -> bool:
        return bool(self.replicas) and self.replicas[0] == self.node_id

    @property
    def last_committed_llsn(self) -> Llsn:
        return self.context.uncommitted_llsn_begin - 1

    # ---- writing

    def reserve(self, count: int, expected: Glsn | None = None) -> Llsn:
        """Assign LLSNs to `count` entries, on the primary. If they have to directly follow the
        position `expected`, no other entries may be in flight: those would be committed first."""
        self.check_running()
        if expected is not None:
            self.check_expected(expected)
            self.precondition = Precondition(self.next_llsn, self.next_llsn + count, expected)
        first = self.next_llsn
        self.next_llsn += count
        return first

    def check_running(self) -> None:
        """Raise unless this replica takes appends."""
        if self.state is not ReplicaState.RUNNING:
            raise Sealed(f"stream {self.stream_id} is {self.state}: append to another stream")
        if not self.is_primary:
            raise Unavailable(
                f"node {self.node_id} is not the primary of stream {self.stream_id}: "
                "refresh the metadata"
            )

    def check_expected(self, expected: Glsn) -> None:
        """Raise Conflict if this replica already knows that an append cannot directly follow this
        position."""
        tail, in_flight = self.context.high_watermark, self.next_llsn - self.last_committed_llsn - 1
        if tail > expected or in_flight:
            behind = f"position {tail}" if tail > expected else "an append that is under way"
            raise Conflict(f"{behind} stands behind position {expected}")

    @property
    def is_precondition_broken(self) -> bool:
        """True if other entries got the positions that a batch here requires. That batch will never
        be committed, and a seal has to drop it."""
        precondition = self.precondition
        return precondition is not None and self.context.high_watermark > precondition.expected

    def accept(self, epoch: int, first_llsn: Llsn, last_llsn: Llsn) -> None:
        """Accept entries from the primary, on a backup. They must arrive in order."""
        self.check_primary(epoch, first_llsn)
        self.next_llsn = last_llsn + 1

    def check_primary(self, epoch: int, next_llsn: Llsn) -> None:
        """Raise unless a primary of this epoch may continue at `next_llsn`."""
        if epoch != self.epoch or self.state is not ReplicaState.RUNNING:
            raise Sealed(
                f"stream {self.stream_id} on node {self.node_id} is {self.state} in epoch "
                f"{self.epoch}: replication of epoch {epoch} refused"
            )
        if next_llsn != self.next_llsn:
            raise InvalidArgument(
                f"stream {self.stream_id} on node {self.node_id} continues at LLSN "
                f"{self.next_llsn}, not {next_llsn}"
            )

    def written(self, last_llsn: Llsn) -> None:
        """Called when everything up to `last_llsn` is as durable as the sync mode requires."""
        end = min(last_llsn + 1, self.next_llsn)  # a seal may have dropped some meanwhile
        self.context.uncommitted_llsn_end = max(self.context.uncommitted_llsn_end, end)

    # ---- committing

    def commit(self, commit: CommitContext) -> CommitOutcome:
        """Apply a commit if it directly follows the last one."""
        context = self.context
        if commit.high_watermark <= context.high_watermark:
            return CommitOutcome.REPEATED
        if (
            commit.epoch > self.epoch
            or commit.prev_high_watermark != context.high_watermark
            or commit.llsn != context.uncommitted_llsn_begin
            or commit.llsn + commit.length > context.uncommitted_llsn_end
        ):
            self._missed |= context.high_watermark != self._missed_after
            self._missed_after = context.high_watermark
            return CommitOutcome.MISSED
        context.high_watermark = commit.high_watermark
        context.uncommitted_llsn_begin += commit.length
        if commit.length:
            context.local_high_watermark = commit.glsn + commit.length - 1
            context.local_low_watermark = context.local_low_watermark or commit.glsn
            if (
                self.precondition is not None
                and self.precondition.llsn < context.committed_llsn_end
            ):
                self.precondition = None
        return CommitOutcome.APPLIED

    def stored(self, high_watermark: Glsn) -> None:
        """Called when the commit context with this high watermark would survive a crash."""
        context = self.context
        context.stored_high_watermark = max(context.stored_high_watermark, high_watermark)

    def report(self) -> Report:
        context = self.context
        resend, self._missed = self._missed, False
        begin = context.uncommitted_llsn_begin
        return Report(
            self.stream_id,
            begin,
            max(0, context.uncommitted_llsn_end - begin),
            context.high_watermark,
            self.epoch,
            self.state,
            context.stored_high_watermark,
            resend,
            self.damaged,
            self.precondition,
        )

    # ---- sealing

    def seal(self, epoch: int, last_committed_llsn: Llsn) -> Llsn:
        """Stop accepting entries. Return the last LLSN to keep; the driver drops those above.

        The seal is repeated until this replica has every commit and is SEALED. A damaged replica
        stays SEALING until it is synchronised."""
        self._check_seal(epoch, last_committed_llsn)
        own = self.last_committed_llsn
        follows = epoch <= self.epoch + 1
        keep = min(last_committed_llsn, self.next_llsn - 1) if follows else own
        whole = own == last_committed_llsn and not self.damaged
        event = Event.SEALED_WHOLE if whole else Event.SEALED_BEHIND
        self._move(event)
        if epoch != self.epoch and self._missed_after >= 0:
            # Commits of the new epoch that arrived before this seal were not applied: request them.
            self._missed, self._missed_after = True, -1
        self.epoch = epoch
        self.precondition = None  # it is committed or dropped
        self.next_llsn = keep + 1
        self.context.uncommitted_llsn_end = min(self.context.uncommitted_llsn_end, keep + 1)
        return keep

    def _check_seal(self, epoch: int, last_committed_llsn: Llsn) -> None:
        where = f"stream {self.stream_id} on node {self.node_id}"
        if epoch < self.epoch or (epoch == self.epoch and self.state is ReplicaState.RUNNING):
            raise InvalidArgument(f"{where}: seal of epoch {epoch} is late, it is in {self.epoch}")
        if last_committed_llsn < self.last_committed_llsn:
            raise DataLoss(
                f"{where} has commits up to LLSN {self.last_committed_llsn}, the metadata "
                f"repository only up to {last_committed_llsn}: its round log lost rounds"
            )

    def self_seal(self) -> None:
        """Stop accepting appends until sealed and unsealed: replication or the disk failed."""
        self._move(Event.SELF_SEALED)

    def unseal(self, epoch: int, replicas: tuple[NodeId, ...]) -> None:
        if epoch != self.epoch:
            raise InvalidArgument(
                f"stream {self.stream_id} on node {self.node_id} was sealed in epoch "
                f"{self.epoch}: unseal of epoch {epoch} refused"
            )
        if self.state is ReplicaState.RUNNING and replicas == self.replicas:
            return
        if self.damaged:
            raise Unavailable(
                f"stream {self.stream_id} on node {self.node_id} is damaged: synchronise it"
            )
        self._move(Event.UNSEALED)
        self.replicas = replicas

    def damage(self) -> None:
        """Return to SEALING until synchronised: committed entries cannot be read, or nothing can be
        written any more."""
        self.damaged = True
        self._move(Event.DAMAGED)

    # ---- being synchronised

    def begin_synchronise(self, source_first_llsn: Llsn) -> Llsn | None:
        """Prepare to receive all entries after the last commit. Return the last LLSN to keep, or
        None if everything must be deleted: this replica is damaged, or the source begins after a
        gap."""
        if self.state is not ReplicaState.SEALING:
            raise InvalidArgument(
                f"stream {self.stream_id} on node {self.node_id} is {self.state}: "
                "only a sealing replica is synchronised"
            )
        if self.damaged or source_first_llsn > self.context.uncommitted_llsn_begin:
            return None
        keep = self.last_committed_llsn
        self.next_llsn = self.context.uncommitted_llsn_end = keep + 1
        return keep

    def ask_again(self) -> None:
        """Request all commits after the last one here again: some may have been lost in transit."""
        self._missed, self._missed_after = True, -1

    def recovered(self, context: ReplicaContext, *, damaged: bool) -> None:
        """Adopt the state of the store, after it was wiped, or recovered after an error."""
        self.context = context
        self.next_llsn = context.uncommitted_llsn_end
        self.damaged = damaged

    def synchronised(self, commit: CommitContext) -> CommitContext:
        """Apply the commit of a range that was copied and stored. Return the commit to store here:
        it is linked to this replica's previous one."""
        context = self.context
        if self.state is not ReplicaState.SEALING or commit.llsn != context.uncommitted_llsn_begin:
            raise InvalidArgument(
                f"stream {self.stream_id} on node {self.node_id} is {self.state} and continues at "
                f"LLSN {context.uncommitted_llsn_begin}, not {commit.llsn}"
            )
        self.next_llsn = commit.llsn + commit.length
        context.uncommitted_llsn_end = self.next_llsn
        linked = commit._replace(prev_high_watermark=context.high_watermark)
        context.high_watermark = commit.high_watermark
        context.uncommitted_llsn_begin = self.next_llsn
        context.local_high_watermark = commit.glsn + commit.length - 1
        context.local_low_watermark = context.local_low_watermark or commit.glsn
        return linked

    def _move(self, event: Event) -> None:
        state = next_state(self.state, event)
        if state is None:
            raise LoomError(
                f"stream {self.stream_id} on node {self.node_id} is {self.state} in epoch "
                f"{self.epoch}: refused: {event}"
            )
        self.state = state
