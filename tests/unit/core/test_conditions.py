"""Conditions: their order, and which entries count as having fewer copies than wanted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from loomlog.core.conditions import (
    Condition,
    Kind,
    Severity,
    Shortage,
    in_order,
    severity_of,
    under_replicated,
)
from loomlog.core.copyset.conditions import LogView
from loomlog.core.copyset.conditions import conditions as of_copysets
from loomlog.core.copyset.messages import Acknowledged, EpochEnd, LogState
from loomlog.core.copyset.nodeset import EpochMetadata, Exclusions, Member, Trouble, shard_of
from loomlog.core.copyset.record import OFFSET_MAX, make
from loomlog.core.ordered.rounds import StreamRounds
from loomlog.core.ordered.shortage import is_readable, shortage
from loomlog.types import ReplicaState, Report
from loomlog.wire.conditions import condition_from_wire, condition_to_wire


def test_the_most_urgent_comes_first() -> None:
    kinds = (Kind.REPAIR, Kind.NODE_AWAY, Kind.DATA_LOST, Kind.CLOCK_SKEW)
    ordered = in_order(Condition(kind, "") for kind in kinds)
    assert [condition.kind for condition in ordered] == [
        Kind.DATA_LOST,
        Kind.NODE_AWAY,
        Kind.CLOCK_SKEW,
        Kind.REPAIR,
    ]
    assert {severity_of(kind) for kind in Kind} == set(Severity)


def test_every_kind_is_documented_with_its_severity() -> None:
    page = (Path(__file__).parents[3] / "docs/operations.md").read_text()
    for kind in Kind:
        assert f"| `{kind}` | {severity_of(kind)} |" in page, kind


def test_conditions_survive_the_wire_and_unknown_kinds_are_kept() -> None:
    condition = Condition(
        Kind.VOLUME_FULL, "is full", "free space", node=2, volume="/a", stream=4, records=0, bytes=7
    )
    message = condition_to_wire(condition)
    assert condition_from_wire(message) == condition
    message.kind = "of a newer version"
    assert condition_from_wire(message).kind is Kind.OTHER


def test_what_no_replica_has_reported_since_a_restart_is_unknown_not_none() -> None:
    stream = StreamRounds(1, (1, 2), 1, sealed=False, heard=False, wanted_replicas=2)
    short = shortage(stream, 1, lambda node: True, None)
    assert short is not None
    assert (short.records, short.bytes) == (None, None)
    assert not is_readable(stream, lambda node: True)


def test_shortages_of_a_log_are_summed() -> None:
    assert under_replicated("events", [Shortage(0, 0, ["nothing lacks copies"])]) == []
    away = "node 1 is away"
    short = [Shortage(2, 100, [away]), Shortage(3, 50, ["node 2 is away", away], "start it")]
    (condition,) = under_replicated("events", short)
    assert (condition.log, condition.records, condition.bytes) == ("events", 5, 150)
    assert condition.sentence == (
        "up to 5 entries have fewer copies than wanted: node 1 is away; node 2 is away: start it"
    )
    (condition,) = under_replicated("events", [*short, Shortage(None, None, ["node 2 is away"])])
    assert (condition.records, condition.bytes) == (None, None)


# ---- ordered


def stream(*ends: int, committed: int = 11, wanted: int = 3) -> StreamRounds:
    """A stream with ten entries whose replicas have written up to these LLSNs, exclusively."""
    nodes = tuple(range(1, len(ends) + 1))
    found = StreamRounds(7, nodes, 1, sealed=False, wanted_replicas=wanted)
    found.committed_llsn_end = committed
    found.reports = {
        node: Report(7, 1, end - 1, 0, 1, ReplicaState.RUNNING, 0, resend=False)
        for node, end in zip(nodes, ends, strict=True)
    }
    return found


def everywhere(node: int) -> bool:
    return True


def test_an_ordered_stream_with_all_replicas_has_all_copies() -> None:
    assert shortage(stream(11, 11, 12), 11, everywhere, 1000) is None
    assert shortage(stream(1, 1, committed=1), 1, everywhere, 0) is None, "it has no entries"


@pytest.mark.parametrize(
    ("found", "away", "records"),
    [
        (stream(11, 11), (), 10),  # of two instead of three replicas
        (stream(11, 11, 11), (2,), 10),
        (stream(11, 8, 11), (), 3),
        (stream(11, 8, 9), (), 3),
    ],
)
def test_entries_of_an_ordered_stream_that_a_replica_lacks_are_counted(
    found: StreamRounds, away: Collection[int], records: int
) -> None:
    short = shortage(found, 11, lambda node: node not in away, 1000)
    assert short is not None
    assert (short.records, short.bytes) == (records, 100 * records)
    assert is_readable(found, lambda node: node not in away)


def test_replicas_that_are_damaged_or_not_reported_do_not_count() -> None:
    found = stream(11, 11, 11)
    found.reports[1] = found.reports[1]._replace(damaged=True)
    short = shortage(found, 11, everywhere, 0)
    assert short is not None
    assert "on node 1 is damaged" in short.reasons[0]
    found = stream(11, 11, 11)
    del found.reports[1]
    short = shortage(found, 11, everywhere, 0)
    assert short is not None
    assert "node 1 has no replica" in short.reasons[0]
    assert not is_readable(found, lambda node: node == 1)


def test_entries_that_are_lost_are_not_said_to_lack_copies() -> None:
    assert shortage(stream(6, 6, 6), 6, everywhere, 0) is None
    assert shortage(stream(1, 1, 1), 1, everywhere, 0) is None
    short = shortage(stream(6, 6, 2), 6, everywhere, 1000)
    assert short is not None
    assert short.records == 4


def test_a_stream_that_is_trimmed_lacks_nothing() -> None:
    found = stream(11, 11)
    found.sealed_at, found.trimmed = 50, 50
    assert shortage(found, 11, everywhere, 0) is None


# ---- copyset

NODESET = tuple(map(Member, (1, 2, 3)))


def of_copyset(state: LogState, alive: Collection[int] = (1, 2, 3), **lost: int) -> list[Condition]:
    """The conditions of a log; `n2=4`: node 2 lost its copies up to epoch 4."""
    losses = {int(node[1:]): epoch for node, epoch in lost.items()}
    sizes = dict.fromkeys(alive, 800)
    return of_copysets(
        LogView("events", 7, state, state.tail, True, alive, losses, {}, {}, "", "", sizes)
    )


def state(*, last_clean: int = 2, trimmed: int = 0) -> LogState:
    """A log with 5 entries in epoch 1, 4 in epoch 2, and 3 so far in epoch 3."""
    ends = (EpochEnd(1, 5, 5, 2, 0), EpochEnd(2, 4, 4, 3, 0))[:last_clean]
    told = (Acknowledged(3, 3, final=False),)
    history = (EpochMetadata(1, NODESET, 2),)
    return LogState(3, 1, history, last_clean, make(2, 4), trimmed=trimmed, ends=ends, told=told)


def test_a_copyset_log_with_all_nodes_has_all_copies() -> None:
    assert of_copyset(state()) == []


def test_entries_of_epochs_with_nodes_that_are_away_or_empty_are_counted() -> None:
    (condition,) = of_copyset(state(), alive=(1, 2))
    assert (condition.kind, condition.records) == (Kind.UNDER_REPLICATED, 12)
    assert condition.bytes == 800 * 3 // 2, "three shards, two copies of each entry"
    (condition,) = of_copyset(state(), n2=1)
    assert (condition.records, condition.text[-22:]) == (5, "node 2 lost its copies")
    assert condition.bytes == 1200 * 5 // 12
    (condition,) = of_copyset(state(trimmed=make(1, 3)), n2=2)
    assert condition.records == 2 + 4


def test_a_newest_epoch_without_entries_yet_leaves_the_counts_known() -> None:
    (condition,) = of_copyset(replace(state(), told=()), alive=(1, 2))
    assert (condition.records, condition.bytes) == (9, 1200)


def test_an_epoch_whose_end_is_lost_counts_up_to_what_was_found() -> None:
    first, second = state().ends
    ends = (first, replace(second, exact=False))
    found = replace(state(), ends=ends, tail=make(2, OFFSET_MAX))
    assert of_copyset(found, alive=(1, 2))[0].records == 12


def test_nothing_is_counted_that_is_not_known() -> None:
    found = state(last_clean=1)
    view = LogView("events", 7, found, 0, False, (1, 2), {}, {}, {}, "", "", {1: 800, 2: 800})
    condition = of_copysets(view)[0]
    assert (condition.kind, condition.records) == (Kind.UNDER_REPLICATED, None)
    assert condition.bytes is None
    view = LogView("events", 7, state(), 0, True, (1, 2), {}, {}, {}, "", "")
    condition = of_copysets(view)[0]
    assert (condition.records, condition.bytes) == (12, None), "no shard reported its size"


def test_second_shards_of_nodes_are_named_as_people_see_them() -> None:
    shards = (1, shard_of(2, 1), 3)
    history = (EpochMetadata(1, tuple(map(Member, shards)), 2),)
    (condition,) = of_copyset(replace(state(), history=history), alive=(1, 3))
    assert condition.text.endswith("node 2/1 is away")


def test_losses_that_are_trimmed_or_of_older_epochs_than_any_entry_are_over() -> None:
    assert of_copyset(state(trimmed=make(1, 5)), n2=1) == []


def test_a_copyset_log_with_too_few_nodes_waits() -> None:
    for last_clean in (1, 2):
        kinds = [each.kind for each in of_copyset(state(last_clean=last_clean), alive=(1,))]
        assert kinds == [Kind.UNDER_REPLICATED, Kind.APPENDS_WAIT, Kind.READS_WAIT]


def test_entries_wait_for_nodes_that_may_have_all_their_copies() -> None:
    older = EpochMetadata(1, tuple(map(Member, (1, 2, 3, 4))), 2)
    newer = EpochMetadata(3, tuple(map(Member, (3, 4, 5))), 2)
    found = replace(state(), history=(older, newer))
    _, condition = of_copyset(found, alive=(3, 4, 5))
    assert condition.kind is Kind.READS_WAIT
    assert condition.text.endswith("on nodes that are away: start node 1, node 2")
    kinds = [each.kind for each in of_copyset(found, alive=(2, 3, 4, 5))]
    assert kinds == [Kind.UNDER_REPLICATED], "the other copy is on another node"
    *_, condition = of_copyset(found, alive=(1, 3, 4, 5), n1=2)
    assert condition.kind is Kind.READS_WAIT
    assert condition.text.endswith("start node 2"), "what node 1 lost, only node 2 may have"
    trimmed = replace(found, trimmed=make(3, 1))
    assert of_copyset(trimmed, alive=(3, 4, 5)) == []


def test_two_lost_nodes_may_have_had_all_copies() -> None:
    kinds = {condition.kind for condition in of_copyset(state(), n1=1, n2=1)}
    assert kinds == {Kind.UNDER_REPLICATED, Kind.DATA_LOST}


def test_a_loss_that_stays_is_no_shortage_once_the_rest_has_its_copies() -> None:
    losses = {1: 1, 2: 1}

    def found(restored: Collection[int], alive: Collection[int] = (1, 2, 3)) -> list[Condition]:
        view = LogView("events", 7, state(), state().tail, True, alive, losses, {}, {}, "", "")
        return of_copysets(replace(view, restored=restored))

    assert [each.kind for each in found([1, 2])] == [Kind.DATA_LOST]
    short, _ = found([1])
    assert (short.kind, short.text[-22:]) == (Kind.UNDER_REPLICATED, "node 2 lost its copies")
    short, _ = found([1, 2], alive=(2, 3))
    assert short.text.endswith("node 1 is away")


def test_shards_that_sequencers_avoid_are_conditions_of_their_nodes() -> None:
    exclusions = Exclusions()
    exclusions.refused(2, Trouble.NO_SPACE, now=100.0)
    exclusions.silent([3], EpochMetadata(1, NODESET, 2), now=129.0)
    black, gray = exclusions.conditions(1, now=130.0)
    assert (black.kind, black.node, gray.node) == (Kind.NODE_AVOIDED, 2, 3)
    assert "on node 1 for 30 s more, because shard 2 refused copies" in black.text
    assert gray.text.endswith("was too slow")
    assert [each.node for each in exclusions.conditions(1, now=139.5)] == [2]
    exclusions.down = frozenset([2, 3])
    assert exclusions.conditions(1, now=130.0) == [], "that it is away is a condition already"
