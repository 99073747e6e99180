"""The life of a work unit, as a pure value: every position is committed once, in order, whatever
happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loomlog.core.leases import EPOCHS_SKIPPED
from loomlog.errors import Conflict, Corrupt, Fenced, InvalidArgument, VersionMismatch
from loomlog.spark.pipelines import store, units
from loomlog.spark.pipelines.units import VERSIONS_SKIPPED, Progress, UnitRange, UnitState

LOG = "events"


def fresh(**fields: Any) -> Progress:
    return Progress(**{"definition": {}, "positions": {LOG: 0}} | fields)


def begun(progress: Progress, tail: int = 10, records_max: int = 4) -> Progress:
    found = units.next_range(progress, LOG, tail, records_max)
    assert found is not None
    return units.created(progress, {LOG: found})


def number_of(progress: Progress) -> int:
    assert progress.unit is not None
    return progress.unit.number


def test_a_unit_is_created_runs_is_decided_and_committed() -> None:
    progress = begun(fresh())
    number = number_of(progress)
    progress = units.running(progress, number)
    progress = units.decided(progress, number, {"output": "files"})
    assert progress.positions == {LOG: 0}  # nothing counts before the commit
    progress = units.committed(progress, number, now=5.0, dead_letters=1)
    assert (progress.positions, progress.unit, progress.committed_at) == ({LOG: 4}, None, 5.0)
    assert (progress.counters.records, progress.counters.dead_letters) == (4, 1)
    assert number_of(begun(progress)) == number + 1


def test_what_is_decided_is_never_computed_again() -> None:
    progress = units.running(begun(fresh()), 1)
    progress = units.decided(progress, 1, {"output": "a"})
    attempts: list[Callable[[], Progress]] = [
        lambda: units.running(progress, 1),
        lambda: units.decided(progress, 1, {"output": "b"}),
        lambda: units.failed(progress, 1, "late", counts=True),
        lambda: units.created(progress, {LOG: UnitRange(1, 4)}),
    ]
    for again in attempts:
        with pytest.raises(Conflict):
            again()


def test_what_was_lost_before_anybody_saw_it_is_computed_again() -> None:
    decided = units.decided(units.running(begun(fresh()), 1), 1, {"output": 1})
    again = units.undecided(decided, 1)
    assert again.unit is not None
    assert (again.unit.state, again.unit.staged) == (UnitState.CREATED, None)
    with pytest.raises(Conflict):
        units.undecided(again, 1)


def test_a_unit_begins_where_the_last_one_ended() -> None:
    for wrong in (UnitRange(2, 4), UnitRange(0, 4)):
        with pytest.raises(Conflict, match="committed up to 0"):
            units.created(fresh(), {LOG: wrong})
    with pytest.raises(InvalidArgument, match="does not read"):
        units.created(fresh(), {"other": UnitRange(1, 1)})


def test_failures_that_count_lead_to_halves_and_to_a_record_that_is_alone() -> None:
    progress = begun(fresh())
    for expected in (UnitRange(1, 2), UnitRange(1, 1)):
        progress = units.failed(units.running(progress, 1), 1, "bad", counts=True)
        assert progress.unit is not None
        assert progress.unit.failures == 1
        progress = units.halved(progress, 1)
        assert progress.unit is not None
        assert (progress.unit.ranges[LOG], progress.unit.failures) == (expected, 0)
    with pytest.raises(Conflict, match="no halves"):
        units.halved(progress, 1)
    assert progress.pieces == (UnitRange(1, 1), UnitRange(2, 2), UnitRange(3, 4))


def test_a_failure_that_is_not_the_records_fault_does_not_count() -> None:
    progress = units.failed(units.running(begun(fresh()), 1), 1, "no disk", counts=False)
    assert progress.unit is not None
    assert (progress.unit.failures, progress.error) == (0, "no disk")
    assert progress.counters.failures == 1


def test_a_runner_that_was_replaced_changes_nothing() -> None:
    progress = units.taken_over(fresh(), 7)
    with pytest.raises(Fenced):
        units.taken_over(progress, 6)


def test_a_restored_unit_may_be_dropped_although_it_was_decided() -> None:
    progress = units.running(begun(units.taken_over(fresh(), 7)), 1)
    progress = units.decided(progress, 1, {})
    assert not units.is_restored(progress, 8)
    assert units.is_restored(progress, EPOCHS_SKIPPED + 1)
    assert not units.is_restored(fresh(), EPOCHS_SKIPPED + 1)  # no runner has changed it
    for epoch in (7, 8):
        with pytest.raises(Conflict, match="just being published"):
            units.reset(progress, {LOG: 4}, same_output=True, life="new", epoch=epoch)
    after = units.reset(progress, {LOG: 4}, same_output=True, life="new", epoch=EPOCHS_SKIPPED + 1)
    assert after.unit is None
    assert not units.is_restored(after, EPOCHS_SKIPPED + 2)


def test_micro_batches_are_committed_once_also_those_without_records() -> None:
    progress = units.created(fresh(), {LOG: UnitRange(1, 3)}, batch=0)
    progress = units.decided(units.running(progress, 1), 1, {})
    progress = units.committed(progress, 1, now=1.0)
    progress = units.created(progress, {LOG: UnitRange(4, 3)}, batch=1)
    assert progress.unit is not None
    assert progress.unit.records == 0
    progress = units.committed(units.decided(units.running(progress, 2), 2, {}), 2, now=2.0)
    with pytest.raises(Conflict, match="micro-batch 1 is committed already"):
        units.created(progress, {LOG: UnitRange(4, 3)}, batch=1)


def test_a_reset_forgets_the_unit_and_writes_a_new_version() -> None:
    progress = units.running(begun(fresh()), 1)
    after = units.reset(progress, {LOG: 0}, same_output=False, life="new")
    assert after.life == "new"  # an output that is ahead ignores the numbers of the old one
    assert (after.unit, after.version, after.generation, after.next_unit) == (None, 2, 2, 2)
    with pytest.raises(Conflict, match="reset"):
        units.decided(after, 1, {})
    committing = units.decided(progress, 1, {})
    with pytest.raises(Conflict, match="just being published"):
        units.reset(committing, {LOG: 0}, same_output=True, life="new")
    with pytest.raises(InvalidArgument, match="does not read other"):
        units.reset(progress, {"other": 0}, same_output=True, life="new")


def test_after_a_reset_it_may_be_defined_anew_and_is_known_as_it_was_until_then() -> None:
    was, becomes = ({"sources": {"rows": LOG}, "output": output} for output in ("a", "b"))
    progress = units.defined(fresh(), was)
    with pytest.raises(InvalidArgument, match="output was 'a' and is now 'b'"):
        units.defined(progress, becomes)
    progress = units.reset(progress, {LOG: 0}, same_output=False, life="new")
    assert progress.definition == was
    progress = units.defined(progress, becomes)
    with pytest.raises(InvalidArgument, match="output was 'b' and is now 'a'"):
        units.defined(progress, was)


def test_work_ends_at_its_end() -> None:
    progress = fresh(ends={LOG: 3})
    assert units.next_range(progress, LOG, tail=10, records_max=5) == UnitRange(1, 3)
    assert not progress.at_end
    assert replace(progress, positions={LOG: 3}).at_end
    assert not fresh().at_end


def test_the_register_is_read_as_it_was_written_and_nothing_else() -> None:
    progress = units.halved(units.failed(units.running(begun(fresh()), 1), 1, "é", counts=True), 1)
    assert store.decode(store.encode(progress)) == progress
    with pytest.raises(VersionMismatch):
        store.decode(store.encode(progress).replace(b'"format":1', b'"format":9'))
    for other in (b"", b"{}", b"[]", b"\xff", b'{"format":1}'):
        with pytest.raises(Corrupt):
            store.decode(other)


def test_the_register_does_not_grow_with_the_log() -> None:
    late = Progress({}, {"log": 1 << 60}, next_unit=1 << 60, counters=units.Counters(1 << 60))
    assert len(store.encode(late)) < 1000


@given(
    tail=st.integers(1, 60),
    records_max=st.integers(1, 20),
    bad=st.sets(st.integers(1, 60), max_size=5),
    mishaps=st.lists(st.booleans(), max_size=40),
)
@settings(max_examples=200)
def test_every_position_is_committed_once_in_order_and_bad_records_alone(
    tail: int, records_max: int, bad: set[int], mishaps: list[bool]
) -> None:
    """A runner that fails now and then through no fault of the records, and meets bad ones."""
    progress = fresh()
    done: list[int] = []
    alone: list[int] = []
    while True:
        progress = store.decode(store.encode(progress))  # another runner may go on with it
        unit = progress.unit
        if unit is None:
            found = units.next_range(progress, LOG, tail, records_max)
            if found is None:
                break
            progress = units.created(progress, {LOG: found})
        elif unit.state is UnitState.COMMITTING:
            assert unit.staged is not None
            done += unit.staged["output"]
            alone += unit.staged["dead"]
            progress = units.committed(progress, unit.number, now=0.0)
        elif unit.state is UnitState.CREATED:
            progress = units.running(progress, unit.number)
        else:
            if mishaps and mishaps.pop():
                progress = units.failed(progress, unit.number, "no disk", counts=False)
                continue
            positions = set(range(unit.ranges[LOG].first, unit.ranges[LOG].last + 1))
            if not positions & bad:
                staged = {"output": sorted(positions), "dead": []}
                progress = units.decided(progress, unit.number, staged)
            elif len(positions) == 1:
                progress = units.decided(
                    progress, unit.number, {"output": [], "dead": sorted(positions)}
                )
            else:
                progress = units.failed(progress, unit.number, "bad", counts=True)
                progress = units.halved(progress, unit.number)
        assert len(progress.pieces) <= records_max.bit_length() + 1  # the register stays small
    assert done == [n for n in range(1, tail + 1) if n not in bad]
    assert alone == sorted(n for n in bad if n <= tail)
    assert progress.positions == {LOG: tail}
    assert progress.counters.records == tail


def test_versions_that_restored_metadata_may_have_forgotten_are_not_assigned_again() -> None:
    later = EPOCHS_SKIPPED + 1
    begun_before = units.taken_over(fresh(), 7)
    for known in (begun_before, fresh()):  # the copy may be older than the pipeline
        after = units.reset(known, {LOG: 0}, same_output=False, life="new", epoch=later)
        assert after.version == 2 + VERSIONS_SKIPPED
        assert units.new_version(known, later).versions == 2 + VERSIONS_SKIPPED
        continued = units.taken_over(known, later)
        assert units.new_version(continued, later).versions == 2 + VERSIONS_SKIPPED
        again = units.taken_over(after, later + 1)
        assert units.new_version(again, later + 1).versions == 3 + VERSIONS_SKIPPED
    assert units.new_version(begun_before, 8).versions == 2


def test_progress_that_no_runner_began_may_be_forgotten_progress() -> None:
    later = EPOCHS_SKIPPED + 1
    assert units.is_unknown(fresh(), later)
    assert not units.is_unknown(fresh(), 1)
    assert not units.is_unknown(units.taken_over(fresh(), later), later + 1)
    reset = units.reset(fresh(), {LOG: 0}, same_output=True, life="new", epoch=later)
    assert not units.is_unknown(reset, later)
