"""The state of a work queue, change by change."""

from __future__ import annotations

import pytest

from loomlog.core.groups.state import member_id
from loomlog.core.queues.state import FREE, JobState, QueueState
from loomlog.errors import Corrupt, Fenced, VersionMismatch


def queue(*members: str) -> QueueState:
    state = QueueState(7, 0)
    for member in members:
        state = state.join(member, f"program {member}")
    return state


def test_a_member_takes_only_what_others_have_left() -> None:
    state = queue("0.1", "1.1").take_new("0.1", [1, 2], 2).take_new("1.1", [2, 3], 3)
    assert state.owned_by("0.1") == {1, 2}
    assert state.owned_by("1.1") == {3}
    assert state.position == 3
    assert not state.free()


def test_jobs_that_are_given_back_are_free_and_their_attempts_are_counted() -> None:
    state = queue("0.1", "1.1").take_new("0.1", [1, 2], 2).give_back("0.1", [2, 1, 9])
    assert state.free() == [1, 2]
    state = state.take_again("1.1", 2)
    assert state.jobs == {1: JobState(FREE, 1), 2: JobState("1.1", 2)}
    assert state.take_again("0.1", 2) is state, "it is taken"
    assert state.take_again("0.1", 9) is state, "there is no such job"


def test_only_its_owner_finishes_a_job_or_gives_it_back() -> None:
    state = queue("0.1", "1.1").take_new("0.1", [1], 1)
    assert state.finish("1.1", [1]).jobs == state.jobs
    assert state.give_back("1.1", [1]).jobs == state.jobs
    assert not state.finish("0.1", [1]).jobs


def test_the_jobs_of_a_member_that_is_gone_are_free() -> None:
    state = queue("0.1", "1.1").take_new("0.1", [1], 1).take_new("1.1", [2], 2).remove(["0.1"])
    assert (state.free(), state.owned_by("1.1")) == ([1], {2})
    assert list(state.members) == ["1.1"]
    with pytest.raises(Fenced, match="join it again"):
        state.finish("0.1", [1])
    with pytest.raises(Fenced):
        state.take_new("0.1", [3], 3)


def test_who_gets_the_lease_of_a_member_replaces_it() -> None:
    state = queue(member_id(0, 1)).take_new(member_id(0, 1), [1], 1)
    state = state.join(member_id(0, 2), "another")
    assert list(state.members) == [member_id(0, 2)]
    assert state.free() == [1]


def test_the_position_never_goes_back() -> None:
    state = queue("0.1").skip(5)
    assert state.skip(3).position == 5
    assert state.take_new("0.1", [4], 4) == state, "others have passed it"


def test_it_is_stored_as_text() -> None:
    state = queue("0.1").take_new("0.1", [1, 1 << 40], 1 << 40).give_back("0.1", [1])
    assert QueueState.decode(state.encode()) == state
    for value in (b"{}", b"\xff", b"[]", b'{"version":1,"log":7,"position":0}'):
        with pytest.raises(Corrupt, match="another program"):
            QueueState.decode(value)
    with pytest.raises(VersionMismatch, match="update it"):
        QueueState.decode(state.encode().replace(b'"version":1', b'"version":2'))
