"""The metadata repository repairs a stream that does not run as it should."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from repair_rig import (
    ALL_SEALED,
    HEALTHY,
    MOST_SEALED,
    RUNNING,
    SEALED,
    SEALING,
    Fleet,
    changed,
    decide,
    going,
    says,
    stream,
)

from loomlog.core.ordered import repair
from loomlog.core.ordered.repair import (
    BeginSeal,
    DropJoining,
    Join,
    Remove,
    SendSeal,
    Swap,
    Synchronise,
    Unseal,
    Wait,
)
from loomlog.core.ordered.rounds import StreamRounds
from loomlog.types import NodeId


def test_a_healthy_stream_is_left_alone() -> None:
    assert isinstance(decide(stream(*HEALTHY, sealed=False)), Wait)


def test_a_silent_node_seals_its_streams() -> None:
    assert isinstance(decide(stream(*HEALTHY, sealed=False), Fleet(dead={2})), BeginSeal)


def test_a_replica_that_sealed_itself_or_restarted_seals_the_stream() -> None:
    found = stream(says(RUNNING), says(SEALING), says(RUNNING), sealed=False)
    assert isinstance(decide(found), BeginSeal)


def test_replicas_that_only_miss_the_seal_are_told() -> None:
    found = stream(says(SEALED), says(SEALING), says(RUNNING, epoch=2))
    assert decide(found) == SendSeal((2, 3))


def test_a_seal_that_was_not_recorded_is_begun_again() -> None:
    """Replicas that restarted are in the epoch in which the stream ran. If they were sealed there,
    it could run in that epoch twice, with other entries."""
    for reports in ((says(SEALING), says(SEALING), None), (None, None, None), ALL_SEALED):
        found = changed(stream(*reports), sealed_at=0)
        assert isinstance(decide(found, Fleet(dead={3})), BeginSeal)
        going = changed(found, removing=True, wanted_running=False, trimmed=12)
        assert isinstance(decide(going, Fleet(dead={1, 2, 3})), BeginSeal)


def test_all_sealed_means_unseal() -> None:
    assert decide(stream(*ALL_SEALED)) == Unseal()


def test_an_operators_seal_stays() -> None:
    found = stream(*ALL_SEALED)
    found.wanted_running = False
    assert decide(found) == Wait("sealed by an operator")
    running = stream(*HEALTHY, sealed=False)
    running.wanted_running = False
    assert isinstance(decide(running), BeginSeal)


def test_an_unseal_that_was_interrupted_is_sealed_again() -> None:
    assert isinstance(decide(stream(says(SEALED), says(RUNNING), says(SEALED))), BeginSeal)


# ---- a node dies


def test_it_waits_for_a_node_that_may_come_back() -> None:
    found = decide(stream(says(SEALED), says(SEALED), None), Fleet(dead={3}, best=4))
    assert isinstance(found, Wait)
    assert "node 3" in found.reason


def test_a_lost_node_is_replaced_by_a_spare() -> None:
    cluster = Fleet(dead={3}, lost_ones={3}, best=4)
    found = stream(says(SEALED), says(SEALED), None)
    assert decide(found, cluster) == Join(4)
    found.joining = 4
    found.reports[4] = says(SEALING, epoch=0, end=1)
    assert decide(found, cluster) == SendSeal((4,))
    found.reports[4] = says(SEALING, end=1)
    assert decide(found, cluster) == Synchronise(2, 4)
    found.reports[4] = says(SEALED)
    assert decide(found, cluster) == Swap((1, 2, 4))


def test_without_a_spare_it_stays_sealed_and_says_so() -> None:
    found = decide(stream(says(SEALED), says(SEALED), None), Fleet(dead={3}, lost_ones={3}))
    assert isinstance(found, Wait)
    assert "no spare" in found.reason


def test_a_lost_primary_hands_over_to_who_served_before() -> None:
    cluster = Fleet(dead={1}, lost_ones={1}, best=4)
    found = stream(None, says(SEALED), says(SEALED))
    found.joining = 4
    found.reports[4] = says(SEALED)
    assert decide(found, cluster) == Swap((2, 3, 4))


def test_a_node_that_comes_back_makes_its_replacement_needless() -> None:
    found = stream(*ALL_SEALED)
    found.joining = 4
    found.reports[4] = says(SEALING, end=5)
    assert decide(found) == DropJoining(4, "it is not needed any more")


def test_a_newcomer_that_dies_is_dropped() -> None:
    cluster = Fleet(dead={3, 4}, lost_ones={3})
    found = stream(says(SEALED), says(SEALED), None)
    found.joining = 4
    assert isinstance(decide(found, cluster), Wait), "it may come back"
    cluster.lost_ones.add(4)
    assert decide(found, cluster) == DropJoining(4, "it fell silent")


# ---- a node comes back without everything


def test_a_replica_behind_is_synchronised() -> None:
    found = stream(says(SEALED), says(SEALING, end=6), says(SEALED))
    assert decide(found) == Synchronise(3, 2)


def test_a_damaged_replica_is_synchronised_and_never_a_source() -> None:
    found = stream(says(SEALED, damaged=True), says(SEALED), says(SEALING, damaged=True))
    assert decide(found) == Synchronise(2, 3)


def test_nobody_guesses_when_no_one_has_everything() -> None:
    found = decide(stream(says(SEALING, end=6), says(SEALING, end=6), None), Fleet(dead={3}))
    assert isinstance(found, Wait)
    assert "no live replica has every committed entry" in found.reason


# ---- moves


def test_a_move_fills_the_newcomer_while_the_stream_runs() -> None:
    found = stream(*HEALTHY, sealed=False)
    found.committed_llsn_end = 1_000_000
    found.leaving = 2
    cluster = Fleet(best=4)
    assert decide(found, cluster) == Join(4)
    found.joining = 4
    assert decide(found, cluster) == Join(4)
    found.reports[4] = says(SEALING, epoch=0, end=1)
    assert decide(found, cluster) == Synchronise(3, 4)
    found.reports[4] = says(SEALING, epoch=0, end=999_000)
    assert isinstance(decide(found, cluster), BeginSeal)


def test_a_moved_replica_takes_the_place_of_the_leaving_one() -> None:
    found = stream(*ALL_SEALED)
    found.leaving, found.joining = 2, 4
    found.reports[4] = says(SEALED)
    assert decide(found) == Swap((1, 3, 4))


def test_a_stream_with_too_few_replicas_gets_one_more() -> None:
    found = stream(*HEALTHY, sealed=False)
    found.wanted_replicas = 4
    assert decide(found, Fleet(best=5)) == Join(5)


def test_a_stream_with_a_newcomer_far_behind_runs_while_it_is_filled() -> None:
    found = stream(*(says(SEALED, end=1_000_000) for _ in range(3)))
    found.committed_llsn_end = 1_000_000
    found.leaving, found.joining = 2, 4
    found.reports[4] = says(SEALING, end=1)
    assert decide(found) == Unseal()
    found.reports[4] = says(SEALING, end=900_000)
    assert decide(found) == Synchronise(3, 4)


def test_a_newcomer_with_old_data_that_still_runs_hears_of_a_seal_first() -> None:
    found = stream(*HEALTHY, sealed=False)
    found.committed_llsn_end = 1_000_000
    found.leaving, found.joining = 2, 4
    found.reports[4] = says(RUNNING, epoch=1)
    assert isinstance(decide(found), BeginSeal)


def test_a_dead_replica_is_replaced_before_one_that_is_to_leave() -> None:
    cluster = Fleet(dead={3}, lost_ones={3})
    found = stream(says(SEALED), says(SEALED), None)
    found.leaving, found.joining = 1, 4
    found.reports[4] = says(SEALED)
    assert decide(found, cluster) == Swap((1, 2, 4))


def test_a_stream_that_stays_sealed_is_moved_all_the_same() -> None:
    """A stream stays sealed if its segment has ended or an operator wants it so. Its node could
    never be emptied otherwise."""
    found = stream(*ALL_SEALED)
    found.wanted_running = False
    found.leaving = 2
    without = decide(found)
    assert isinstance(without, Wait)
    assert "no spare" in without.reason
    cluster = Fleet(best=4)
    assert decide(found, cluster) == Join(4)
    found.joining = 4
    found.reports[4] = says(SEALING, end=1)
    assert decide(found, cluster) == Synchronise(3, 4)
    found.reports[4] = says(SEALED)
    assert decide(found, cluster) == Swap((1, 3, 4))


# ---- leaving


def test_an_unregistered_replica_leaves_without_another_in_its_place() -> None:
    found = stream(*HEALTHY, sealed=False)
    found.leaving, found.wanted_replicas = 1, 2
    assert isinstance(decide(found, Fleet(best=4)), BeginSeal)
    sealed = stream(*ALL_SEALED)
    sealed.leaving, sealed.wanted_replicas = 1, 2
    assert decide(sealed, Fleet(best=4)) == Swap((2, 3))
    assert decide(sealed, Fleet(dead={1}, best=4)) == Swap((2, 3))


def test_the_only_whole_replica_does_not_leave() -> None:
    found = stream(says(SEALED), None, None)
    found.leaving, found.wanted_replicas = 1, 2
    assert isinstance(decide(found, Fleet(dead={2, 3})), Wait)


# ---- a node comes back without its replica


def test_a_replica_that_its_node_lost_is_made_again_and_filled() -> None:
    found = stream(says(SEALED), says(SEALED), None)
    assert decide(found, Fleet(best=4)) == Join(3)


def test_a_replica_of_an_empty_stream_is_made_whoever_else_is_there() -> None:
    found = stream(None, None, None)
    assert isinstance(decide(found), Wait)
    found.committed_llsn_end = 1
    assert decide(found) == Join(1)


# ---- sources of copies


def test_every_failed_copy_has_another_source() -> None:
    found, wanted = stream(*ALL_SEALED), Synchronise(3, 1)

    def sources(reachable: Callable[[NodeId], bool]) -> list[NodeId]:
        return [repair.choose_source(found, wanted, n, reachable) for n in range(3)]

    assert sources(lambda node: True) == [3, 2, 3]
    assert sources(lambda node: node != 2) == [3, 3, 3]
    found.reports[2] = says(SEALED, damaged=True)
    assert sources(lambda node: True) == [3, 3, 3]


def test_an_operator_may_prefer_a_source() -> None:
    found, wanted = stream(*ALL_SEALED), Synchronise(3, 1)
    chosen = [repair.choose_source(found, wanted, n, lambda _: True, preferred=2) for n in range(3)]
    assert chosen == [2, 3, 2]
    assert repair.choose_source(found, wanted, 0, lambda node: node != 2, preferred=2) == 3


def test_a_copy_goes_on_from_another_source_but_not_to_another_replica() -> None:
    assert repair.is_same(Synchronise(3, 1), Synchronise(2, 1))
    assert not repair.is_same(Synchronise(3, 1), Synchronise(3, 2))
    assert not repair.is_same(Synchronise(3, 1), Unseal())


def never(stream: StreamRounds) -> bool:
    return False


# ---- logs without a running stream


def test_a_log_stands_still_if_all_its_streams_are_sealed_and_hit() -> None:
    hit, fine = stream(*ALL_SEALED), stream(*HEALTHY, sealed=False)
    ended = changed(fine, closed=True)
    assert repair.stands_still([hit, ended], 1, lambda stream: True, never)
    assert not repair.stands_still([hit, fine], 1, lambda stream: True, never)
    assert not repair.stands_still([hit], 1, lambda stream: False, never)
    assert not repair.stands_still([hit], 9, lambda stream: True, never)
    assert not repair.stands_still(
        [changed(hit, wanted_running=False)], 1, lambda stream: True, never
    )


def test_a_stream_that_is_being_removed_does_not_keep_a_log_from_standing_still() -> None:
    hit = stream(*ALL_SEALED)
    assert repair.stands_still([hit, going()], 1, lambda stream: stream is hit, never)


# ---- streams that go


def test_a_stream_that_is_being_removed_is_sealed_first() -> None:
    found = changed(stream(*HEALTHY, sealed=False), removing=True, wanted_running=False)
    assert decide(found) == BeginSeal("it is being removed")


def test_a_stream_with_entries_that_are_not_trimmed_stays() -> None:
    waits = Wait("sealed: it is removed when all its entries are trimmed")
    assert decide(going(sealed_at=12, trimmed=11)) == waits
    assert decide(going(sealed_at=12), Fleet(dead={1})) == Wait("sealed: waiting for node 1")


def test_its_replicas_are_replaced_while_it_stays() -> None:
    cluster = Fleet(dead={1}, lost_ones={1}, best=5)
    assert decide(going(sealed_at=12), cluster) == Join(5)


def test_a_stream_without_entries_goes_when_a_replica_confirms_it() -> None:
    nothing = [says(SEALED, end=1) for _ in range(3)]
    empty = going(*nothing, committed_llsn_end=1, sealed_at=12)
    assert decide(empty) == Remove()
    assert decide(empty, Fleet(dead={1, 2})) == Remove()
    assert isinstance(decide(empty, Fleet(dead={1, 2, 3})), Wait)


def test_replicas_are_sealed_before_the_stream_goes() -> None:
    """Waiting appends are answered by that."""
    found = going(says(SEALING), *MOST_SEALED, sealed_at=12, trimmed=12)
    assert decide(found) == SendSeal((1,))


RELIEF = changed(stream(*HEALTHY, sealed=False), stream_id=2, relief=True)
FINE = stream(*HEALTHY, sealed=False)


@pytest.mark.parametrize(
    ("others", "dead", "is_unneeded"),
    [
        pytest.param([FINE], set(), True, id="the other runs"),
        pytest.param([FINE], {1}, False, id="a node of it is silent"),
        pytest.param([], set(), False, id="there is no other"),
        pytest.param([stream(*ALL_SEALED)], set(), False, id="it is sealed"),
        pytest.param([FINE, stream(*ALL_SEALED)], set(), False, id="one of two is sealed"),
        pytest.param([changed(FINE, wanted_replicas=4)], set(), False, id="it lacks a replica"),
        pytest.param([changed(FINE, joining=4)], set(), False, id="it is being moved"),
        pytest.param([changed(FINE, leaving=3)], set(), False, id="a replica leaves"),
        pytest.param([FINE, going(sealed_at=12)], set(), True, id="one is being removed"),
        pytest.param(
            [FINE, changed(stream(*ALL_SEALED), wanted_running=False)],
            set(),
            True,
            id="an operator sealed one of two",
        ),
        pytest.param(
            [changed(stream(*ALL_SEALED), wanted_running=False)],
            set(),
            False,
            id="an operator sealed the only other",
        ),
        pytest.param([changed(FINE, relief=True)], set(), False, id="all came to its relief"),
    ],
)
def test_relief_is_needed_until_all_others_run_with_all_replicas(
    others: list[StreamRounds], dead: set[NodeId], is_unneeded: bool
) -> None:
    found = repair.unneeded([*others, RELIEF], lambda node: node not in dead, is_full=never)
    assert found == ([RELIEF] if is_unneeded else [])


def test_relief_that_is_being_removed_is_not_found_again() -> None:
    gone = changed(RELIEF, removing=True, wanted_running=False)
    assert repair.unneeded([FINE, gone], lambda node: True, is_full=never) == []


def test_a_full_stream_keeps_the_relief_and_calls_for_it() -> None:
    assert repair.unneeded([FINE, RELIEF], lambda node: True, is_full=never) == [RELIEF]
    assert repair.unneeded([FINE, RELIEF], lambda node: True, lambda s: s is FINE) == []
    assert repair.stands_still([FINE], 1, is_hit=never, is_full=lambda s: s is FINE)
    assert not repair.stands_still([FINE, RELIEF], 1, is_hit=never, is_full=lambda s: s is FINE)


# ---- losses


def test_nothing_is_lost_while_one_replica_has_all() -> None:
    assert repair.find_loss(stream(None, says(SEALED), says(SEALING, end=3))) is None
    newcomer = stream(None, None, None)
    newcomer.joining, newcomer.reports[4] = 4, says(SEALED)
    assert repair.find_loss(newcomer) is None


def test_what_no_replica_has_is_lost() -> None:
    assert repair.find_loss(stream(None, None, None)) == (1, 0)
    assert repair.find_loss(stream(None, says(SEALING, end=3), says(SEALING, end=7))) == (7, 6)


def test_what_nodes_had_that_an_operator_gave_up_is_lost() -> None:
    found = stream(says(SEALED), says(SEALING, end=3), says(SEALED))
    assert repair.find_loss(found, given_up={1}) is None
    assert repair.find_loss(found, given_up={1, 3}) == (3, 2)
    assert repair.find_loss(found, given_up={1, 2, 3}) == (1, 0)


def test_a_stream_without_entries_has_nothing_to_lose() -> None:
    empty = stream(None, None, None)
    empty.committed_llsn_end = 1
    assert repair.find_loss(empty) is None
