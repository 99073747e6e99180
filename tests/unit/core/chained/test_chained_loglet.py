"""The record of a chained loglet: which replicas join, leave, and are removed."""

from __future__ import annotations

import json
from dataclasses import replace

from loomlog.core.chained.chain import Replica, ReplicaEpochs, Unheard, first_projection
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.history import Unknowable
from loomlog.metadata.catalog.records import decode, encode

PROJECTION = first_projection(7, [[1, 2], [2, 3]], birth=1, sequencer=1)
RECORD = ChainedRecord(7, 5, 9, PROJECTION, made=True)
NEWCOMER = Replica(4, 7, 0, 88)
NEXT = PROJECTION._replace(epoch=2)


def test_a_projection_of_another_epoch_changes_nothing() -> None:
    assert RECORD.swap(PROJECTION) is RECORD
    assert RECORD.swap(PROJECTION._replace(epoch=3)) is RECORD


def test_replicas_that_leave_are_removed_later() -> None:
    first, second = PROJECTION.chains
    after = RECORD.swap(NEXT._replace(chains=(first[1:], second)))
    assert after.dropping == after.needless == (first[0],)
    assert first[0] in after.replicas
    assert after.nodes_used == [2, 2, 3]
    assert after.forget(first[0]).needless == ()


def test_a_newcomer_joins() -> None:
    admitted = RECORD.admit(NEWCOMER)
    assert admitted.joining == (NEWCOMER,)
    first, second = PROJECTION.chains
    joined = admitted.swap(NEXT._replace(chains=((*first, NEWCOMER), second)))
    assert (joined.joining, joined.needless) == ((), ())


def test_a_move_is_over_when_its_replica_has_left() -> None:
    first, second = PROJECTION.chains
    moving = RECORD.move(first[0], 4)
    assert moving.move(first[0], 5).moving == ((first[0], 5),)
    assert moving.is_moving(first[0])
    assert not moving.is_moving(first[1])
    assert moving.swap(NEXT).moving == moving.moving
    assert moving.swap(NEXT._replace(chains=(first[1:], second))).moving == ()
    assert moving.abandon().moving == ()


def test_a_newcomer_is_given_up() -> None:
    after = RECORD.admit(NEWCOMER).give_up(NEWCOMER)
    assert (after.joining, after.given_up) == ((), (NEWCOMER,))
    assert after.give_up(NEWCOMER) == after


def test_a_chain_that_begins_again_is_trimmed_again_and_its_newcomers_are_given_up() -> None:
    fresh = Replica(3, 7, 0, 99)
    record = replace(RECORD.admit(NEWCOMER, fresh), trimmed=4)
    lost = NEXT._replace(chains=((fresh,), PROJECTION.chains[1]), lost=(8, 0))
    after = record.swap(lost)
    assert (after.joining, after.given_up, after.trimmed) == ((), (NEWCOMER,), 0)
    assert after.dropping == PROJECTION.chains[0]


def test_a_replica_that_stays_in_force_is_no_witness() -> None:
    first, second = PROJECTION.chains
    noted = RECORD.note_witnesses(*first)
    assert noted.note_witnesses(first[0]) == noted
    after = noted.swap(NEXT._replace(chains=(first[1:], second)))
    assert (after.witnesses, after.dropping) == ((first[0],), (first[0],))


def test_replicas_that_left_serve_nothing_and_those_that_crashed() -> None:
    first, second = PROJECTION.chains
    after = RECORD.swap(NEXT._replace(chains=(first[1:], second), lives=((2, 5), (3, 5))))
    assert after.unserved(1, 5) == [first[0]]
    assert after.unserved(2, 5) == []
    assert after.unserved(2, 6) == [first[1], second[0]]
    assert after.forget(first[0]).unserved(1, 5) == []


def test_newcomers_are_believed_first_and_the_first_to_leave_last() -> None:
    left, given_up = (Replica(1, 7, 0, 1), Replica(2, 7, 0, 1)), Replica(3, 7, 0, 5)
    record = replace(RECORD, joining=(NEWCOMER,), dropping=left, given_up=(given_up,))
    assert record.older(0) == [NEWCOMER, given_up, *reversed(left)]
    assert record.older(1) == []
    elsewhere = Replica(2, 7, 1, 1)
    record = replace(record, dropping=(left[0], elsewhere, left[1]))
    assert record.older(0, 1) == [NEWCOMER, given_up, left[1], elsewhere, left[0]]


def test_a_loglet_that_belongs_to_no_log_removes_all_its_replicas() -> None:
    after = RECORD.admit(NEWCOMER).abandon()
    assert set(after.dropping) == {*PROJECTION.replicas, NEWCOMER}
    assert after.nodes_used == []
    assert after.abandon() is after


def test_a_record_is_restored_from_what_nodes_hold() -> None:
    held = dict.fromkeys(PROJECTION.replicas, ReplicaEpochs(sealed=3, written=3))
    restored = RECORD.admit(NEWCOMER).restore(held)
    assert isinstance(restored, ChainedRecord)
    assert (restored.projection.epoch, restored.joining) == (3, ())
    others = {NEWCOMER: ReplicaEpochs(sealed=3, written=3)}
    assert isinstance(RECORD.restore(others), Unknowable)


def unheard_record() -> ChainedRecord:
    first, second = PROJECTION.chains
    return RECORD.swap(NEXT._replace(chains=(first[:1], second)), (Unheard(first[1], 2, 9),))


def test_who_is_unheard_is_noted_in_the_same_change() -> None:
    replica = PROJECTION.chains[0][1]
    record = unheard_record()
    assert (record.projection.epoch, record.dropping) == (2, (replica,))
    assert record.is_unheard(replica)
    assert record.hear(replica, witnesses=(replica,)).unheard == ()
    assert record.hear(replica, witnesses=(replica,)).witnesses == (replica,)
    assert RECORD.swap(PROJECTION, record.unheard) is RECORD, "it did not come into force"


def test_an_unheard_replica_that_is_gone_is_forgotten() -> None:
    replica = PROJECTION.chains[0][1]
    record = unheard_record()
    assert record.forget(replica).unheard == ()
    assert record.hear(replica, witnesses=(replica,)).forget(replica).witnesses == ()
    assert (record.abandon().unheard, record.abandon().witnesses) == ((), ())


def test_unheard_replicas_are_stored_and_older_records_have_none() -> None:
    record = unheard_record()
    assert decode(ChainedRecord, "chained/7", encode(record)) == record
    stored = json.loads(encode(RECORD))
    del stored["unheard"], stored["witnesses"]
    assert decode(ChainedRecord, "chained/7", json.dumps(stored).encode()) == RECORD


def test_older_records_say_less_of_unheard_replicas_and_projections() -> None:
    """A replica was noted only if one before it had answered."""
    record = unheard_record()
    stored = json.loads(encode(record))
    stored["unheard"] = [fields[:3] for fields in stored["unheard"]]
    stored["projection"].pop()
    assert decode(ChainedRecord, "chained/7", json.dumps(stored).encode()) == record
    [unheard] = record.unheard
    known = replace(record, unheard=(unheard._replace(decided=5),))
    assert decode(ChainedRecord, "chained/7", encode(known)) == known


def test_who_was_unheard_before_a_rollback_is_compared_after_it() -> None:
    record = unheard_record()
    held = dict.fromkeys(record.projection.replicas, ReplicaEpochs(sealed=4, written=4))
    restored = record.restore(held)
    assert isinstance(restored, ChainedRecord)
    assert (restored.unheard, restored.dropping) == (record.unheard, record.dropping)
