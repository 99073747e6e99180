"""The conditions under which a copyset log gets another epoch although nobody appends to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import pytest

from loomlog.core.copyset.log_state import can_be_recovered, choose, first_state, take_epoch
from loomlog.core.copyset.nodeset import Authority, EpochMetadata, Member, choose_short, node_of
from loomlog.core.copyset.recovery import Basis, EpochRecovery
from loomlog.core.copyset.upkeep import LogSituation, condition, lossy_shards, reason_for_epoch
from loomlog.types import NodeId, ShardId


def members(*nodes: int) -> tuple[Member, ...]:
    return tuple(map(Member, nodes))


@dataclass
class FakeNodes:
    """Nodes of which all are well unless a test says otherwise."""

    dead: set[NodeId] = field(default_factory=set)
    missing: set[ShardId] = field(default_factory=set)
    draining: set[NodeId] = field(default_factory=set)
    unfit: set[ShardId] = field(default_factory=set)
    lost: dict[ShardId, int] = field(default_factory=dict)
    full: set[ShardId] = field(default_factory=set)
    given_up: set[ShardId] = field(default_factory=set)
    lives: dict[NodeId, int] = field(default_factory=dict)
    least: int = 2
    sequencer: NodeId | None = 2
    nodeset: Sequence[Member] = members(1, 2, 3)

    def alive(self, node: NodeId) -> bool:
        return node not in self.dead

    def has(self, shard: ShardId) -> bool:
        return shard not in self.missing and node_of(shard) not in self.dead

    def leaves(self, node: NodeId | None) -> bool:
        return node is None or node in self.draining

    def is_given_up(self, shard: ShardId) -> bool:
        return shard in self.given_up

    def is_unfit(self, shard: ShardId) -> bool:
        return shard in self.unfit

    def lost_through(self, shard: ShardId) -> int:
        return self.lost.get(shard, 0)

    def life(self, node: NodeId) -> int:
        return self.lives.get(node, 1)

    def takers(self, shards: Collection[ShardId]) -> list[ShardId]:
        return [shard for shard in shards if shard not in self.dead | self.full]

    def next_short(self) -> tuple[ShardId, ...]:
        metadata = EpochMetadata(0, tuple(self.nodeset), 3)
        return choose_short(1, metadata, self.takers(metadata.shards), self.least)

    def next_sequencer(self) -> NodeId | None:
        return self.sequencer

    def next_nodeset(self) -> Sequence[Member]:
        return self.nodeset


STATE = take_epoch(first_state(members(1, 2, 3), 2), 1, members(1, 2, 3))
LOG = LogSituation(STATE, (1, 2, 3))


def test_a_log_that_is_well_needs_none() -> None:
    assert reason_for_epoch(LOG, FakeNodes()) == ""


def test_a_node_that_crashed_counts_fully_from_the_next_epoch_on() -> None:
    state = take_epoch(first_state(members(1, 2, 3), 2), 1, members(1, 2, 3), lives={1: 1, 2: 1})
    log = LogSituation(state, (1, 2, 3))
    assert reason_for_epoch(log, FakeNodes()) == ""
    assert reason_for_epoch(log, FakeNodes(lives={2: 2})) == "node 2 crashed"
    assert reason_for_epoch(log, FakeNodes(lives={2: 2}, dead={2})) == "", "it is not back"
    assert reason_for_epoch(log, FakeNodes(lives={3: 2})) == "", "its life was not known"


def test_a_segment_that_ends_needs_one_until_it_is_closed_and_recovered() -> None:
    assert reason_for_epoch(LOG._replace(ends=True), FakeNodes()) == "its segment ends"
    closed = take_epoch(STATE, 1, members(1, 2, 3), closed=True)
    ending = LogSituation(closed, (1, 2, 3), ends=True)
    assert reason_for_epoch(ending, FakeNodes()) == "its segment ends"
    recovered = replace(closed, last_clean=closed.epoch - 1)
    assert reason_for_epoch(ending._replace(state=recovered), FakeNodes()) == ""


def test_a_log_that_nobody_used_needs_none() -> None:
    unused = LogSituation(first_state(members(1, 2, 3), 2), (1, 2, 3))
    assert reason_for_epoch(unused, FakeNodes(dead={1})) == ""
    assert reason_for_epoch(LOG._replace(begun=False), FakeNodes(dead={1})) == ""


def test_a_sequencer_that_is_gone_is_replaced() -> None:
    assert "sequenced it, is gone" in reason_for_epoch(LOG, FakeNodes(dead={1}))
    unrecovered = take_epoch(STATE, 1, members(1, 2, 3))
    unknown = LOG._replace(state=replace(unrecovered, sequencer=0))
    assert reason_for_epoch(unknown, FakeNodes()) == "its last sequencer is unknown"


def test_nothing_is_begun_that_cannot_be_recovered() -> None:
    assert reason_for_epoch(LOG, FakeNodes(dead={1, 2})) == ""


def test_the_node_that_an_operator_chose_sequences_if_it_is_there() -> None:
    log = LOG._replace(state=choose(LOG.state, 3))
    assert "node 3 is to sequence it" in reason_for_epoch(log, FakeNodes(sequencer=3))
    assert reason_for_epoch(log, FakeNodes(sequencer=2)) == "", "node 3 is away"
    own = LOG._replace(state=choose(LOG.state, LOG.state.sequencer))
    assert reason_for_epoch(own, FakeNodes(sequencer=LOG.state.sequencer)) == ""


def test_nodes_that_are_given_up_are_not_waited_for() -> None:
    """Recovery then takes what the others have, and all else counts as lost."""
    dead = {1, 2}
    assert "is gone" in reason_for_epoch(LOG, FakeNodes(dead=dead, given_up=dead))
    assert reason_for_epoch(LOG, FakeNodes(dead=dead, given_up={1})) == "", "2 may return"
    everybody = {1, 2, 3}
    assert "is gone" in reason_for_epoch(LOG, FakeNodes(dead=everybody, given_up=everybody))
    assert reason_for_epoch(LOG, FakeNodes(dead=everybody, given_up={1, 2})) == ""


def test_a_drained_sequencer_is_replaced_if_another_node_can_sequence() -> None:
    assert "is drained" in reason_for_epoch(LOG, FakeNodes(draining={1}))
    assert reason_for_epoch(LOG, FakeNodes(draining={1, 2})) == ""


def test_a_node_leaves_its_nodeset_if_that_can_change() -> None:
    cluster = FakeNodes(unfit={3}, nodeset=members(1, 2, 4))
    assert reason_for_epoch(LOG, cluster) == "node 3 leaves its nodeset"
    assert reason_for_epoch(LOG, FakeNodes(unfit={3})) == ""


def test_a_node_that_lost_copies_of_the_newest_epoch_needs_a_newer_one() -> None:
    cluster = FakeNodes(lost={3: STATE.epoch})
    assert lossy_shards(STATE, cluster) == [3]
    assert reason_for_epoch(LOG, cluster) == "node 3 lost its copies"
    assert reason_for_epoch(LOG, FakeNodes(lost={3: STATE.epoch - 1})) == ""


def test_a_nodeset_that_has_shrunk_grows_when_all_new_nodes_are_there() -> None:
    wanted = LOG._replace(nodeset_wanted=4)
    larger = members(1, 2, 3, 4)
    assert reason_for_epoch(wanted, FakeNodes(nodeset=larger)) == "node 4 joins its nodeset"
    assert reason_for_epoch(wanted, FakeNodes(nodeset=larger, dead={4})) == ""
    assert reason_for_epoch(wanted, FakeNodes()) == ""
    assert reason_for_epoch(LOG, FakeNodes(nodeset=larger)) == ""


THREE = take_epoch(first_state(members(1, 2, 3), 3), 1, members(1, 2, 3), least=2)


def test_a_log_continues_with_fewer_copies_while_nodes_take_none() -> None:
    log = LogSituation(THREE, (1, 2, 3))
    why = "only 2 of its nodes take copies"
    assert reason_for_epoch(log, FakeNodes()) == ""
    assert reason_for_epoch(log, FakeNodes(dead={3})) == why
    assert reason_for_epoch(log, FakeNodes(full={3})) == why
    assert reason_for_epoch(log, FakeNodes(full={3}, least=3)) == ""
    assert reason_for_epoch(log, FakeNodes(full={2, 3})) == ""


def test_a_short_epoch_ends_when_more_nodes_take_copies() -> None:
    short = take_epoch(THREE, 1, members(1, 2, 3), short=(1, 2), least=1)
    log = LogSituation(replace(short, last_clean=short.epoch - 1), (1, 2, 3))
    assert reason_for_epoch(log, FakeNodes(dead={3})) == ""
    assert reason_for_epoch(log, FakeNodes()) == "enough nodes take copies again"
    assert reason_for_epoch(log, FakeNodes(full={2})) == "only 2 of its nodes take copies"
    one = replace(log.state, history=(log.state.history[-1]._replace(short=((1,),)),))
    more = reason_for_epoch(log._replace(state=one), FakeNodes(dead={3}))
    assert more == "only 2 of its nodes take copies"


def test_the_status_says_how_many_copies_there_are() -> None:
    short = take_epoch(THREE, 1, members(1, 2, 3), short=(1, 2), least=2)
    words = condition(replace(short, last_clean=short.epoch - 1), (1, 2, 3), {}, "", "", {}, {})
    assert words == f"epoch {short.epoch} has 2 of 3 copies"
    assert "appends wait" not in condition(short, (1, 2), {}, "", "", {}, {})
    assert "appends wait for 2 of them" in condition(short, (1,), {}, "", "", {}, {})


@pytest.mark.parametrize("replication", [2, 3])
@pytest.mark.parametrize("racks", [0, 2, 3])
def test_an_epoch_is_taken_just_when_recovery_does_not_wait_for_others(
    replication: int, racks: int
) -> None:
    """Whichever shards are there, given up or away."""
    shards = range(1, replication + 3)
    nodeset = tuple(Member(n, f"rack {n % racks}" if racks else "") for n in shards)
    state = take_epoch(first_state(nodeset, replication), 1, nodeset)
    unblocked = 0
    for fates in product(("there", "given up", "away"), repeat=len(nodeset)):
        there = {n for n, fate in zip(shards, fates, strict=True) if fate == "there"}
        given_up = {n for n, fate in zip(shards, fates, strict=True) if fate == "given up"}
        recovery = EpochRecovery(
            1,
            state.epoch,
            state.history[-1],
            seal=state.epoch,
            wave=1,
            authority=dict.fromkeys(given_up, Authority.UNAVAILABLE),
            avoided=frozenset(),
        )
        basis, can_be = recovery._basis(there), can_be_recovered(state, there, given_up)
        is_known = can_be_recovered(state, there)
        assert can_be == isinstance(basis, Basis), (there, given_up)
        assert is_known or not can_be or basis == Basis(frozenset(there), authoritative=False)
        unblocked += can_be and not is_known
    assert unblocked
