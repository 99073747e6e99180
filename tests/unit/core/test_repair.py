"""What the metadata repository does about a stream that does not run as it should."""

from __future__ import annotations

from dataclasses import dataclass, field

from loomlog.core.ordered import repair
from loomlog.core.ordered.repair import (
    BeginSeal,
    DropJoining,
    Join,
    SendSeal,
    Swap,
    Synchronise,
    Unseal,
    Wait,
)
from loomlog.core.ordered.rounds import StreamRounds
from loomlog.types import NodeId, ReplicaState, Report

SEALING, SEALED, RUNNING = ReplicaState.SEALING, ReplicaState.SEALED, ReplicaState.RUNNING
EPOCH = 3
END = 11  # ten entries are committed


@dataclass
class Cluster:
    """Nodes 1 to 5; all alive, none to spare."""

    dead: set[NodeId] = field(default_factory=set)
    lost_ones: set[NodeId] = field(default_factory=set)
    best: NodeId | None = None

    def alive(self, node: NodeId) -> bool:
        return node not in self.dead

    def lost(self, node: NodeId) -> bool:
        return node in self.lost_ones

    def spare(self, stream: StreamRounds) -> NodeId | None:
        return self.best


def says(
    state: ReplicaState, *, epoch: int = EPOCH, end: int = END, damaged: bool = False
) -> Report:
    return Report(1, end, 0, end - 1, epoch, state, end - 1, False, damaged)


def stream(*reports: Report | None, sealed: bool = True) -> StreamRounds:
    found = StreamRounds(1, (1, 2, 3), EPOCH, sealed, wanted_replicas=3, committed_llsn_end=END)
    for node, report in enumerate(reports, start=1):
        if report is not None:
            found.reports[node] = report
    return found


def decide(found: StreamRounds, cluster: Cluster | None = None) -> repair.Action:
    return repair.decide(found, cluster or Cluster())


HEALTHY = (says(RUNNING), says(RUNNING), says(RUNNING))
ALL_SEALED = (says(SEALED), says(SEALED), says(SEALED))


def test_a_healthy_stream_is_left_alone() -> None:
    assert isinstance(decide(stream(*HEALTHY, sealed=False)), Wait)


def test_a_silent_node_seals_its_streams() -> None:
    assert isinstance(decide(stream(*HEALTHY, sealed=False), Cluster(dead={2})), BeginSeal)


def test_a_replica_that_sealed_itself_or_restarted_seals_the_stream() -> None:
    found = stream(says(RUNNING), says(SEALING), says(RUNNING), sealed=False)
    assert isinstance(decide(found), BeginSeal)


def test_replicas_that_only_miss_the_seal_are_told() -> None:
    found = stream(says(SEALED), says(SEALING), says(RUNNING, epoch=2))
    assert decide(found) == SendSeal((2, 3))


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
    found = decide(stream(says(SEALED), says(SEALED), None), Cluster(dead={3}, best=4))
    assert isinstance(found, Wait)
    assert "node 3" in found.reason


def test_a_lost_node_is_replaced_by_a_spare() -> None:
    cluster = Cluster(dead={3}, lost_ones={3}, best=4)
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
    found = decide(stream(says(SEALED), says(SEALED), None), Cluster(dead={3}, lost_ones={3}))
    assert isinstance(found, Wait)
    assert "no spare" in found.reason


def test_a_lost_primary_hands_over_to_who_served_before() -> None:
    cluster = Cluster(dead={1}, lost_ones={1}, best=4)
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
    cluster = Cluster(dead={3, 4}, lost_ones={3})
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
    found = decide(stream(says(SEALING, end=6), says(SEALING, end=6), None), Cluster(dead={3}))
    assert isinstance(found, Wait)
    assert "no live replica has every committed entry" in found.reason


# ---- moves


def test_a_move_fills_the_newcomer_while_the_stream_runs() -> None:
    found = stream(*HEALTHY, sealed=False)
    found.committed_llsn_end = 1_000_000
    found.leaving = 2
    cluster = Cluster(best=4)
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
    assert decide(found, Cluster(best=5)) == Join(5)


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
    cluster = Cluster(dead={3}, lost_ones={3})
    found = stream(says(SEALED), says(SEALED), None)
    found.leaving, found.joining = 1, 4
    found.reports[4] = says(SEALED)
    assert decide(found, cluster) == Swap((1, 2, 4))


def test_a_stream_that_stays_sealed_is_moved_all_the_same() -> None:
    """Of a segment that has ended, or as an operator wants it: else its node is never empty."""
    found = stream(*ALL_SEALED)
    found.wanted_running = False
    found.leaving = 2
    without = decide(found)
    assert isinstance(without, Wait)
    assert "no spare" in without.reason
    cluster = Cluster(best=4)
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
    assert isinstance(decide(found, Cluster(best=4)), BeginSeal)
    sealed = stream(*ALL_SEALED)
    sealed.leaving, sealed.wanted_replicas = 1, 2
    assert decide(sealed, Cluster(best=4)) == Swap((2, 3))
    assert decide(sealed, Cluster(dead={1}, best=4)) == Swap((2, 3))


def test_the_only_whole_replica_does_not_leave() -> None:
    found = stream(says(SEALED), None, None)
    found.leaving, found.wanted_replicas = 1, 2
    assert isinstance(decide(found, Cluster(dead={2, 3})), Wait)


# ---- a node comes back without its replica


def test_a_replica_that_its_node_lost_is_made_again_and_filled() -> None:
    found = stream(says(SEALED), says(SEALED), None)
    assert decide(found, Cluster(best=4)) == Join(3)


def test_a_replica_of_an_empty_stream_is_made_whoever_else_is_there() -> None:
    found = stream(None, None, None)
    assert isinstance(decide(found), Wait)
    found.committed_llsn_end = 1
    assert decide(found) == Join(1)
