"""Consumer groups: crashes, suspensions, clock jumps and lost answers; broken rules show."""

from __future__ import annotations

from collections import Counter

import pytest
from group_world import SESSION_S, GroupWorld
from seed_chunks import chunks
from violation import Violation

from loomlog.core.groups.consumption import Consumption
from loomlog.core.groups.state import GroupShard, GroupState
from loomlog.types import Glsn

CHUNK = 12
CONTROL_SEEDS = 60


@pytest.mark.parametrize("chunk", chunks(100, quick=1))
def test_every_entry_is_committed_once_by_its_owner(chunk: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        try:
            counts += GroupWorld(seed).run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    for what in ("handed out", "released", "taken over", "told"):
        assert counts[what], f"{what}: {counts}"


def is_found(first: int = 0) -> bool:
    for seed in range(first, first + CONTROL_SEEDS):
        try:
            GroupWorld(seed).run()
        except Violation:
            return True
    return False


def test_a_commit_without_a_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(self: Consumption, state: GroupState) -> GroupState:
        shards = list(state.shards)
        for number, position in self.positions().items():
            shards[number] = GroupShard(state.shards[number].owner, position)
        return GroupState(state.log_id, tuple(shards), state.members)

    monkeypatch.setattr(Consumption, "commit", commit)
    assert is_found()


def test_a_shard_that_is_released_before_its_commit_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def positions(self: Consumption) -> dict[int, Glsn]:
        return {shard: self.floors.get(shard, 0) for shard in self.stopped} | {
            shard: max(floor, self.reading) for shard, floor in self.floors.items()
        }

    monkeypatch.setattr(Consumption, "positions", positions)
    assert is_found()


def test_a_shard_that_is_not_stopped_before_it_moves_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adopt = Consumption.adopt

    def adopt_all(self: Consumption, state: GroupState) -> bool:
        changed = adopt(self, state)
        self.floors |= self.stopped
        return changed

    monkeypatch.setattr(Consumption, "adopt", adopt_all)
    assert is_found()


def test_a_shard_that_begins_where_its_new_owner_reads_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adopt = Consumption.adopt

    def without_going_back(self: Consumption, state: GroupState) -> bool:
        reading, was_running = self.reading, bool(self.floors)
        changed = adopt(self, state)
        if was_running:
            self.reading = max(reading, self.reading)
        return changed

    monkeypatch.setattr(Consumption, "adopt", without_going_back)
    assert is_found()


def test_a_member_that_is_known_by_its_number_alone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from loomlog.client.groups import membership

    monkeypatch.setattr(membership, "member_id", lambda slot, epoch: f"{slot}.0")
    assert is_found()


def test_a_dead_member_is_replaced_within_its_session_timeout() -> None:
    times_s = [GroupWorld(seed).seconds_to_replace() for seed in range(10)]
    assert max(times_s) < SESSION_S, times_s


def test_the_world_is_the_same_for_the_same_seed() -> None:
    assert GroupWorld(5).run() == GroupWorld(5).run()
