"""Replicas whose nodes crashed get back what they forgot, before a new epoch begins."""

from __future__ import annotations

from copy import deepcopy

import pytest
from chained_rig import LOG, Chains
from memory_tables import MemoryTable

from loomlog.core.chained.admission import Admission
from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import Answer, Create, Interrupted, Request, Seal
from loomlog.core.chained.newcomer import Newcomer, create
from loomlog.core.chained.reconfigure import Goal, reconfigure
from loomlog.types import NodeId

NODES = (1, 2, 3)


def crashed_log(forgot: tuple[NodeId, ...], *, chains: int = 1) -> Chains:
    """Return a log whose nodes have all crashed; some forgot the last blocks."""
    log = Chains(chains=chains)
    log.lives = dict.fromkeys(NODES, 1)
    log.reconfigured()
    log.appended()
    before = deepcopy(log.tables)
    for _ in range(3):
        log.appended(count=2)
    log.tables |= {node: before[node] for node in forgot}
    log.lives = dict.fromkeys(NODES, 2)
    return log


@pytest.mark.parametrize("forgot", [(1,), (2,), (3,), (1, 2), (1, 3), (2, 3)])
@pytest.mark.parametrize("chains", [1, 2])
def test_all_replicas_get_what_one_has(forgot: tuple[NodeId, ...], chains: int) -> None:
    log = crashed_log(forgot, chains=chains)
    intact = next(node for node in NODES if node not in forgot)
    new = log.reconfigured()
    for chain in range(chains):
        assert log.on(1, chain) == log.on(2, chain) == log.on(3, chain) == log.on(intact, chain)
        assert log.on(1, chain)
    assert dict(new.lives) == log.lives


def test_an_undecided_block_is_not_given_to_those_who_never_had_it() -> None:
    log = crashed_log(())
    undecided = log.at_head_only()
    log.lives |= {1: 1, 2: 1}  # only the tail crashed
    log.reconfigured()
    assert undecided in log.on(1)
    assert undecided not in log.on(2)
    assert undecided not in log.on(3)


def test_if_all_crashed_all_are_waited_for() -> None:
    log = crashed_log((1, 2))
    log.silent = {3}
    ending = log.run(reconfigure(log.projection, Goal(), 9))
    assert ending == Interrupted(
        "all that answer of chain 0 have crashed, and may have forgotten what node 3 has: start it"
    )
    impatient = log.reconfigured(Goal(do_without=lambda: True))
    assert [replica.node_id for replica in impatient.chains[0]] == [1, 2]


def test_one_that_did_not_crash_is_enough() -> None:
    log = crashed_log((1,))
    log.lives[2] = 1
    log.silent = {3}
    new = log.reconfigured()
    assert [replica.node_id for replica in new.chains[0]] == [1, 2]
    assert log.on(1) == log.on(2)


def test_one_that_leaves_helps_the_others_first() -> None:
    log = crashed_log((1, 2))
    kept = log.on(3)
    new = log.reconfigured(Goal(leaving=frozenset([3])))
    assert [replica.node_id for replica in new.chains[0]] == [1, 2]
    assert log.on(1) == log.on(2) == kept


def test_nodes_that_never_come_back_are_not_waited_for() -> None:
    log = crashed_log(())
    log.silent = {3}
    new = log.reconfigured(Goal(leaving=frozenset([3])))
    assert [replica.node_id for replica in new.chains[0]] == [1, 2]


class CrashBetweenSeals(Chains):
    """Node 1 crashes after its replica of the first chain was sealed."""

    def replica_answers(self, replica: Replica, request: Request) -> Answer:
        if isinstance(request, Seal) and replica.node_id == 1 and hasattr(self, "lives"):
            self.lives[1] = 1 + replica.chain
        return super().replica_answers(replica, request)


def test_a_node_that_crashes_between_two_seals_counts_as_crashed() -> None:
    log = CrashBetweenSeals(chains=2)
    log.lives = dict.fromkeys(NODES, 1)
    assert dict(log.reconfigured().lives) == {1: 1, 2: 1, 3: 1}


def test_newcomers_have_the_life_that_they_were_sealed_in() -> None:
    log = crashed_log(())
    log.lives[4] = 5
    made = log.run(create(log.projection, Replica(4, LOG, 0, 77)))
    assert isinstance(made, Newcomer)
    assert log.reconfigured(Goal(newcomer=made)).life_of(4) == 5


def test_a_newcomer_that_crashed_while_it_was_filled_does_not_join() -> None:
    log = crashed_log(())
    log.reconfigured()
    log.lives[4] = 5
    replica = Replica(4, LOG, 0, 77)
    made = log.run(create(log.projection, replica, life=5))
    assert isinstance(made, Newcomer)
    admission = Admission(made)
    assert log.run(admission.catch_up(log.projection)) is None
    log.tables[4] = MemoryTable()
    log.replica_answers(replica, Create())  # its disk has forgotten what was copied
    log.lives[4] = 6
    goal = admission.next_goal(0.0)
    ending = log.run(reconfigure(log.projection, goal, 9))
    assert ending == Interrupted("node 4 crashed while it was filled")
    assert admission.problem(6) == "node 4 crashed while it was filled"
    assert admission.problem(5) == ""
    assert admission.problem(0) == "", "a node of an older version does not say"
