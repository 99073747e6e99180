"""Reconfiguration: head, middle or tail fails; two at once; a replacement; the end."""

from __future__ import annotations

import pytest
from chained_rig import Chains, batch, newcomer

from loomlog.core.chained.append import append
from loomlog.core.chained.chain import first_projection, junk
from loomlog.core.chained.messages import (
    Copy,
    Create,
    Found,
    Interrupted,
    NotWritten,
    Refused,
    Seal,
    Swap,
    Trimmed,
)
from loomlog.core.chained.newcomer import create
from loomlog.core.chained.read import decide, decide_at, fill, find_end, read, read_at
from loomlog.core.chained.reconfigure import (
    Adopted,
    Goal,
    Reconfigured,
    reconfigure,
)
from loomlog.core.chained.trim import trim
from loomlog.core.requests import Ask, Lost, Service
from loomlog.errors import InvalidArgument


@pytest.mark.parametrize("dead", [{1}, {2}, {3}, {1, 2}, {2, 3}, {1, 3}])
def test_what_was_acknowledged_survives_all_but_one(dead: set[int]) -> None:
    log = Chains(chains=2)
    blocks = [log.appended(2, sequence) for sequence in range(1, 5)]
    log.silent = dead
    projection = log.reconfigured()
    assert {r.node_id for r in projection.replicas} == {1, 2, 3} - dead
    for block in blocks:
        assert log.run(read(projection, block.first)) == Found(block)
    assert log.appended().first == 9


def test_a_chain_without_an_answer_keeps_its_projection() -> None:
    log = Chains()
    log.silent = {1, 2, 3}
    ending = log.run(reconfigure(log.projection, Goal(), 2))
    assert isinstance(ending, Interrupted)
    assert ending.reason == "no replica of chain 0 answered that may stay: start node 1 or 2 or 3"
    assert log.projection.epoch == 1


def test_it_takes_two_round_trips_however_long_the_log_is() -> None:
    log = Chains()
    for sequence in range(50):
        log.appended(sequence=sequence)
    log.asked.clear()
    log.reconfigured()
    assert [type(ask.request) for ask in log.asked] == [Seal, Seal, Seal, Swap]


def test_a_block_on_a_surviving_head_is_completed_by_who_reads_it() -> None:
    log = Chains()
    block = log.at_head_only(2)
    log.silent = {3}
    projection = log.reconfigured()
    assert projection.start == 3
    assert log.run(read(projection, 1)) == Found(block)


def test_a_block_that_died_with_its_head_leaves_a_hole_that_is_filled() -> None:
    log = Chains(chains=2)
    log.at_head_only()
    behind = log.appended(sequence=2)
    log.silent = {1}
    projection = log.reconfigured()
    assert log.run(decide_at(projection, 1)) == Found(junk(1, 1))
    assert log.run(read(projection, 2)) == Found(behind)


def test_positions_never_go_back() -> None:
    """The block that made the epoch begin at 3 dies unread."""
    log = Chains()
    log.at_head_only(2)
    log.reconfigured()
    log.silent = {1}
    projection = log.reconfigured()
    assert projection.start == 3
    assert log.run(find_end(projection)) == 3
    assert log.run(decide(projection, 1)) == Found(junk(1, 2))


def test_a_fill_of_an_old_epoch_is_fenced() -> None:
    log = Chains()
    old, old_sequencer = log.projection, log.sequencer
    log.ticket()
    log.reconfigured()
    log.sequencer = old_sequencer
    assert isinstance(log.run(fill(old, 1)), Interrupted)
    assert log.on(1) == []


def test_a_writer_that_overtakes_the_seal_at_a_silent_tail_is_still_read() -> None:
    """Every other replica has its block, or it could not be at the tail."""
    log = Chains()
    ticket = log.ticket()
    block = batch(ticket)
    steps = append(log.projection, ticket, block)
    asks = next(steps)
    for _ in range(2):
        asks = steps.send([log.answer(ask) for ask in asks])
    log.silent = {3}
    projection = log.reconfigured()
    log.silent = set()
    log.answer(asks[0])  # the old tail takes it, unsealed: the writer hears that it is appended
    assert log.run(read(projection, 1)) == Found(block)


# ---- two at once


def test_two_at_once_end_in_one_projection() -> None:
    log = Chains()
    first, second = (reconfigure(log.projection, Goal(), number) for number in (2, 3))
    swaps = [steps.send([log.answer(ask) for ask in next(steps)]) for steps in (first, second)]
    endings = []
    for steps, asks in zip((first, second), swaps, strict=True):
        with pytest.raises(StopIteration) as ended:
            steps.send([log.answer(ask) for ask in asks])
        endings.append(ended.value.value)
    assert endings == [Reconfigured(log.projection), Adopted(log.projection)]


def test_one_that_died_after_its_seals_is_finished_by_another() -> None:
    log = Chains()
    dead = reconfigure(log.projection, Goal(), 2)
    dead.send([log.answer(ask) for ask in next(dead)])
    outcome = log.run(read(log.projection, 1))
    assert isinstance(outcome, Interrupted)
    assert outcome.epoch == 2
    assert log.reconfigured().epoch == 2
    log.appended()


def test_a_swap_without_an_answer_is_looked_up() -> None:
    log = Chains()
    steps = reconfigure(log.projection, Goal(), 2)
    asks = steps.send([log.answer(ask) for ask in next(steps)])
    assert isinstance(asks[0].request, Swap)
    log.answer(asks[0])
    asks = steps.send([Lost()])
    assert asks[0].target is Service.METADATA
    with pytest.raises(StopIteration) as ended:
        steps.send([log.answer(ask) for ask in asks])
    assert ended.value.value == Reconfigured(log.projection)


def test_who_comes_late_adopts_what_is_in_force() -> None:
    log = Chains()
    old = log.projection
    log.reconfigured()
    log.reconfigured()
    assert log.run(reconfigure(old, Goal(), 9)) == Adopted(log.projection)


# ---- joining and leaving


def test_a_newcomer_has_all_that_its_tail_had() -> None:
    log = Chains(chains=1)
    blocks = [log.appended(2, sequence) for sequence in range(3)]
    log.reconfigured()
    made = newcomer(log)
    assert made.copied == 7
    blocks.append(log.appended(2, sequence=9))
    undecided = log.at_head_only(sequence=10)
    projection = log.reconfigured(Goal(newcomer=made))
    assert [r.node_id for r in projection.chains[0]] == [1, 2, 3, 4]
    assert log.on(4) == blocks
    assert log.run(read(projection, 9)) == Found(undecided)
    assert log.on(4) == [*blocks, undecided]


def test_only_what_a_newcomer_lacks_is_copied_when_it_joins() -> None:
    log = Chains()
    for sequence in range(3):
        log.appended(sequence=sequence)
    log.reconfigured()
    made = newcomer(log)
    last = log.appended(sequence=9)
    log.asked.clear()
    log.reconfigured(Goal(newcomer=made))
    copies = [ask.request.block for ask in log.asked if isinstance(ask.request, Copy)]
    assert copies == [last]


def test_a_newcomer_waits_if_the_tail_it_was_copied_from_is_lost() -> None:
    log = Chains()
    made = newcomer(log)
    log.silent = {3}
    ending = log.run(reconfigure(log.projection, Goal(newcomer=made), 2))
    assert isinstance(ending, Interrupted)
    log.reconfigured()
    log.reconfigured(Goal(newcomer=newcomer(log, birth=78)))
    assert [r.node_id for r in log.projection.chains[0]] == [1, 2, 4]


def test_a_node_that_comes_back_is_another_replica_and_empty() -> None:
    """The old replica has blocks that no other replica ever had."""
    log = Chains()
    log.at_head_only()
    log.silent = {1}
    log.reconfigured()
    log.silent = set()
    other = log.appended(sequence=2)
    assert other.first == 1
    log.reconfigured()
    log.reconfigured(Goal(newcomer=newcomer(log, node_id=1)))
    assert [r.node_id for r in log.projection.chains[0]] == [2, 3, 1]
    assert log.on(1) == [other]


def test_a_newcomer_to_a_trimmed_log_is_trimmed() -> None:
    log = Chains()
    for sequence in range(3):
        log.appended(2, sequence)
    log.run(trim(log.projection, 3))
    log.reconfigured()
    projection = log.reconfigured(Goal(newcomer=newcomer(log)))
    assert [block.first for block in log.on(4)] == [3, 5]
    assert log.tables[4].look(projection.chains[0][-1]).standing == (3, 3, 0)


def test_only_the_replica_that_is_unfit_leaves_its_node() -> None:
    log = Chains(chains=2)
    unfit = log.projection.chains[1][0]
    projection = log.reconfigured(Goal(unfit=frozenset([unfit])))
    assert [[r.node_id for r in chain] for chain in projection.chains] == [[1, 2, 3], [2, 3]]


def test_a_newcomer_is_trimmed_as_far_as_its_tail_was_after_it_was_filled() -> None:
    log = Chains()
    for sequence in range(1, 5):
        log.appended(sequence=sequence)
    log.reconfigured()
    made = newcomer(log)
    log.run(trim(log.projection, 3))
    projection = log.reconfigured(Goal(newcomer=made))
    assert log.run(read(projection, 2)) == Trimmed(3)
    assert [block.first for block in log.on(4)] == [4]


def test_a_replica_is_made_once() -> None:
    log = Chains()
    replica = newcomer(log).replica
    again = log.run(create(log.projection, replica))
    assert isinstance(again, Interrupted)
    assert isinstance(log.answer(Ask(replica, Create())), Refused)


def test_a_replica_that_is_moved_leaves_its_chain_only() -> None:
    log = Chains(chains=2)
    block = log.appended()
    moved = log.projection.chains[0][0]
    projection = log.reconfigured(Goal(moved=frozenset([moved])))
    assert moved not in projection.replicas
    assert len(projection.chains[0]) + 1 == len(projection.chains[1])
    assert log.run(read(projection, 1)) == Found(block)
    ending = log.run(reconfigure(projection, Goal(moved=frozenset(projection.chains[0])), 9))
    assert isinstance(ending, Interrupted)


def test_who_is_asked_to_leave_leaves() -> None:
    log = Chains(chains=2)
    block = log.appended()
    projection = log.reconfigured(Goal(leaving=frozenset([3])))
    assert {r.node_id for r in projection.replicas} == {1, 2}
    assert log.run(read(projection, 1)) == Found(block)
    ending = log.run(reconfigure(projection, Goal(leaving=frozenset([1, 2])), 9))
    assert isinstance(ending, Interrupted)
    assert ending.reason == "all replicas of chain 0 are to leave"


# ---- the end


def test_a_closed_log_is_read_and_filled_and_takes_nothing() -> None:
    log = Chains(chains=2)
    log.ticket(2)
    block = log.appended()
    log.ticket(5)
    projection = log.reconfigured(Goal(close=True))
    assert log.run(find_end(projection)) == 4
    assert log.run(decide_at(projection, 1)) == Found(junk(1, 2))
    assert log.run(read_at(projection, 3)) == Found(block)
    assert log.run(decide_at(projection, 4)) == NotWritten()
    log.silent = {1}
    assert log.reconfigured().closed


def test_a_log_needs_nodes() -> None:
    with pytest.raises(InvalidArgument):
        first_projection(1, [[1], []], birth=1, sequencer=1)
