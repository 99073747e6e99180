"""What the metadata repository does about a stream that does not run."""

from __future__ import annotations

from loomlog.core.ordered.repair import BeginSeal, SendSeal, Unseal, Wait, decide
from loomlog.core.ordered.replica import Report
from loomlog.core.ordered.rounds import StreamRounds
from loomlog.types import ReplicaState

SEALING, SEALED, RUNNING = ReplicaState.SEALING, ReplicaState.SEALED, ReplicaState.RUNNING


def stream(*states: tuple[ReplicaState, int] | None, sealed: bool, epoch: int = 3) -> StreamRounds:
    found = StreamRounds(1, (1, 2, 3), epoch, sealed)
    for node, state in enumerate(states, start=1):
        if state is not None:
            found.reports[node] = Report(1, 1, 0, 0, state[1], state[0], 0, False)
    return found


def everyone(_: int) -> bool:
    return True


def test_a_healthy_stream_is_left_alone() -> None:
    healthy = stream((RUNNING, 3), (RUNNING, 3), (RUNNING, 3), sealed=False)
    assert isinstance(decide(healthy, everyone), Wait)


def test_a_silent_node_seals_its_streams() -> None:
    healthy = stream((RUNNING, 3), (RUNNING, 3), (RUNNING, 3), sealed=False)
    assert isinstance(decide(healthy, lambda node: node != 2), BeginSeal)


def test_a_replica_that_sealed_itself_or_restarted_seals_the_stream() -> None:
    assert isinstance(
        decide(stream((RUNNING, 3), (SEALING, 3), (RUNNING, 3), sealed=False), everyone), BeginSeal
    )


def test_replicas_behind_are_told_the_last_commit() -> None:
    found = decide(stream((SEALED, 3), (SEALING, 3), (RUNNING, 2), sealed=True), everyone)
    assert found == SendSeal((2, 3))


def test_all_sealed_means_unseal() -> None:
    assert decide(stream((SEALED, 3), (SEALED, 3), (SEALED, 3), sealed=True), everyone) == Unseal()


def test_it_stays_sealed_while_a_replica_is_away() -> None:
    found = decide(stream((SEALED, 3), (SEALED, 3), None, sealed=True), everyone)
    assert isinstance(found, Wait)
    assert "node 3" in found.reason


def test_an_unseal_that_was_interrupted_is_sealed_again() -> None:
    half = stream((SEALED, 3), (RUNNING, 3), (SEALED, 3), sealed=True)
    assert isinstance(decide(half, everyone), BeginSeal)
