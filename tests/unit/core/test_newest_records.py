"""Metadata is brought up to date with the storage nodes."""

from __future__ import annotations

from loomlog.core.chained.chain import Replica, ReplicaEpochs, first_projection, newest_projection
from loomlog.core.copyset.log_state import first_state, newest_state, take_epoch
from loomlog.core.copyset.nodeset import Member
from loomlog.core.history import Unknowable
from loomlog.core.ordered.evidence import Stream, newest_stream
from loomlog.types import ReplicaState, Report


def report(epoch: int, state: ReplicaState = ReplicaState.RUNNING) -> Report:
    return Report(1, 5, 0, 9, epoch, state, 9, resend=False)


# ---- ordered


def test_a_stream_that_was_not_sealed_since_is_as_it_was() -> None:
    known = Stream((3, 1), 4, sealed=False)
    assert newest_stream(known, {1: report(4), 3: report(4), 2: report(2)}) == known


def test_the_replicas_of_the_highest_epoch_are_the_replicas() -> None:
    known = Stream((3, 1, 2), 4, sealed=False)
    reports = {1: report(6), 2: report(4), 3: report(6), 5: report(6)}
    assert newest_stream(known, reports) == Stream((3, 1, 5), 6, sealed=False)
    sealed = {node: report(7, ReplicaState.SEALED) for node in (1, 5)}
    assert newest_stream(known, sealed) == Stream((1, 5), 7, sealed=True)


def test_a_sealed_stream_may_have_other_replicas_in_the_same_epoch() -> None:
    known = Stream((1, 2), 4, sealed=True)
    reports = {1: report(4), 2: report(3), 3: report(4)}
    assert newest_stream(known, reports) == Stream((1, 3), 4, sealed=False)


def test_a_stream_that_is_not_known_is_as_the_nodes_say() -> None:
    assert newest_stream(None, {2: report(1), 1: report(1)}) == Stream((1, 2), 1, sealed=False)
    assert isinstance(newest_stream(None, {}), Unknowable)


# ---- chained

PROJECTION = first_projection(7, [[1, 2, 3], [2, 3, 1]], birth=1, sequencer=1)


def sealed(*, written: dict[str, int] | None = None, **epochs: int) -> dict[Replica, ReplicaEpochs]:
    """n2c0b1=5: node 2, chain 0, birth 1 is sealed at 5. `written`: when they took a block last."""
    found = {}
    for name, epoch in epochs.items():
        node, _, rest = name[1:].partition("c")
        chain, _, birth = rest.partition("b")
        found[Replica(int(node), 7, int(chain), int(birth))] = ReplicaEpochs(
            epoch, (written or {}).get(name, 0)
        )
    return found


def test_a_projection_that_is_in_force_stays() -> None:
    assert newest_projection(PROJECTION, sealed(n1c0b1=1, n2c1b1=1)) == PROJECTION


def test_replicas_that_were_there_all_the_time_go_on() -> None:
    there = sealed(n1c0b1=5, n2c0b1=2, n3c0b1=5, n4c0b3=5, n2c1b1=2, n3c1b1=5, n1c1b1=5)
    newest = newest_projection(PROJECTION, there)
    assert not isinstance(newest, Unknowable)
    assert newest.epoch == 5
    nodes = [[replica.node_id for replica in chain] for chain in newest.chains]
    assert nodes == [[1, 3], [3, 1]]
    assert all(replica.birth == 1 for replica in newest.replicas)


def test_a_chain_of_newcomers_is_not_trusted() -> None:
    there = sealed(n1c0b1=2, n2c0b1=2, n3c0b1=2, n4c0b3=5, n2c1b1=5, n3c1b1=5, n1c1b1=5)
    assert isinstance(newest_projection(PROJECTION, there), Unknowable)


def test_a_replica_that_left_and_was_sealed_with_the_others_is_not_whole() -> None:
    projection = first_projection(7, [[1, 2]], birth=1, sequencer=1)
    written = {"n1c0b1": 4, "n2c0b1": 5, "n3c0b4": 5}
    newest = newest_projection(projection, sealed(n1c0b1=5, n2c0b1=5, n3c0b4=5, written=written))
    assert not isinstance(newest, Unknowable)
    assert [replica.node_id for replica in newest.replicas] == [2]


def test_a_block_that_only_newcomers_took_is_not_forgotten() -> None:
    projection = first_projection(7, [[1, 2]], birth=1, sequencer=1)
    there = sealed(n1c0b1=5, n2c0b1=5, n3c0b4=5, written={"n1c0b1": 4, "n3c0b4": 5})
    newest = newest_projection(projection, there)
    assert isinstance(newest, Unknowable)
    assert "chain 0" in newest.why


def test_all_replicas_are_whole_if_nothing_was_written_since_the_seal() -> None:
    projection = first_projection(7, [[1, 2]], birth=1, sequencer=1)
    there = sealed(n1c0b1=5, n2c0b1=5, n3c0b4=5, written={"n1c0b1": 4, "n2c0b1": 2})
    newest = newest_projection(projection, there)
    assert not isinstance(newest, Unknowable)
    assert [replica.node_id for replica in newest.replicas] == [1, 2]


# ---- copyset


def test_epochs_in_between_are_recovered_from_all_nodes() -> None:
    state = take_epoch(first_state([Member(1, "a"), Member(2, "b")], 2), 1, [Member(1), Member(2)])
    newest = newest_state(state, 9, [1, 2, 3, 4])
    assert (newest.epoch, newest.sequencer, newest.last_clean) == (10, 0, state.last_clean)
    assert newest.metadata_of(state.epoch) == state.metadata_of(state.epoch)
    for epoch in (state.epoch + 1, 9):
        metadata = newest.metadata_of(epoch)
        assert metadata.shards == (1, 2, 3, 4)
        assert not metadata.is_f_majority([1, 2])
        assert metadata.is_f_majority([1, 2, 4])


def test_a_state_that_knows_as_much_as_the_nodes_stays() -> None:
    state = first_state([Member(1), Member(2)], 2)
    assert newest_state(state, 0, [1, 2, 3]) == state
