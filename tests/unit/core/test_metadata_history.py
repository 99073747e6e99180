"""Metadata that went back in time contradicts what storage nodes remember."""

from __future__ import annotations

import pytest

from loomlog.core.history import RUNS_MAX, History, Run, Seen, enough


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
