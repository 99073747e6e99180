"""A replica: LLSNs, reports, commits, seals (docs/design/ordered.md)."""

from __future__ import annotations

import pytest

from loomlog.core.ordered.replica import CommitOutcome, Replica, ReplicaContext
from loomlog.errors import Conflict, DataLoss, InvalidArgument, LoomError, Sealed, Unavailable
from loomlog.types import CommitContext, Precondition, ReplicaState

NODES = (1, 2, 3)


def running(node: int = 1, *, epoch: int = 1) -> Replica:
    replica = Replica(7, node, epoch - 1, ReplicaContext())
    replica.seal(epoch, 0)
    replica.unseal(epoch, NODES)
    return replica


def state(replica: Replica) -> ReplicaState:
    return replica.state


def write(replica: Replica, count: int) -> None:
    replica.reserve(count)
    replica.written(replica.next_llsn - 1)


def commit(
    llsn: int, length: int, high: int, prev: int, *, glsn: int = 0, epoch: int = 1
) -> CommitContext:
    return CommitContext(high, prev, glsn or high - length + 1, llsn, length, epoch)


def test_a_new_replica_reports_what_the_spec_says_of_new_ones() -> None:
    report = Replica(7, 1, 0, ReplicaContext()).report()
    assert (report.high_watermark, report.uncommitted_llsn_offset) == (0, 1)
    assert report.uncommitted_llsn_length == 0
    assert report.state is ReplicaState.SEALING


def test_the_primary_gives_dense_llsns() -> None:
    replica = running()
    assert [replica.reserve(3), replica.reserve(1), replica.reserve(2)] == [1, 4, 5]


def test_only_what_is_durable_is_reported() -> None:
    replica = running()
    replica.reserve(3)
    replica.reserve(2)
    assert replica.report().uncommitted_llsn_length == 0
    replica.written(3)
    assert replica.report().uncommitted_llsn_length == 3
    assert replica.report().written_end == 4


def test_a_backup_takes_entries_only_in_order_and_of_its_epoch() -> None:
    backup = running(node=2)
    backup.accept(1, 1, 3)
    with pytest.raises(InvalidArgument, match="LLSN 4"):
        backup.accept(1, 5, 5)
    with pytest.raises(Sealed):
        backup.accept(0, 4, 4)
    backup.accept(1, 4, 4)


def test_a_backup_gives_no_llsns() -> None:
    with pytest.raises(Unavailable, match="not the primary"):
        running(node=2).reserve(1)


def test_watermark_and_offset_change_together() -> None:
    replica = running()
    write(replica, 5)
    assert replica.commit(commit(1, 3, 10, 0)) is CommitOutcome.APPLIED
    report = replica.report()
    assert (report.high_watermark, report.uncommitted_llsn_offset) == (10, 4)
    assert report.uncommitted_llsn_length == 2  # the rest is reported again


def test_a_repeated_commit_is_ignored() -> None:
    replica = running()
    write(replica, 5)
    first = commit(1, 3, 10, 0)
    replica.commit(first)
    assert replica.commit(first) is CommitOutcome.REPEATED
    assert replica.last_committed_llsn == 3


def test_a_hole_in_the_chain_asks_for_what_was_missed() -> None:
    replica = running()
    write(replica, 5)
    assert replica.commit(commit(4, 2, 20, 10)) is CommitOutcome.MISSED
    assert replica.report().resend
    assert not replica.report().resend
    replica.commit(commit(4, 2, 20, 10))
    assert not replica.report().resend  # asked once, or a damaged replica would ask forever
    assert replica.commit(commit(1, 3, 10, 0)) is CommitOutcome.APPLIED
    assert replica.commit(commit(4, 2, 20, 10)) is CommitOutcome.APPLIED


def test_a_commit_of_what_is_not_stored_is_never_applied() -> None:
    replica = running()
    write(replica, 2)
    assert replica.commit(commit(1, 3, 3, 0)) is CommitOutcome.MISSED
    assert replica.context.high_watermark == 0


def test_an_empty_commit_moves_only_the_watermark() -> None:
    replica = running()
    assert replica.commit(commit(1, 0, 9, 0)) is CommitOutcome.APPLIED
    assert replica.context.high_watermark == 9
    assert replica.context.local_high_watermark == 0


def test_a_commit_of_a_later_epoch_is_not_for_this_replica() -> None:
    replica = running()
    write(replica, 1)
    assert replica.commit(commit(1, 1, 1, 0, epoch=2)) is CommitOutcome.MISSED


def test_seal_drops_what_was_not_committed() -> None:
    replica = running()
    write(replica, 5)
    replica.commit(commit(1, 3, 3, 0))
    assert replica.seal(2, 3) == 3
    assert state(replica) is ReplicaState.SEALED
    assert replica.next_llsn == 4
    assert replica.report().uncommitted_llsn_length == 0
    with pytest.raises(Sealed):
        replica.reserve(1)


def test_seal_keeps_what_is_committed_elsewhere_until_the_commit_comes() -> None:
    replica = running()
    write(replica, 5)
    assert replica.seal(2, 4) == 4
    assert state(replica) is ReplicaState.SEALING
    assert replica.commit(commit(1, 4, 4, 0)) is CommitOutcome.APPLIED
    assert replica.seal(2, 4) == 4
    assert state(replica) is ReplicaState.SEALED


def test_a_replica_that_missed_an_epoch_keeps_nothing_uncommitted() -> None:
    replica = running()
    write(replica, 5)
    replica.commit(commit(1, 2, 2, 0))
    assert replica.seal(3, 4) == 2  # LLSN 3 and 4 were written again without it
    assert state(replica) is ReplicaState.SEALING


def test_a_write_that_ends_after_the_seal_does_not_come_back() -> None:
    replica = running()
    replica.reserve(5)
    replica.written(2)
    replica.commit(commit(1, 2, 2, 0))
    replica.seal(2, 2)
    replica.written(5)
    assert replica.report().uncommitted_llsn_length == 0


def test_a_late_seal_of_the_running_epoch_is_refused() -> None:
    replica = running()
    with pytest.raises(InvalidArgument, match="late"):
        replica.seal(1, 0)
    assert state(replica) is ReplicaState.RUNNING


def test_a_metadata_repository_that_forgot_commits_is_not_followed() -> None:
    replica = running()
    write(replica, 3)
    replica.commit(commit(1, 3, 3, 0))
    with pytest.raises(DataLoss):
        replica.seal(2, 1)
    assert replica.last_committed_llsn == 3


def test_self_seal_and_back() -> None:
    replica = running()
    replica.self_seal()
    assert state(replica) is ReplicaState.SEALING
    with pytest.raises(LoomError, match="refused"):
        replica.unseal(1, NODES)
    replica.seal(2, 0)
    replica.unseal(2, NODES)
    assert state(replica) is ReplicaState.RUNNING


def test_unseal_needs_the_epoch_of_the_seal() -> None:
    replica = Replica(7, 1, 0, ReplicaContext())
    replica.seal(1, 0)
    with pytest.raises(InvalidArgument, match="epoch"):
        replica.unseal(2, NODES)


def test_unseal_may_be_repeated() -> None:
    replica = running()
    replica.unseal(1, NODES)
    assert state(replica) is ReplicaState.RUNNING


def test_a_damaged_replica_does_not_run_before_it_is_synchronised() -> None:
    replica = running()
    write(replica, 3)
    replica.commit(commit(1, 3, 3, 0))
    replica.damage()
    assert replica.report().damaged
    assert state(replica) is ReplicaState.SEALING
    replica.seal(2, 3)  # it has every commit, and yet:
    assert state(replica) is ReplicaState.SEALING
    assert replica.begin_synchronise(1) is None
    replica.recovered(ReplicaContext(), damaged=False)
    replica.synchronised(commit(1, 3, 3, 0))
    replica.seal(2, 3)
    assert state(replica) is ReplicaState.SEALED


def test_a_replica_that_is_found_damaged_when_sealed_is_not_unsealed() -> None:
    replica = running()
    replica.seal(2, 0)
    replica.damage()
    with pytest.raises(Unavailable, match="damaged"):
        replica.unseal(2, NODES)
    replica.seal(3, 0)
    assert state(replica) is ReplicaState.SEALING


def test_a_replica_behind_keeps_its_commits_when_it_is_synchronised() -> None:
    replica = running()
    write(replica, 5)
    replica.commit(commit(1, 3, 3, 0))
    replica.self_seal()
    assert replica.begin_synchronise(2) == 3
    assert replica.report().uncommitted_llsn_length == 0
    linked = replica.synchronised(commit(4, 6, 20, 15))
    assert linked.prev_high_watermark == 3
    assert replica.last_committed_llsn == 9
    with pytest.raises(InvalidArgument):
        replica.synchronised(commit(4, 6, 20, 15))


def test_a_replica_behind_a_hole_begins_anew() -> None:
    replica = running()
    write(replica, 5)
    replica.commit(commit(1, 3, 3, 0))
    with pytest.raises(InvalidArgument, match="only a sealing replica"):
        replica.begin_synchronise(1)
    replica.self_seal()
    assert replica.begin_synchronise(5) is None


def test_a_replica_that_was_read_again_after_an_error_asks_for_lost_commits() -> None:
    replica = running()
    write(replica, 2)
    assert replica.commit(commit(1, 2, 2, 0)) is CommitOutcome.APPLIED
    replica.damage()
    replica.recovered(ReplicaContext(uncommitted_llsn_end=3), damaged=False)
    replica.ask_again()
    report = replica.report()
    assert (report.high_watermark, report.uncommitted_llsn_offset) == (0, 1)
    assert report.resend


# ---- conditional batches


def test_a_condition_is_reported_until_its_batch_is_committed() -> None:
    replica = running()
    assert replica.reserve(2, 5) == 1
    replica.reserve(1)
    replica.written(3)
    assert replica.report().precondition == Precondition(1, 3, 5)
    replica.commit(commit(1, 0, 5, 0))  # of other streams
    assert replica.report().precondition == Precondition(1, 3, 5)
    assert not replica.is_precondition_broken
    replica.commit(commit(1, 3, 8, 5))
    assert replica.report().precondition is None


def test_a_batch_that_must_be_next_waits_for_nothing_else() -> None:
    replica = running()
    replica.reserve(1)
    with pytest.raises(Conflict):
        replica.reserve(1, 5)
    replica.written(1)
    replica.commit(commit(1, 1, 6, 0))
    with pytest.raises(Conflict):
        replica.reserve(1, 5)
    assert replica.reserve(1, 6) == 2


def test_a_condition_breaks_when_others_get_its_positions_and_a_seal_ends_it() -> None:
    replica = running()
    replica.reserve(1, 5)
    replica.written(1)
    replica.commit(commit(1, 0, 6, 0))
    assert replica.is_precondition_broken
    replica.self_seal()
    replica.seal(2, 0)
    assert (replica.report().precondition, replica.next_llsn) == (None, 1)
    assert not replica.is_precondition_broken
