"""The placement of logs, epochs and records, and nodes that are left out for a while."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from random import Random

import pytest

from loomlog.core.copyset.nodeset import (
    SHARD_MAX,
    EpochMetadata,
    Exclusions,
    Member,
    Trouble,
    choose_copyset,
    choose_nodeset,
    index_of,
    node_of,
    ranked,
    sequencer_of,
    shard_name,
    shard_of,
)
from loomlog.core.copyset.settlement import completed
from loomlog.limits import NODE_ID_MAX

LOGS = 3000
FIVE = EpochMetadata(1, tuple(Member(node) for node in range(1, 6)), 3)
RACKS = EpochMetadata(
    1, tuple(Member(node, f"rack={'abc'[node % 3]}") for node in range(1, 10)), replication=2
)


def racks_of(metadata: EpochMetadata, nodes: tuple[int, ...]) -> set[str]:
    return {member.domain for member in metadata.nodeset if member.shard in nodes}


# ---- sequencers


def test_each_node_hosts_a_share_of_the_logs_by_its_weight() -> None:
    weights = {1: 1.0, 2: 1.0, 3: 2.0}
    hosted = Counter(sequencer_of(log, weights) for log in range(LOGS))
    for node, weight in weights.items():
        assert hosted[node] == pytest.approx(LOGS * weight / 4, rel=0.1)


def test_only_the_logs_of_a_lost_node_move() -> None:
    nodes = dict.fromkeys(range(1, 6), 1.0)
    fewer = {node: weight for node, weight in nodes.items() if node != 3}
    for log in range(LOGS):
        before, after = sequencer_of(log, nodes), sequencer_of(log, fewer)
        assert before in (3, after)
        assert ranked(log, fewer) == [node for node in ranked(log, nodes) if node != 3]


def test_nobody_can_host_when_nobody_is_up() -> None:
    assert sequencer_of(1, {}) is None
    assert {sequencer_of(log, {1: 1.0, 2: 1.0}, chosen=2) for log in range(20)} == {2}
    assert {sequencer_of(log, {1: 1.0, 2: 1.0}, chosen=3) for log in range(20)} == {1, 2}, "away"


# ---- nodesets


def test_a_nodeset_takes_of_all_failure_domains_in_turn() -> None:
    for log in range(100):
        nodeset = choose_nodeset(log, RACKS.nodeset, 5)
        taken = Counter(member.domain for member in nodeset)
        assert sorted(taken.values()) == [1, 2, 2]


def test_nodesets_use_all_nodes_alike_and_change_little() -> None:
    members = [Member(node) for node in range(1, 11)]
    used: Counter[int] = Counter()
    for log in range(LOGS):
        nodeset = choose_nodeset(log, members, 5)
        used.update(member.shard for member in nodeset)
        after = choose_nodeset(log, [member for member in members if member.shard != 7], 5)
        assert len(set(nodeset) - set(after)) == (1 if Member(7) in nodeset else 0)
    assert min(used.values()) > 0.9 * LOGS / 2


def test_a_nodeset_is_all_there_is_if_that_is_not_more() -> None:
    assert set(choose_nodeset(1, FIVE.nodeset, 9)) == set(FIVE.nodeset)


# ---- copysets


def test_every_copyset_spans_the_failure_domains_that_the_epoch_asks_for() -> None:
    random = Random(1)
    used: Counter[int] = Counter()
    for _ in range(LOGS):
        copyset = choose_copyset(RACKS, {1}, random)
        assert copyset is not None
        assert 1 not in copyset
        assert len(set(copyset)) == 2 == len(racks_of(RACKS, copyset))
        used.update(copyset)
    assert len(used) == 8


def test_a_copyset_fills_up_where_there_are_fewer_domains_than_copies() -> None:
    two_racks = EpochMetadata(
        1, (Member(1, "a"), Member(2, "a"), Member(3, "a"), Member(4, "b")), 3
    )
    for seed in range(50):
        copyset = choose_copyset(two_racks, (), Random(seed))
        assert copyset is not None
        assert 4 in copyset
        assert len(set(copyset)) == 3


@pytest.mark.parametrize(("racks", "spanned"), [("ab", 1), ("aabbc", 2), ("abc", 2), ("abcd", 3)])
def test_a_location_that_is_lost_is_done_without(racks: str, spanned: int) -> None:
    """Copies are in as many locations as there are, and one of those may be missing."""
    members = [Member(node, rack) for node, rack in enumerate(3 * racks, start=1)]
    metadata = EpochMetadata(1, tuple(members), 3)
    assert metadata.domains_spanned == spanned
    for lost in set(racks):
        away = {member.shard for member in members if member.location == lost}
        left = set(metadata.shards) - away
        assert metadata.can_hold_a_copyset(left)
        for seed in range(20):
            whole = choose_copyset(metadata, (), Random(seed))
            assert whole is not None
            assert len(racks_of(metadata, whole)) == min(3, len(set(racks)))
            copyset = choose_copyset(metadata, away, Random(seed))
            assert copyset is not None
            assert len(racks_of(metadata, copyset)) == min(3, len(set(racks)) - 1)


def test_nodes_that_have_the_record_are_taken_again() -> None:
    for seed in range(50):
        copyset = choose_copyset(FIVE, {1}, Random(seed), preferred={1, 4})
        assert copyset is not None
        assert 4 in copyset
        assert 1 not in copyset


def test_there_is_no_copyset_when_too_few_are_left() -> None:
    assert choose_copyset(FIVE, {1, 2, 3}, Random(1)) is None


# ---- nodes with several shards


def sharded(nodes: int, shards: int, replication: int, racks: str = "") -> EpochMetadata:
    """Return a nodeset with all shards of some nodes, which are in racks in turn."""
    members = tuple(
        Member(shard_of(node, index), racks[node % len(racks)] if racks else "")
        for node in range(1, nodes + 1)
        for index in range(shards)
    )
    return EpochMetadata(1, members, replication)


def all_of(metadata: EpochMetadata, *nodes: int) -> set[int]:
    return {shard for shard in metadata.shards if node_of(shard) in nodes}


@pytest.mark.parametrize("index", [0, 1, 99])
def test_a_shard_knows_its_node(index: int) -> None:
    for node in (1, 7, NODE_ID_MAX):
        shard = shard_of(node, index)
        assert (node_of(shard), index_of(shard)) == (node, index)
        assert shard <= SHARD_MAX
    assert shard_of(7, 0) == 7
    assert [shard_name(shard_of(7, index)) for index in (0, 2)] == ["7", "7/2"]


@pytest.mark.parametrize("racks", ["", "ab", "aabbc"])
@pytest.mark.parametrize("replication", [1, 2, 3])
def test_no_copyset_has_two_shards_of_a_node(replication: int, racks: str) -> None:
    """This checks all sets of shards of small clusters: a copyset is chosen from a set if and only
    if the set can hold one, and an f-majority meets every copyset."""
    metadata = sharded(4, 2, replication, racks)
    shards = metadata.shards
    sets = [set(some) for size in range(len(shards) + 1) for some in combinations(shards, size)]
    copysets = [some for some in sets if len(some) == replication]
    copysets = [some for some in copysets if metadata.can_hold_a_copyset(some)]
    assert all(len(set(map(node_of, copyset))) == replication for copyset in copysets)
    for some in sets:
        chosen = choose_copyset(metadata, set(shards) - some, Random(1))
        assert (chosen is not None) == metadata.can_hold_a_copyset(some)
        assert chosen is None or set(chosen) in copysets
        assert metadata.is_f_majority(some) == all(some & copyset for copyset in copysets)
        completed_set = completed((), some, metadata, lsn=1)
        assert metadata.can_hold_a_copyset(completed_set) == metadata.can_hold_a_copyset(some)


def test_a_recovery_adds_nodes_to_shards_of_one_that_have_a_copy() -> None:
    metadata = sharded(3, 2, 3)
    copyset = completed(all_of(metadata, 1), metadata.shards, metadata, lsn=5)
    assert set(map(node_of, copyset)) == {1, 2, 3}
    assert len(copyset) == 4
    left = all_of(metadata, 1, 2)
    assert set(completed((), left, metadata, lsn=5)) < left
    assert len(completed((), left, metadata, lsn=5)) == 3


def test_all_shards_of_a_node_are_needed_where_every_node_has_a_copy() -> None:
    metadata = sharded(3, 2, 3)
    first_of_each = {1, 2, 3}
    assert not metadata.is_f_majority(first_of_each)
    assert metadata.is_f_majority(all_of(metadata, 2))


def test_a_nodeset_takes_of_all_nodes_before_a_second_shard_of_one() -> None:
    for racks in ("", "ab", "aaab"):
        metadata = sharded(5, 3, 2, racks)
        for log in range(50):
            for size in range(2, 15):
                nodeset = choose_nodeset(log, metadata.nodeset, size)
                taken = Counter(member.node for member in nodeset)
                assert len(nodeset) == size
                assert len(taken) == min(size, 5)
                assert max(taken.values()) - min(taken.values()) <= 1


def test_nodesets_use_all_shards_alike() -> None:
    metadata = sharded(4, 2, 2)
    used: Counter[int] = Counter()
    for log in range(LOGS):
        used.update(member.shard for member in choose_nodeset(log, metadata.nodeset, 4))
    assert min(used.values()) > 0.9 * LOGS / 2


def test_a_silent_node_counts_once_however_many_shards_it_has(exclusions: Exclusions) -> None:
    metadata = sharded(3, 4, 3)
    for shard in all_of(metadata, 1, 2):
        exclusions.silent([shard], metadata, now=0.0)
    assert exclusions.now_excluded(0.0) == all_of(metadata, 1, 2)
    exclusions.returned(1)
    assert exclusions.now_excluded(0.0) == all_of(metadata, 2)
    exclusions.silent([1], metadata, now=0.0)
    exclusions.silent([3], metadata, now=0.0)
    assert exclusions.now_excluded(0.0) == set()


def test_no_shard_of_a_node_that_is_away_is_tried(exclusions: Exclusions) -> None:
    metadata = sharded(3, 2, 2)
    exclusions.down = frozenset({3})
    for seed in range(20):
        copyset = exclusions.choose_copyset(metadata, (), Random(seed), now=0.0)
        assert copyset is not None
        assert set(map(node_of, copyset)) == {1, 2}


# ---- exclusions


@pytest.fixture
def exclusions() -> Exclusions:
    return Exclusions()


@pytest.mark.parametrize(
    ("trouble", "time_s"),
    [(Trouble.NO_SPACE, 60), (Trouble.DISABLED, 30), (Trouble.OVERLOADED, 1)],
)
def test_each_trouble_has_its_time(exclusions: Exclusions, trouble: Trouble, time_s: int) -> None:
    exclusions.refused(1, trouble, now=100.0)
    assert exclusions.now_excluded(99.9 + time_s) == {1}
    assert exclusions.now_excluded(100.0 + time_s) == set()


def test_a_shorter_trouble_does_not_end_a_longer_one(exclusions: Exclusions) -> None:
    exclusions.refused(1, Trouble.NO_SPACE, now=0.0)
    exclusions.refused(1, Trouble.OVERLOADED, now=0.0)
    exclusions.lost(1, now=0.0)
    assert exclusions.now_excluded(59.0) == {1}


def silence_of(exclusions: Exclusions, now: float) -> float:
    """Return for how long a shard is left out that is silent now."""
    exclusions.silent([1], FIVE, now)
    return next(s for s in range(10_000) if not exclusions.now_excluded(now + s))


def test_one_hiccup_is_forgotten_soon(exclusions: Exclusions) -> None:
    assert silence_of(exclusions, 0.0) == 10
    assert silence_of(exclusions, 9.0) == 10, "another record waited for it at the same time"
    assert silence_of(exclusions, 30.0) == 10, "it was well for longer than it was left out"


def test_who_is_silent_again_at_once_is_left_out_for_longer_and_longer(
    exclusions: Exclusions,
) -> None:
    now, spans = 0.0, []
    for _ in range(8):
        spans.append(silence_of(exclusions, now))
        now += 1.5 * spans[-1]
    assert spans == [10, 20, 40, 80, 160, 320, 600, 600]
    assert silence_of(exclusions, now + 600) == 10
    exclusions.returned(1)
    assert silence_of(exclusions, now + 601) == 10


def test_silent_nodes_are_left_out_until_they_return(exclusions: Exclusions) -> None:
    exclusions.silent([1], FIVE, now=0.0)
    assert exclusions.now_excluded(9.0) == {1}
    exclusions.returned(1)
    assert exclusions.now_excluded(0.0) == set()


def test_nobody_is_left_out_when_nobody_answered(exclusions: Exclusions) -> None:
    exclusions.silent([1], FIVE, now=0.0)
    exclusions.silent([2, 3, 4], FIVE, now=0.0)
    assert exclusions.now_excluded(0.0) == set()


def test_a_single_copy_is_not_everybody(exclusions: Exclusions) -> None:
    exclusions.silent([1], FIVE._replace(replication=1), now=0.0)
    assert exclusions.now_excluded(0.0) == {1}


def test_only_a_few_silent_nodes_are_left_out(exclusions: Exclusions) -> None:
    exclusions.silent([1], FIVE, now=0.0)
    exclusions.silent([2], FIVE, now=0.0)
    assert exclusions.now_excluded(0.0) == {1, 2}
    exclusions.silent([3], FIVE, now=0.0)
    assert exclusions.now_excluded(0.0) == set()


def test_lists_are_cleared_when_they_leave_no_copyset(exclusions: Exclusions) -> None:
    exclusions.silent([1, 2], FIVE, now=0.0)
    exclusions.refused(3, Trouble.NO_SPACE, now=0.0)
    copyset = exclusions.choose_copyset(FIVE, (), Random(1), now=1.0)
    assert copyset is not None
    assert 3 not in copyset
    assert exclusions.now_excluded(1.0) == {3}
    for node in (4, 5):
        exclusions.refused(node, Trouble.DISABLED, now=1.0)
    assert exclusions.choose_copyset(FIVE, (), Random(1), now=1.0) is not None
    assert exclusions.now_excluded(1.0) == set()


def test_nodes_that_are_away_are_never_tried(exclusions: Exclusions) -> None:
    exclusions.down = frozenset({1, 2})
    copyset = exclusions.choose_copyset(FIVE, (), Random(1), now=0.0)
    assert copyset is not None
    assert set(copyset) == {3, 4, 5}
    exclusions.down = frozenset({1, 2, 3})
    assert exclusions.choose_copyset(FIVE, (), Random(1), now=0.0) is None
