"""The choice of a log's next nodeset, and how operators change it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loomlog.core.copyset.log_state import first_state, take_epoch
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import Member
from loomlog.core.copyset.nodeset_choice import (
    NodesetAim,
    fresh_nodeset,
    has_shrunk,
    last_choice,
    next_nodeset,
    why_not_narrowed,
    without,
)
from loomlog.core.copyset.rebuild.plan import widened

LOG = 7
ANY = NodesetAim()


def members(*nodes: int) -> tuple[Member, ...]:
    return tuple(map(Member, nodes))


def started(*nodes: int, replication: int = 2) -> LogState:
    """Return a log on these nodes, by default 1 to 3."""
    nodeset = members(*(nodes or (1, 2, 3)))
    return take_epoch(first_state(nodeset, replication), 1, nodeset)


def test_a_nodeset_stays_while_all_its_nodes_are_fit() -> None:
    state = started()
    assert next_nodeset(LOG, state, members(1, 2, 3, 4, 5), 3, ANY) == members(1, 2, 3)


def test_it_grows_when_there_are_more_nodes() -> None:
    assert set(next_nodeset(LOG, started(), members(1, 2, 3, 4), 20, ANY)) == set(
        members(1, 2, 3, 4)
    )


def test_others_take_the_place_of_those_that_are_gone() -> None:
    assert set(next_nodeset(LOG, started(), members(2, 3, 4), 3, ANY)) == set(members(2, 3, 4))
    assert set(next_nodeset(LOG, started(), members(2, 3), 3, ANY)) == set(members(2, 3))


def test_it_stays_when_the_others_are_too_few() -> None:
    assert next_nodeset(LOG, started(), members(3), 3, ANY) == members(1, 2, 3)


def test_a_node_that_moved_counts_where_it_is() -> None:
    moved = (Member(1, "rack=b"), *members(2, 3))
    assert set(next_nodeset(LOG, started(), moved, 3, ANY)) == set(moved)


def test_whether_it_has_become_smaller() -> None:
    state = take_epoch(started(), 1, members(2, 3))
    assert not has_shrunk(started(), ANY, 0)
    assert not has_shrunk(started(), ANY, 3)
    assert has_shrunk(started(), ANY, 4)
    assert has_shrunk(state, ANY, 0)
    assert has_shrunk(state, ANY, 3)
    assert not has_shrunk(state, ANY, 2)
    assert not has_shrunk(take_epoch(state, 1, members(1, 2, 4)), ANY, 0)
    assert has_shrunk(started(1, 2, replication=3), ANY, 0), "it holds no copyset"


def test_a_nodeset_that_was_widened_for_a_rebuilding_was_no_larger_one() -> None:
    before = started(1, 2, 3, replication=3)
    after = take_epoch(before, 1, members(1, 2, 4))
    aim = NodesetAim().begun(before, after)
    rebuilt = widened(replace(after, last_clean=1), {3: 1}, members(1, 2, 4, 5))
    assert len(rebuilt.history[0].nodeset) == 4, "one more while node 3 is rebuilt"
    assert not has_shrunk(rebuilt, aim, 0)
    smaller = take_epoch(rebuilt, 1, members(1, 2))
    assert has_shrunk(smaller, aim.begun(rebuilt, smaller), 0)


# ---- operators


def test_nodes_join_and_the_others_stay() -> None:
    state, usable = started(), members(*range(1, 10))
    aim = NodesetAim(3).widen(members(1, 2, 3), members(7, 9))
    nodeset = next_nodeset(LOG, state, usable, 3, aim)
    assert set(nodeset) == set(members(1, 2, 3, 7, 9))
    after = take_epoch(state, 1, nodeset)
    assert next_nodeset(LOG, after, usable, 3, aim.begun(state, after)) == nodeset, "once"
    assert not has_shrunk(after, aim, 3)
    assert not has_shrunk(after, aim, 0)
    assert {7, 9} < {m.node for m in fresh_nodeset(LOG, after, usable, 3, aim)}, "and a rebalance"


def test_a_node_that_joined_is_back_in_the_nodeset_when_it_can_be() -> None:
    state = started(1, 2, 3, 4)
    aim = NodesetAim(3).widen(members(1, 2, 3), members(4))
    away = next_nodeset(LOG, state, members(1, 2, 3, 5), 3, aim)
    assert set(away) == set(members(1, 2, 3, 5)), "another one takes its place"
    without_it = take_epoch(state, 1, away)
    assert not aim.is_met(away, members(1, 2, 3, 4, 5))
    assert aim.is_met(away, members(1, 2, 3, 5)), "as far as it can be"
    assert Member(4) in next_nodeset(LOG, without_it, members(1, 2, 3, 4, 5), 3, aim)


@pytest.mark.parametrize("size", [4, 20])
def test_a_node_that_left_stays_away_and_no_other_takes_its_place(size: int) -> None:
    state, usable = started(1, 2, 3, 4), members(1, 2, 3, 4, 5)
    aim = NodesetAim(4).narrow(members(1, 2, 3, 4), [2])
    assert not aim.is_met(members(1, 2, 3, 4), usable)
    nodeset = next_nodeset(LOG, state, members(1, 2, 3, 4), size, aim)
    assert set(nodeset) == set(members(1, 3, 4))
    after = take_epoch(state, 1, nodeset)
    assert not has_shrunk(after, aim.begun(state, after), 0 if size == 20 else size)
    assert Member(2) not in next_nodeset(LOG, after, usable, size, aim)
    again = aim.widen(nodeset, members(2))
    assert set(next_nodeset(LOG, after, usable[:4], size, again)) == set(members(1, 2, 3, 4))
    assert again == NodesetAim(4, joined=(2,))


def test_a_node_that_left_is_used_again_if_there_are_too_few_others() -> None:
    state, aim = started(1, 3), NodesetAim(3).narrow(members(1, 2, 3), [2])
    nodeset = next_nodeset(LOG, state, members(2, 3), 3, aim)
    assert set(nodeset) == set(members(2, 3)), "node 1 is drained"
    after = take_epoch(state, 1, nodeset)
    assert next_nodeset(LOG, after, members(2, 3), 3, aim) == nodeset, "once"
    assert set(next_nodeset(LOG, after, members(2, 3, 4), 3, aim)) == set(members(3, 4))


def test_all_shards_of_a_node_join_and_leave() -> None:
    two = (Member(4), Member(4 | 1 << 32))
    usable = (*members(1, 2, 3), *two)
    aim = NodesetAim(3).widen(members(1, 2, 3), two)
    nodeset = next_nodeset(LOG, started(), usable, 3, aim)
    assert set(nodeset) == set(usable)
    assert aim.narrow(nodeset, [4]) == NodesetAim(3, left=(4,))
    assert without(nodeset, [4]) == tuple(m for m in nodeset if m.node < 4)


def test_a_nodeset_is_not_narrowed_below_what_a_copyset_needs() -> None:
    assert why_not_narrowed(started(), [3]) == ""
    why = why_not_narrowed(started(), [2, 3])
    assert why == "its entries have 2 copies, and 1 node would be left for them"
    nodeset = started().history[-1].nodeset
    aim = NodesetAim(3).narrow(nodeset, [2, 3])
    assert next_nodeset(LOG, started(), nodeset, 3, aim) == nodeset, "nor by chance"


def test_the_node_that_leaves_is_the_one_that_would_be_chosen_last() -> None:
    nodeset = members(1, 2, 3, 4)
    last = last_choice(LOG, nodeset)
    assert set(fresh_nodeset(LOG, started(*range(1, 5)), nodeset, 3, ANY)) == {
        *without(nodeset, [last])
    }


def test_a_wish_that_is_repeated_before_it_came_true_counts_once() -> None:
    nodeset = members(1, 2, 3)
    joins = NodesetAim(3).widen(nodeset, members(7))
    assert joins.widen(nodeset, members(7)) == joins
    assert joins.widen(nodeset, members(7, 8)) == NodesetAim(3).widen(nodeset, members(7, 8))
    leaves = NodesetAim(3).narrow(nodeset, [3])
    assert leaves.narrow(nodeset, [3]) == leaves
    assert leaves.narrow(nodeset, [3]).sized(3) == 2
    assert leaves.widen(nodeset, members(3)) == NodesetAim(3, joined=(3,)), "taken back in time"
