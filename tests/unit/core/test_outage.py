"""The cost for a log if nodes are away."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from loomlog.core.chained.chain import first_projection
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.outage import outage as chained_outage
from loomlog.core.chained.upkeep import ChainsStanding
from loomlog.core.copyset.log_state import first_state, take_epoch
from loomlog.core.copyset.messages import EpochEnd, LogState
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.core.copyset.outage import copies_max
from loomlog.core.copyset.outage import outage as copyset_outage
from loomlog.core.ordered.outage import StreamCopies
from loomlog.core.ordered.outage import outage as ordered_outage
from loomlog.core.outage import LogOutage, PartOutage, of_log
from loomlog.types import NodeId

# ---- a log


def test_a_log_is_as_well_as_its_worst_part() -> None:
    parts = [PartOutage("stream 1", 3, 2), PartOutage("stream 2", 3, 1, "none runs")]
    assert of_log(parts) == LogOutage(3, 1, "none runs", "")
    assert of_log([]) is None


def test_reads_stop_where_no_copy_is_left() -> None:
    outage = of_log([PartOutage("stream 1", 3, 0), PartOutage("stream 2", 3, 3)])
    assert outage is not None
    assert outage.reads_stop == "stream 1 has no copy left of some entries"
    assert outage.is_affected


def test_a_log_with_all_its_copies_is_not_affected() -> None:
    outage = of_log([PartOutage("stream 1", 3, 3)])
    assert outage is not None
    assert not outage.is_affected


# ---- ordered


def stream(
    number: int, *replicas: NodeId, has_entries: bool = True, takes_appends: bool = True
) -> StreamCopies:
    whole = frozenset(replicas)
    return StreamCopies(number, replicas, whole, len(replicas), has_entries, takes_appends)


def test_a_stream_that_is_not_hit_takes_the_appends() -> None:
    streams = [stream(1, 1, 2, 3), stream(2, 4, 5, 6)]
    first, second = ordered_outage(streams, {1, 2, 3}, {4}, 2)
    assert (first.copies_left, second.copies_left) == (0, 3)
    assert first.appends_stop == second.appends_stop == ""


def test_a_log_without_a_stream_gets_one_on_enough_nodes() -> None:
    assert not ordered_outage([stream(1, 1, 2, 3)], {1}, {1, 2, 3}, 2)[0].appends_stop
    (hit,) = ordered_outage([stream(1, 1, 2, 3)], {1, 2}, {1, 2, 3}, 2)
    assert hit.copies_left == 1
    assert "needs 2 nodes of 1" in hit.appends_stop


def test_a_sealed_stream_takes_no_appends_and_an_ended_segment_needs_none() -> None:
    sealed = stream(1, 1, 2, takes_appends=False)
    assert ordered_outage([sealed], set(), {1}, 2)[0].appends_stop
    assert not ordered_outage([sealed], set(), {1}, None)[0].appends_stop


def test_a_replica_that_lacks_entries_is_no_copy_and_an_empty_stream_needs_none() -> None:
    behind = stream(1, 1, 2, 3)._replace(whole=frozenset({1, 2}))
    assert ordered_outage([behind], {2}, {1, 3}, 2)[0].copies_left == 1
    empty = stream(1, 1, 2, 3, has_entries=False)
    assert ordered_outage([empty], {1, 2, 3}, {4, 5}, 2)[0].copies_left == 3


# ---- chained


def chains(*nodes: list[NodeId], least: int = 2) -> ChainsStanding:
    projection = first_projection(7, list(nodes), birth=1, sequencer=1, least=least)
    return ChainsStanding(ChainedRecord(7, 1, 1, projection, made=True), 3)


def test_every_chain_of_a_log_needs_enough_replicas() -> None:
    first, second = chained_outage(chains([1, 2, 3], [2, 3, 4]), {1, 4})
    assert (first.copies_left, second.copies_left) == (2, 2)
    assert not first.appends_stop
    first, second = chained_outage(chains([1, 2, 3], [3, 4, 5]), {1, 2})
    assert first.appends_stop == "chain 0 has 1 of the 2 replicas that it needs"
    assert not second.appends_stop
    assert not first.reads_stop


def test_chains_that_are_closed_or_lost_their_blocks() -> None:
    standing = chains([1, 2, 3])
    record = standing.record
    closed = replace(record, projection=record.projection._replace(closed=True))
    assert not chained_outage(standing._replace(record=closed), {1, 2})[0].appends_stop
    unfit = standing._replace(unfit=frozenset([record.projection.chains[0][2]]))
    assert chained_outage(unfit, {1})[0].copies_left == 1


# ---- copyset


def members(count: int, racks: int = 0) -> tuple[Member, ...]:
    return tuple(
        Member(node, f"rack={node % racks}" if racks else "") for node in range(1, count + 1)
    )


def state(count: int = 5, replication: int = 3, racks: int = 0) -> LogState:
    return take_epoch(first_state(members(count, racks), replication), 1, members(count, racks))


@pytest.mark.parametrize("racks", [0, 2, 3])
@pytest.mark.parametrize("replication", [1, 2, 3])
def test_no_copyset_has_more_copies_on_nodes_than_is_said(replication: int, racks: int) -> None:
    """Compare with all copysets that there are."""
    metadata = EpochMetadata(1, members(6, racks), replication)
    everyone = list(metadata.shards)
    copysets = [
        set(nodes)
        for nodes in combinations(everyone, replication)
        if metadata.can_hold_a_copyset(nodes)
    ]
    for count in range(7):
        for nodes in combinations(everyone, count):
            most = max(len(copyset.intersection(nodes)) for copyset in copysets)
            assert copies_max(metadata, nodes) == most


def test_appends_need_nodes_for_a_copyset() -> None:
    (part,) = copyset_outage(7, state(), {2, 3}, set(), {})
    assert (part.copies_left, part.appends_stop) == (1, "")
    (part,) = copyset_outage(7, state(), {2, 3}, {4}, {})
    assert part.appends_stop == "2 of its nodes can store copies, and an entry needs 3"


def test_appends_continue_with_as_many_copies_as_a_log_needs() -> None:
    three = replace(state(count=3), least=2)
    (part,) = copyset_outage(7, three, {3}, set(), {})
    assert (part.copies_left, part.appends_stop) == (2, "")
    (part,) = copyset_outage(7, three, {3}, {2}, {})
    assert part.appends_stop == "1 of its nodes can store copies, and an entry needs 2"
    short = replace(three, history=(three.history[0].with_short((1, 2)),))
    (part,) = copyset_outage(7, short, {1}, set(), {})
    assert (part.copies_left, part.appends_stop) == (1, "")


def test_a_lost_sequencer_needs_nodes_that_end_its_epoch() -> None:
    small = state(count=3, replication=2)
    assert not copyset_outage(7, small, {3}, set(), {})[0].appends_stop
    assert not copyset_outage(7, small, {1}, set(), {})[0].appends_stop
    moved = take_epoch(small, 1, members(6)[3:])  # epochs of nodes 1 to 3 are not recovered
    stop = copyset_outage(7, moved, {1, 2}, set(), {})[0].appends_stop
    assert stop == "node 1 sequences it, and its epoch needs node 1, node 2 to end"


def test_copies_of_older_nodesets_count_and_lost_ones_do_not() -> None:
    moved = take_epoch(state(count=3, replication=2), 4, members(6)[3:])
    older, newer = copyset_outage(7, moved, {1, 2}, set(), {})
    assert (older.copies_left, newer.copies_left) == (0, 2)
    assert older.reads_stop
    older, newer = copyset_outage(7, moved, {1}, set(), {4: 2})
    assert (older.copies_left, newer.copies_left) == (1, 1)


def test_short_copysets_of_epochs_without_records_cost_nothing() -> None:
    three = replace(state(count=3), least=2)
    short = replace(three, history=(three.history[0].with_short((1, 2)),))
    renewed = take_epoch(short, 1, members(3))
    for last, left in ((1, 2), (0, 3)):
        end = EpochEnd(short.epoch, 0, last, renewed.epoch, 1)
        ended = replace(renewed, last_clean=short.epoch, ends=(end,))
        older, newer = copyset_outage(7, ended, set(), set(), {})
        assert (older.copies_left, newer.copies_left) == (left, 3)
