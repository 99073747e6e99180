"""The event log of rebuilding: which event leads where, and what shards count for meanwhile."""

from __future__ import annotations

from random import Random

import pytest

from loomlog.core.copyset.nodeset import Authority
from loomlog.core.copyset.rebuild.events import (
    TRANSITIONS,
    Abort,
    Acknowledged,
    DonorProgress,
    Event,
    IsRebuilt,
    Mode,
    NeedsRebuild,
    RebuildState,
    Refill,
    Rescan,
    Status,
    Undrain,
    Unrecoverable,
    absent,
    apply,
    authority,
    donors,
    from_snapshot,
    has_scanned,
    may_return,
    rebuilt,
    snapshot,
    targets,
)

SHARDS = (1, 2, 3, 4)
RESTORE, RELOCATE = NeedsRebuild(1, Mode.RESTORE), NeedsRebuild(1, Mode.RELOCATE)


def replay(*events: Event) -> RebuildState:
    state = RebuildState()
    for event in events:
        state = apply(state, event)
    return state


PATHS: dict[Status, tuple[Event, ...]] = {
    Status.INTACT: (),
    Status.RESTORING: (RESTORE,),
    Status.LOST: (RESTORE, Unrecoverable(1)),
    Status.REFILLING: (RESTORE, Unrecoverable(1), Refill(1)),
    Status.RELOCATING: (RELOCATE,),
    Status.EMPTY: (RESTORE, IsRebuilt(1, 1)),
    Status.DRAINED: (RELOCATE, IsRebuilt(1, 1)),
}
REACHED: list[tuple[Status, Event, Status]] = [
    (Status.INTACT, RESTORE, Status.RESTORING),
    (Status.INTACT, RELOCATE, Status.RELOCATING),
    (Status.RESTORING, IsRebuilt(1, 1), Status.EMPTY),
    (Status.RESTORING, Abort(1), Status.INTACT),
    (Status.RESTORING, Unrecoverable(1), Status.LOST),
    (Status.LOST, IsRebuilt(1, 2), Status.EMPTY),
    (Status.LOST, Refill(1), Status.REFILLING),
    (Status.LOST, Unrecoverable(1), Status.LOST),
    (Status.REFILLING, IsRebuilt(1, 3), Status.INTACT),
    (Status.REFILLING, RESTORE, Status.RESTORING),
    (Status.REFILLING, Unrecoverable(1), Status.LOST),
    (Status.RESTORING, Refill(1), Status.REFILLING),
    (Status.RESTORING, Rescan(1), Status.RESTORING),
    (Status.LOST, Rescan(1), Status.LOST),
    (Status.REFILLING, Rescan(1), Status.REFILLING),
    (Status.RELOCATING, Rescan(1), Status.RELOCATING),
    (Status.INTACT, Unrecoverable(1), Status.LOST),
    (Status.RELOCATING, Unrecoverable(1), Status.LOST),
    (Status.RELOCATING, IsRebuilt(1, 1), Status.DRAINED),
    (Status.RELOCATING, Undrain(1), Status.INTACT),
    (Status.RELOCATING, RESTORE, Status.RESTORING),
    (Status.EMPTY, Acknowledged(1), Status.INTACT),
    (Status.EMPTY, RESTORE, Status.RESTORING),
    (Status.EMPTY, Unrecoverable(1), Status.LOST),
    (Status.DRAINED, Undrain(1), Status.INTACT),
    (Status.DRAINED, Unrecoverable(1), Status.LOST),
]


@pytest.mark.parametrize(("before", "event", "after"), REACHED)
def test_an_event_that_fits_leads_to_another_state(
    before: Status, event: Event, after: Status
) -> None:
    assert replay(*PATHS[before], event).status(1) is after


@pytest.mark.parametrize("before", Status)
def test_an_event_that_does_not_fit_changes_nothing(before: Status) -> None:
    state = replay(*PATHS[before])
    fitting = [event for status, event, _ in REACHED if status is before]
    assert len(fitting) == len(TRANSITIONS[before])
    events = {event for _, event, _ in REACHED if not isinstance(event, IsRebuilt)}
    for event in [*events.difference(fitting), IsRebuilt(1, 99)]:
        after = apply(state, event)
        assert (after.shards, after.version) == (state.shards, state.version)
        assert after.events == state.events + 1


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (Status.INTACT, Authority.FULL),
        (Status.RESTORING, Authority.UNAVAILABLE),
        (Status.LOST, Authority.UNDERREPLICATED),
        (Status.REFILLING, Authority.UNAVAILABLE),
        (Status.RELOCATING, Authority.FULL),
        (Status.EMPTY, Authority.EMPTY),
        (Status.DRAINED, Authority.EMPTY),
    ],
)
def test_the_authority_of_a_shard_follows_from_its_state(
    status: Status, expected: Authority
) -> None:
    assert authority(replay(*PATHS[status]), 1) is expected


def test_donors_start_again_with_logs_that_they_left_out() -> None:
    before = replay(RESTORE, DonorProgress(1, 2, 1, records=3, size_bytes=30, scans=2))
    after = apply(before, Rescan(1))
    assert has_scanned(before, 1, [2], 2)
    assert not has_scanned(after, 1, [2], 1)
    assert after.version == after.events > before.version


def test_a_drained_shard_gives_but_takes_nothing() -> None:
    state = replay(NeedsRebuild(2, Mode.RESTORE), NeedsRebuild(3, Mode.RELOCATE))
    assert rebuilt(state) == [2, 3]
    assert absent(state) == [2]
    assert may_return(state) == [2]
    assert donors(state, SHARDS) == [1, 3, 4]
    assert targets(state, SHARDS) == [1, 4]
    assert may_return(apply(state, Unrecoverable(2))) == []


def test_a_shard_that_is_refilled_gives_and_takes() -> None:
    state = replay(*PATHS[Status.REFILLING])
    assert rebuilt(state) == absent(state) == [1]
    assert may_return(state) == []
    assert donors(state, SHARDS) == targets(state, SHARDS) == [*SHARDS]


def test_another_shard_restarts_all_donors() -> None:
    state = replay(RESTORE, DonorProgress(1, 2, 1, 10, 100, scans=2))
    assert has_scanned(state, 1, [2], 2)
    state = apply(state, NeedsRebuild(3, Mode.RESTORE))
    assert state.version == 3
    assert not has_scanned(state, 1, [2], 1)
    late = apply(state, DonorProgress(1, 2, 1, 11, 110, scans=2))
    assert not has_scanned(late, 1, [2], 1), "of an older version"
    assert apply(late, IsRebuilt(1, 1)).status(1) is Status.RESTORING, "decided too early"


def test_a_shard_that_is_done_restarts_nobody() -> None:
    state = replay(RESTORE, NeedsRebuild(3, Mode.RESTORE), DonorProgress(3, 2, 2, 5, 50, scans=1))
    state = apply(state, IsRebuilt(1, 2))
    state = apply(state, Acknowledged(1))
    assert state.version == 2
    assert has_scanned(state, 3, [2], 1)


def test_all_donors_have_to_finish_and_a_late_report_takes_nothing_back() -> None:
    state = replay(RESTORE, DonorProgress(1, 2, 1, 9, 90, scans=1))
    state = apply(state, DonorProgress(1, 2, 1, 5, 50))
    assert has_scanned(state, 1, [2], 1)
    assert not has_scanned(state, 1, [2], 2)
    assert not has_scanned(state, 1, [2, 4], 1)
    assert has_scanned(state, 1, [], 2)


def test_a_snapshot_of_plain_values_holds_everything() -> None:
    for seed in range(50):
        random = Random(seed)
        state, copy = RebuildState(), RebuildState()
        for _ in range(60):
            event = any_event(random, state)
            state, copy = apply(state, event), from_snapshot(snapshot(apply(copy, event)))
            assert copy == state


def any_event(random: Random, state: RebuildState) -> Event:
    shard = random.choice(SHARDS)
    version = random.choice((state.version, state.version, 1))
    events: list[Event] = [
        NeedsRebuild(shard, random.choice([*Mode])),
        DonorProgress(shard, random.choice(SHARDS), version, 1, 2, random.randint(0, 2)),
        IsRebuilt(shard, version),
        Abort(shard),
        Unrecoverable(shard),
        Refill(shard),
        Undrain(shard),
        Acknowledged(shard),
    ]
    return random.choice(events)
