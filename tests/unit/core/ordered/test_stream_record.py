"""The record of a stream, as repair, operators and a rollback change it."""

from __future__ import annotations

from dataclasses import replace

from loomlog.core.history import Unknowable
from loomlog.core.ordered.stream_record import StreamRecord
from loomlog.types import ReplicaState, Report

STREAM = StreamRecord(1, 1, 1, (1, 2), 3, sealed=False, stamp=77, births=((1, 10), (2, 20)))


def report(epoch: int) -> Report:
    return Report(1, 5, 0, 9, epoch, ReplicaState.RUNNING, 9, resend=False)


def test_a_newcomer_has_a_birth_of_its_own_and_is_dropped_when_it_is_given_up() -> None:
    joining = STREAM.join(2, birth=99)
    assert (joining.joining, joining.birth_on(2)) == (2, 99)
    dropped = STREAM.join(3, birth=30).drop_joining(3)
    assert (dropped.joining, dropped.dropping, dropped.birth_on(3)) == (None, (3,), 30)
    assert dropped.drop_joining(3).dropping == (3,)


def test_a_replica_that_is_replaced_is_remembered_until_it_is_gone() -> None:
    moved = STREAM.join(3, birth=30).with_replicas((1, 3), (), {3: 30})
    assert (moved.replicas, moved.joining, moved.left) == ((1, 3), None, (2,))
    assert moved.holders == (1, 3, 2)
    assert moved.without_holders({2}).holders == (1, 3)


def test_a_wish_for_a_primary_is_over_when_it_is_fulfilled_or_cannot_be() -> None:
    wished = replace(STREAM, wanted_primary=2)
    assert wished.with_replicas((2, 1), (), {}).wanted_primary is None
    assert wished.with_replicas((1, 3), (), {}).wanted_primary is None
    assert wished.with_replicas((1, 2, 3), (), {}).wanted_primary == 2


def test_nodes_that_are_given_up_leave_and_the_stream_is_sealed() -> None:
    assert STREAM.give_up({7}) is STREAM
    without = STREAM.give_up({2, 7})
    assert (without.replicas, without.left) == ((1,), (2,))
    assert (without.epoch, without.sealed) == (4, True)


def test_where_a_stream_ends_is_not_known_after_nodes_or_metadata_were_lost() -> None:
    ended = replace(STREAM, sealed=True, sealed_at=9, removing=True)
    assert ended.give_up({2}).sealed_at == 0
    held = ended.as_held({1: report(4), 2: report(4)}, {})
    assert isinstance(held, StreamRecord)
    assert (held.sealed_at, held.removing) == (0, True)
    assert replace(ended, epoch=5).sealed_unless_same(ended).sealed_at == 0


def test_after_a_rollback_the_newest_replicas_count_and_nothing_is_dropped() -> None:
    old = STREAM.join(4, birth=40).drop_joining(4)
    found = old.as_held({1: report(6), 2: report(3), 3: report(6)}, {1: 10, 2: 20, 3: 30})
    assert isinstance(found, StreamRecord)
    assert (found.replicas, found.epoch, found.dropping) == ((1, 3), 6, ())
    assert found.left == (4, 2)
    assert dict(found.births) == {1: 10, 2: 20, 3: 30, 4: 40}
    assert found.sealed_unless_same(old).epoch == 7
    same = STREAM.as_held({1: report(3), 2: report(3)}, {})
    assert isinstance(same, StreamRecord)
    assert same.sealed_unless_same(STREAM) == same


def test_a_stream_that_no_node_reports_stays_as_it_is_or_is_not_known() -> None:
    assert STREAM.as_held({}, {}) == STREAM
    added_since = StreamRecord(2, 1, 1, (), 0, sealed=True)
    assert added_since.as_held({}, {}) == Unknowable("no node has anything of it")
