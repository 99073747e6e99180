"""The tables of repair, row by row."""

from __future__ import annotations

from dataclasses import replace

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
    sealed,
    stream,
    with_newcomer,
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
from loomlog.core.ordered.situation import Situation
from loomlog.types import NodeId, Report


def runs(newcomer: Report | None = None, **fields: object) -> StreamRounds:
    return changed(with_newcomer(stream(*HEALTHY, sealed=False), newcomer), **fields)


BIG = repair.FAR_ENTRIES + 2
LARGE = changed(stream(*(says(SEALED, end=BIG) for _ in range(3))), committed_llsn_end=BIG)
NOT_DURABLE = says(SEALED)._replace(stored_high_watermark=1)
NONE_JOINS = {"joining": None, "leaving": None}
NO_SPARE = "no spare node for another replica"
WITHOUT_NODE_1 = "sealed: waiting for node 1"
GONE = Fleet(dead={4}, lost_ones={4})
AWAY = Fleet(dead={4})
LOST = Fleet(losses=True)
LEFT = (says(SEALING, end=4), says(SEALING, end=5), says(SEALING, end=5))

GIVEN_UP = Fleet(dead={2, 3}, lost_ones={2, 3}, losses=True, given_up_ones={2, 3})


def given_up(newcomer: Report | None = None, **fields: object) -> StreamRounds:
    """Node 1 has an older copy, and an operator gave up the others."""
    found = with_newcomer(stream(says(SEALING, end=5), *ALL_SEALED[1:]), newcomer)
    return changed(found, leaving=None, **fields)


RUNNING_ROWS = [
    (runs(wanted_running=False), Fleet(), BeginSeal("an operator asked for it")),
    (runs(leaving=None), Fleet(), DropJoining(4, "it is not needed any more")),
    (runs(), GONE, DropJoining(4, "it fell silent")),
    (runs(), AWAY, Wait("running; waiting for node 4, which joins")),
    (runs(), Fleet(), Join(4)),
    (runs(says(SEALING, end=1), committed_llsn_end=BIG), Fleet(), Synchronise(3, 4)),
    (runs(says(SEALING)), Fleet(), BeginSeal("node 4 joins")),
    (runs(joining=None), Fleet(), Wait(f"running; {NO_SPARE}")),
    (
        runs(joining=None),
        Fleet(best=5, moves=repair.MOVES_MAX),
        Wait("running; waits until other streams have moved"),
    ),
    (runs(joining=None), Fleet(best=5), Join(5)),
    (runs(joining=None, wanted_replicas=2), Fleet(), BeginSeal("node 1 leaves")),
    (runs(**NONE_JOINS, wanted_primary=2), Fleet(), BeginSeal("node 2 becomes the primary")),
    (runs(**NONE_JOINS), Fleet(), Wait("running")),
]

SEALED_ROWS = [
    (
        changed(stream(says(SEALING), *MOST_SEALED), sealed_at=0),
        Fleet(),
        BeginSeal("where it ends is not recorded"),
    ),
    (stream(says(RUNNING), *MOST_SEALED), Fleet(), BeginSeal("node 1 runs in epoch 3")),
    (stream(says(SEALING), *MOST_SEALED), Fleet(), SendSeal((1,))),
    (going(sealed_at=12, trimmed=12), Fleet(), Remove()),
    (sealed(leaving=None), Fleet(), DropJoining(4, "it is not needed any more")),
    (sealed(joining=None, wanted_replicas=2), Fleet(), Swap((2, 3))),
    (with_newcomer(LARGE, says(SEALING, end=1)), Fleet(), Unseal()),
    (sealed(says(SEALING, end=5)), Fleet(), Synchronise(3, 4)),
    (stream(None, *MOST_SEALED), Fleet(), Join(1)),
    (stream(says(SEALING, end=5), None, says(SEALING, end=4)), LOST, Join(2)),
    (stream(*LEFT), LOST, Synchronise(2, 1)),
    (given_up(says(SEALING, end=1)), GIVEN_UP, Synchronise(1, 4)),
    (
        changed(with_newcomer(stream(*LEFT[1:], LEFT[1]), says(SEALING, end=5)), leaving=None),
        LOST,
        DropJoining(4, "it is not needed any more"),
    ),
    (
        stream(says(SEALING, end=5), None, None),
        Fleet(dead={2, 3}),
        Wait("sealed: no live replica has every committed entry; node 2, 3 is away"),
    ),
    (
        sealed(NOT_DURABLE),
        Fleet(),
        Wait("sealed: node 4, which joins, writes the last of it"),
    ),
    (sealed(says(SEALED)), Fleet(), Swap((2, 3, 4))),
    (sealed(), GONE, DropJoining(4, "it fell silent")),
    (sealed(), AWAY, Wait("sealed: waiting for node 4, which joins")),
    (sealed(), Fleet(), Join(4)),
    (sealed(**NONE_JOINS, wanted_primary=2), Fleet(), Swap((2, 1, 3))),
    (sealed(**NONE_JOINS), Fleet(), Unseal()),
    (stream(*ALL_SEALED), Fleet(dead={1}), Wait(WITHOUT_NODE_1)),
    (
        stream(*ALL_SEALED),
        Fleet(dead={1}, lost_ones={1}),
        Wait(f"{WITHOUT_NODE_1}; {NO_SPARE}"),
    ),
    (stream(*ALL_SEALED), Fleet(dead={1}, lost_ones={1}, best=5), Join(5)),
]


@pytest.mark.parametrize(
    ("rule", "found", "cluster", "action"),
    [
        pytest.param(rule, *row, id=f"{state}: {rule.when}")
        for state, rules, rows in (
            ("running", repair.RUNNING_RULES, RUNNING_ROWS),
            ("sealed", repair.SEALED_RULES, SEALED_ROWS),
        )
        for rule, row in zip(rules, rows, strict=True)
    ],
)
def test_every_rule_decides_where_no_earlier_one_applies(
    rule: repair.Rule, found: StreamRounds, cluster: Fleet, action: repair.Action
) -> None:
    assert repair.matching_rule(Situation(found, cluster)) is rule
    assert repair.decide(found, cluster) == action


def test_what_is_left_of_a_lost_stream_is_copied_where_nothing_is_overwritten() -> None:
    rest = says(SEALING, end=5)
    waits = [
        (stream(*LEFT), Fleet()),  # a node may come back with everything
        (stream(rest, rest, rest), LOST),
        (stream(says(SEALING, end=1), None, None), LOST),  # nothing is left
        (stream(rest, rest, says(SEALING, end=2, damaged=True)), LOST),
        (stream(rest, rest, says(SEALING, end=2)._replace(uncommitted_llsn_length=6)), LOST),
    ]
    for found, cluster in waits:
        assert isinstance(decide(found, cluster), Wait), found
    assert decide(stream(says(SEALING, end=7, damaged=True), *LEFT[:2]), LOST) == Synchronise(3, 2)


def test_newcomers_take_the_places_of_nodes_that_never_come_back() -> None:
    """Newcomers get what is left, or nothing: it stays lost, and counts as such."""
    spare = replace(GIVEN_UP, best=4)
    assert decide(given_up(joining=None), spare) == Join(4)
    assert decide(given_up(), GIVEN_UP) == Join(4)
    assert decide(given_up(says(SEALING, epoch=1, end=1)), GIVEN_UP) == SendSeal((4,))
    assert decide(given_up(says(SEALING, end=5)), GIVEN_UP) == Swap((1, 3, 4))
    torn = says(SEALING, end=5)._replace(stored_high_watermark=1)
    assert isinstance(decide(given_up(torn), GIVEN_UP), Wait)
    all_gone = Fleet(dead={1, 2, 3}, lost_ones={1, 2, 3}, losses=True, given_up_ones={1, 2, 3})
    assert decide(given_up(says(SEALING, end=1)), all_gone) == Swap((2, 3, 4))
    assert decide(given_up(joining=None), replace(all_gone, best=4)) == Join(4)
    waits = decide(given_up(joining=None), GIVEN_UP)
    assert waits == Wait(f"sealed: node 2, 3 was given up; {NO_SPARE}")


def test_a_replica_of_a_stream_that_lost_entries_can_leave_its_node() -> None:
    rest = says(SEALING, end=5)
    leaving = changed(stream(rest, rest, rest), leaving=1)
    spare = replace(LOST, best=4)
    assert decide(leaving, spare) == Join(4)
    lacks = with_newcomer(stream(rest, rest, rest), says(SEALING, end=2))
    assert decide(lacks, LOST) == Synchronise(1, 4)
    assert decide(with_newcomer(stream(rest, rest, rest), rest), LOST) == Swap((2, 3, 4))
    short = changed(stream(rest, rest), replicas=(1, 2))
    assert decide(short, spare) == Join(4)
    assert decide(changed(short, joining=4, reports={1: rest, 2: rest, 4: rest}), LOST) == (
        Swap((1, 2, 4))
    )
    nothing = says(SEALING, end=1)  # is left on two that are there, and the third leaves
    emptied = changed(stream(nothing, None, None), leaving=3)
    assert decide(emptied, spare) == Join(4)
    joined = with_newcomer(stream(nothing, None, None), nothing)
    assert decide(changed(joined, leaving=3), LOST) == Swap((1, 2, 4))
    waits = decide(leaving, LOST)
    assert waits == Wait(f"sealed: no live replica has every committed entry; {NO_SPARE}")


def test_a_newcomer_with_more_than_the_replicas_of_a_lost_stream_shares_it() -> None:
    """Node 2 was given up and is back with less than the newcomer has, which nobody reads from."""
    rest, more = says(SEALING, end=5), says(SEALING, end=7)
    found = changed(with_newcomer(stream(rest, rest, rest), more), leaving=None)
    assert decide(found, LOST) == Synchronise(4, 1)
    has_others = rest._replace(uncommitted_llsn_length=4)  # a copy would overwrite these
    found = changed(with_newcomer(stream(*[has_others] * 3), more), leaving=None)
    assert decide(found, LOST) == Swap((1, 2, 3, 4))


def test_nobody_takes_the_place_of_a_node_while_another_may_have_everything() -> None:
    """Node 1 is only away, or the nodes have not been given up."""
    for cluster in (
        Fleet(dead={1, 2, 3}, lost_ones={1, 2, 3}, given_up_ones={2, 3}, best=4),
        Fleet(dead={2, 3}, lost_ones={2, 3}, losses=True, best=4),
    ):
        assert isinstance(decide(given_up(joining=None), cluster), Wait)


def test_a_stream_that_never_had_an_entry_goes_on_elsewhere() -> None:
    nodes: set[NodeId] = {1, 2, 3}
    gone = Fleet(dead=nodes, lost_ones=nodes, given_up_ones=nodes, best=4)
    empty = changed(stream(None, None, None), committed_llsn_end=1)
    assert decide(empty, gone) == Join(4)
    filled = with_newcomer(empty, says(SEALED, end=1))
    assert decide(changed(filled, leaving=None), gone) == Swap((2, 3, 4))
    for waits in (replace(gone, given_up_ones={2, 3}), gone):
        found = empty if waits is not gone else changed(empty, heard=False)
        assert isinstance(decide(found, waits), Wait)


def test_a_node_that_is_there_without_its_replica_is_not_away() -> None:
    found = stream(says(SEALING, end=5), None, None)
    action = decide(found, Fleet(dead={2, 3}, registered={3}))
    assert isinstance(action, Wait)
    assert "node 2 is away; node 3 has no replica of it any more" in action.reason


def test_a_replica_that_cannot_be_opened_is_not_called_gone() -> None:
    found = stream(says(SEALING, end=5), None, None)
    action = decide(found, Fleet(dead={2, 3}, registered={2, 3}, unopened={3}))
    assert isinstance(action, Wait)
    assert "node 2 has no replica of it any more; the replica on node 3 cannot be" in action.reason
    assert "`loom status` says what is wrong with it" in action.reason


def test_a_node_that_hangs_is_away_though_it_is_connected() -> None:
    hangs = Fleet(dead={2, 3}, registered={2})
    action = decide(stream(says(SEALING, end=5), says(SEALED), None), hangs)
    assert action == Wait("sealed: no live replica has every committed entry; node 2, 3 is away")


def test_a_primary_that_is_one_already_or_has_left_is_not_chosen_again() -> None:
    for node in (1, 5):
        assert decide(runs(**NONE_JOINS, wanted_primary=node)) == Wait("running")
        assert decide(sealed(**NONE_JOINS, wanted_primary=node)) == Unseal()


def test_a_running_stream_with_too_few_replicas_says_how_many_it_has() -> None:
    found = runs(joining=None, leaving=None, wanted_replicas=4)
    assert decide(found) == Wait(f"running; has 3 of 4 replicas; {NO_SPARE}")


def test_a_node_that_came_back_without_its_replica_seals_the_stream() -> None:
    found = stream(None, *HEALTHY[1:], sealed=False)
    assert decide(found) == Wait("running")  # it may just not have reported yet
    action = decide(found, Fleet(registered={1}))
    assert action == BeginSeal("node 1 came back without its replica")
