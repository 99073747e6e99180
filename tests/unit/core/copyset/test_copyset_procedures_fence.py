"""A sequencer acknowledges nothing until its predecessors cannot any more."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from copyset_node import CopysetNode

from loomlog.core.copyset.messages import LogState, Preempted, Seal, Store
from loomlog.core.copyset.nodeset import Authority, EpochMetadata, Member
from loomlog.core.copyset.procedures import Answer, CopysetAsk, fence
from loomlog.core.copyset.record import Kind, Record, make
from loomlog.core.requests import Lost

LOG = 1
OLD = EpochMetadata(1, tuple(Member(node) for node in (1, 2, 3, 4, 5)), 3)
NEW = EpochMetadata(4, tuple(Member(node) for node in (6, 7, 8)), 2)


def run(
    nodes: Mapping[int, CopysetNode],
    *,
    last_clean: int = 2,
    silent: Collection[int] = (),
    authority: Mapping[int, Authority] | None = None,
) -> dict[int, int] | Preempted | None:
    """Fence as a sequencer of epoch 5; epochs from 4 on have another nodeset."""

    def answer(ask: CopysetAsk) -> Answer:
        assert isinstance(ask.target, int)
        assert isinstance(ask.request, Seal)
        return Lost() if ask.target in silent else nodes[ask.target].answer(ask.request)

    state = LogState(5, 1, (OLD, NEW), last_clean, 0)
    steps = fence(LOG, 5, state, authority or {})
    try:
        asked = next(steps)
        steps.send([answer(ask) for ask in asked.asks])
    except StopIteration as ended:
        outcome: dict[int, int] | Preempted | None = ended.value
        return outcome
    raise AssertionError("it asks only once")


def make_nodes() -> dict[int, CopysetNode]:
    return {node: CopysetNode(node) for node in range(1, 9)}


def test_all_nodesets_of_epochs_that_are_not_clean_are_sealed() -> None:
    nodes = make_nodes()
    assert run(nodes) == {}
    assert {node.records(LOG).standing.seal for node in nodes.values()} == {4}
    nodes = make_nodes()
    assert run(nodes, last_clean=3) == {}
    assert {number for number, node in nodes.items() if node.logs} == {6, 7, 8}


def test_nodes_may_be_silent_as_long_as_no_copyset_is_among_them() -> None:
    assert run(make_nodes(), silent=[1, 2, 6]) == {}
    assert run(make_nodes(), silent=[1, 2, 3]) is None
    assert run(make_nodes(), silent=[7, 8]) is None


def test_nodes_that_are_given_up_take_no_records() -> None:
    given_up = {1: Authority.UNAVAILABLE, 2: Authority.EMPTY}
    assert run(make_nodes(), silent=[3, 4], authority=given_up) == {}
    underreplicated = {1: Authority.UNDERREPLICATED}
    assert run(make_nodes(), silent=[1, 2, 3], authority=underreplicated) is None


def test_a_later_sequencer_comes_first() -> None:
    nodes = make_nodes()
    nodes[3].answer(Seal(LOG, 9))
    assert run(nodes) == Preempted(9)


def test_there_may_be_nobody_to_fence() -> None:
    assert run(make_nodes(), last_clean=4, silent=[6, 7, 8]) == {}


def test_who_has_copies_of_the_epoch_that_was_just_taken_is_named() -> None:
    nodes = make_nodes()
    nodes[3].answer(Store(LOG, Record(make(5, 2), 3, Kind.DATA, 7, (3,), 1, 0, batch=b"old")))
    assert run(nodes) == {3: make(5, 4)}
