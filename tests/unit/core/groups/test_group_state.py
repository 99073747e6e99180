"""The state of a consumer group, change by change."""

from __future__ import annotations

import pytest

from loomlog.core.groups.consumption import Consumption
from loomlog.core.groups.state import GroupState, member_id
from loomlog.errors import Corrupt, Fenced, VersionMismatch


def group(shards: int = 4, *members: str) -> GroupState:
    state = GroupState.create(7, shards, 0)
    for member in members:
        state = state.join(member, f"program {member}")
    return state


def test_the_first_member_gets_all_and_keeps_them_until_it_releases_some() -> None:
    state = group(4, "0.1", "1.1")
    assert state.owned_by("0.1") == {0, 1, 2, 3}
    assert state.moving_from("0.1") == {2, 3}
    state = state.commit("0.1", {2: 10, 3: 12}, release=[2, 3])
    assert state.owned_by("1.1") == {2, 3}
    assert [shard.position for shard in state.shards] == [0, 0, 10, 12]


def test_a_member_that_leaves_or_expires_gives_its_shards_to_others_at_once() -> None:
    state = group(4, "0.1", "1.1").remove(["0.1"])
    assert state.owned_by("1.1") == {0, 1, 2, 3}
    assert not state.remove(["1.1"]).owned_by("1.1")


def test_who_was_removed_cannot_commit() -> None:
    state = group(4, "0.1", "1.1").remove(["0.1"])
    with pytest.raises(Fenced, match="join it again"):
        state.commit("0.1", {0: 5})


def test_who_gets_the_lease_of_a_member_replaces_it() -> None:
    state = group(2, member_id(0, 1)).join(member_id(0, 2), "another")
    assert list(state.members) == ["0.2"]
    assert state.owned_by("0.2") == {0, 1}


def test_positions_never_go_back_but_by_a_reset() -> None:
    state = group(1, "0.1").commit("0.1", {0: 9}).commit("0.1", {0: 5})
    assert state.shards[0].position == 9
    assert state.reset(3).shards[0].position == 3
    assert not state.reset(3).members


def test_it_is_stored_as_text() -> None:
    state = group(3, "0.1", "1.7").commit("0.1", {1: 1 << 40})
    assert GroupState.decode(state.encode()) == state
    with pytest.raises(Corrupt, match="another program"):
        GroupState.decode(b"{}")
    with pytest.raises(VersionMismatch, match="update it"):
        GroupState.decode(state.encode().replace(b'"version":1', b'"version":2'))


def test_a_shard_from_an_earlier_position_sets_reading_back_for_itself_alone() -> None:
    state = group(2, "0.1", "1.1").commit("0.1", {1: 5}, release=[1])
    consumption = Consumption("0.1")
    consumption.adopt(state)
    assert (consumption.reading, consumption.floors) == (0, {0: 0})
    consumption.reading = 20
    assert consumption.adopt(state.remove(["1.1"]))
    assert (consumption.reading, consumption.floors) == (5, {0: 20, 1: 5})
    assert consumption.positions() == {0: 20, 1: 5}


def test_a_stopped_shard_is_released_with_the_commit_of_what_was_handed_out() -> None:
    state = group(2, "0.1")
    consumption = Consumption("0.1")
    consumption.adopt(state)
    consumption.reading = 8
    state = state.join("1.1", "another")
    consumption.adopt(state)
    assert is_dirty(consumption)
    assert consumption.stopped == {1: 8}
    consumption.reading = 9
    state = consumption.commit(state)
    assert [(shard.owner, shard.position) for shard in state.shards] == [("0.1", 9), ("1.1", 8)]


def test_passing_over_entries_of_others_needs_no_commit() -> None:
    consumption = Consumption("0.1")
    consumption.adopt(group(1, "0.1"))
    consumption.pass_over(5)
    assert not is_dirty(consumption)
    consumption.reading = 6
    consumption.pass_over(7)
    assert is_dirty(consumption)
    consumption.committed(7)
    assert not is_dirty(consumption)


def is_dirty(consumption: Consumption) -> bool:
    return consumption.dirty
