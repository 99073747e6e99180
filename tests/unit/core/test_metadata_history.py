"""Metadata that went back in time contradicts what storage nodes remember."""

from __future__ import annotations

import pytest

from loomlog.core.history import RUNS_MAX, History, Run, Seen, enough, outdated


def begun(history: History, run_id: str, revision: int) -> History:
    return history.begin(run_id).stored_at(revision)


FIRST = begun(History(), "a", 1)
SECOND = begun(FIRST, "b", 10)
THIRD = begun(SECOND, "c", 20)


def test_runs_are_numbered() -> None:
    assert THIRD.newest == Run(3, "c")


@pytest.mark.parametrize(
    "seen",
    [
        Seen(),
        Seen(Run(1, "a"), 9),
        Seen(Run(2, "b"), 19),
        Seen(Run(3, "c"), 20),
        Seen(Run(3, "c"), 1000),
    ],
)
def test_what_belongs_to_the_history_is_no_contradiction(seen: Seen) -> None:
    assert not THIRD.contradiction(seen)


@pytest.mark.parametrize(
    "seen",
    [
        Seen(Run(3, "x"), 20),  # restored from a copy, and begun again
        Seen(Run(4, "d"), 30),  # restored, and not even begun as often
        Seen(Run(2, "b"), 20),  # a copy of a metadata repository that went on
        Seen(Run(1, "a"), 10),  # likewise, and begun twice since
        Seen(Run(1, "x"), 1),
    ],
)
def test_what_a_node_knows_more_is_a_contradiction(seen: Seen) -> None:
    assert THIRD.contradiction(seen)


def test_an_empty_history_contradicts_every_run() -> None:
    assert History().contradiction(Seen(Run(1, "a"), 1))


def test_runs_that_are_too_long_ago_are_not_compared() -> None:
    history = FIRST
    for number in range(2, RUNS_MAX + 3):
        history = begun(history, f"run {number}", 10 * number)
    assert len(history.runs) == RUNS_MAX
    assert not history.contradiction(Seen(Run(1, "long ago"), 5))
    assert history.contradiction(Seen(Run(RUNS_MAX, "x"), 5))


def test_adopted_runs_are_no_contradiction_any_more() -> None:
    known = [Seen(Run(3, "x"), 50), Seen(Run(4, "y"), 70), Seen(Run(2, "b"), 19), Seen()]
    adopted = THIRD.adopt(known)
    assert adopted.newest.number <= 4
    history = begun(adopted, "after", 80)
    assert history.newest == Run(5, "after")
    for seen in [*known, Seen(Run(3, "c"), 79)]:
        assert not history.contradiction(seen)
    assert history.contradiction(Seen(Run(4, "z"), 1))
    assert not begun(history, "later", 90).contradiction(Seen(Run(5, "after"), 89))
    assert begun(history, "later", 90).contradiction(Seen(Run(5, "after"), 90))


@pytest.mark.parametrize(("nodes", "needed"), [(0, 0), (1, 1), (2, 1), (3, 2), (4, 3), (5, 3)])
def test_enough_nodes_share_one_with_any_other_group(nodes: int, needed: int) -> None:
    assert enough(nodes) == needed


NEWEST = Seen(Run(5, "e"), 50)


@pytest.mark.parametrize(
    "known",
    [
        Seen(),
        Seen(Run(3, "c"), 25),
        Seen(Run(5, "e"), 49),
        Seen(Run(5, "x"), 60),  # begun on a copy
    ],
)
def test_a_node_that_lacks_what_another_one_was_told_may_be_an_older_copy(known: Seen) -> None:
    assert outdated({1: known, 2: NEWEST, 3: NEWEST}, THIRD)[1] in (2, 3)


def test_nodes_that_were_told_the_same_are_not_outdated() -> None:
    assert not outdated({1: NEWEST, 2: NEWEST}, THIRD)
    assert not outdated({1: Seen(), 2: Seen()}, THIRD)
    assert list(outdated({1: NEWEST, 2: Seen(Run(4, "d"), 70)}, THIRD)) == [2]


def test_a_node_that_went_on_with_a_copy_does_not_know_what_the_copy_lacks() -> None:
    """Nodes 1 and 2 were restored with the metadata, and opened the gate before node 3 came."""
    forked = outdated({1: THIRD_SEEN, 2: THIRD_SEEN, 3: Seen(Run(2, "x"), 30)}, THIRD)
    assert sorted(forked) == [1, 2, 3]
    ended = outdated({1: THIRD_SEEN, 3: Seen(Run(2, "b"), 20)}, THIRD)
    assert sorted(ended) == [1, 3]


THIRD_SEEN = Seen(Run(3, "c"), 25)
