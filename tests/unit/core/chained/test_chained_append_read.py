"""Append and read down a chain: one round trip at the tail, chain completion."""

from __future__ import annotations

import pytest
from chained_rig import Chains, batch

from loomlog.batch import CODEC_NONE, assign_position, build
from loomlog.core.chained.append import Appended, Overtaken, append, resolve
from loomlog.core.chained.chain import Block, block_of, junk
from loomlog.core.chained.messages import (
    Found,
    Interrupted,
    NotWritten,
    Read,
    Remove,
    Seal,
    Ticket,
    Trimmed,
    Write,
)
from loomlog.core.chained.read import fill, find_end, find_tail, read, read_at
from loomlog.core.chained.reconfigure import (
    Goal,
)
from loomlog.core.chained.trim import trim
from loomlog.core.requests import Ask
from loomlog.errors import Corrupt


def test_an_append_is_written_to_one_replica_after_the_other() -> None:
    log = Chains()
    block = batch(log.ticket(3))
    steps = append(log.projection, Ticket(1, 3, 1), block)
    asked = next(steps)
    for node_id in (1, 2, 3):
        ask = asked[0]
        assert asked == [ask]
        assert ask == Ask(log.projection.chains[0][node_id - 1], Write(1, block))
        answers = [log.answer(ask)]
        if node_id < 3:
            asked = steps.send(answers)
    with pytest.raises(StopIteration) as ended:
        steps.send(answers)
    assert ended.value.value == Appended()
    assert [log.on(node_id) for node_id in (1, 2, 3)] == [[block]] * 3


def test_blocks_go_to_the_chain_of_their_first_position() -> None:
    log = Chains(chains=2)
    blocks = [log.appended(count, sequence) for sequence, count in enumerate((3, 2, 1))]
    assert [block.first for block in blocks] == [1, 4, 6]
    assert log.on(1, chain=1) == blocks[:1]
    assert log.on(1, chain=0) == blocks[1:]


def test_an_append_may_be_repeated_in_its_epoch() -> None:
    log = Chains()
    ticket = log.ticket()
    log.silent = {2}
    assert isinstance(log.run(append(log.projection, ticket, batch(ticket))), Interrupted)
    log.silent = set()
    assert log.run(append(log.projection, ticket, batch(ticket))) == Appended()


def test_an_append_that_the_head_refused_has_written_nothing() -> None:
    """An append that was not answered, or was refused further down the chain, may have written."""
    log = Chains()
    old, ticket = log.projection, log.ticket()
    for silent in ({1}, {2}):
        log.silent = silent
        outcome = log.run(append(old, ticket, batch(ticket)))
        assert isinstance(outcome, Interrupted)
        assert not outcome.untouched
    log.silent = set()
    [replica] = [replica for replica in old.replicas if replica.node_id == 1]
    log.replica_answers(replica, Remove())
    outcome = log.run(append(old, ticket, batch(ticket)))
    assert isinstance(outcome, Interrupted)
    assert outcome.untouched


def test_a_ticket_is_worth_nothing_in_another_epoch() -> None:
    log = Chains()
    ticket = log.ticket()
    projection = log.reconfigured()
    outcome = log.run(append(projection, ticket, batch(ticket)))
    assert isinstance(outcome, Interrupted)
    assert log.on(1) == []


def test_a_writer_of_an_old_epoch_is_fenced_and_told_of_the_new_one() -> None:
    log = Chains()
    old, ticket = log.projection, log.ticket()
    log.reconfigured()
    outcome = log.run(append(old, ticket, batch(ticket)))
    assert isinstance(outcome, Interrupted)
    assert outcome.epoch == 2


def test_replicas_that_differ_are_an_error_that_nobody_hides() -> None:
    log = Chains()
    block = batch(log.ticket())
    log.replica_answers(log.projection.chains[0][1], Write(1, block._replace(sequence=8)))
    with pytest.raises(Corrupt):
        log.run(append(log.projection, Ticket(1, 1, 1), block))


# ---- reading


def test_a_read_asks_the_tail_only() -> None:
    log = Chains()
    block = log.appended(3)
    log.asked.clear()
    assert log.run(read(log.projection, 1)) == Found(block)
    assert [(ask.target, ask.request) for ask in log.asked] == [
        (log.projection.chains[0][-1], Read(1, 1))
    ]


def test_a_position_within_a_batch_is_found_on_any_chain() -> None:
    log = Chains(chains=3)
    log.appended(2)
    block = log.appended(3)
    assert log.run(read_at(log.projection, 5)) == Found(block)


def test_a_block_that_stands_at_the_head_is_brought_to_the_tail_first() -> None:
    log = Chains()
    block = log.at_head_only()
    assert log.run(read(log.projection, 1)) == Found(block)
    assert log.on(3) == [block]


def test_a_block_that_cannot_be_brought_to_the_tail_is_not_shown() -> None:
    log = Chains()
    log.at_head_only()
    log.silent = {2}
    assert isinstance(log.run(read(log.projection, 1)), Interrupted)


def test_nothing_written_is_only_said_if_every_replica_says_that_the_epoch_holds() -> None:
    """The tail and the head were cut off when node 2 alone made the next epoch."""
    log = Chains()
    old = log.projection
    log.silent = {1, 3}
    log.reconfigured()
    log.appended()
    log.silent = set()
    outcome = log.run(read(old, 1))
    assert isinstance(outcome, Interrupted)
    assert outcome.epoch == 2
    assert isinstance(log.run(read_at(old, 1)), Interrupted)
    assert log.run(read(log.projection, 2)) == NotWritten()


def test_the_end_of_the_log_is_not_told_by_a_sequencer_that_was_replaced() -> None:
    log = Chains(chains=2)
    old, old_sequencer = log.projection, log.sequencer
    log.appended(3)
    assert log.run(find_end(log.projection)) == 4
    log.reconfigured()
    log.appended()
    assert log.run(find_end(log.projection)) == 5
    log.sequencer = old_sequencer
    assert isinstance(log.run(find_end(old)), Interrupted)


# ---- what became of it


def test_an_append_that_only_the_head_has_is_completed_by_who_resolves_it() -> None:
    log = Chains()
    block = log.at_head_only()
    log.reconfigured()
    assert log.run(resolve(log.projection, block)) == Appended()
    assert log.on(3) == [block]


def test_an_append_that_died_with_its_head_is_lost_for_certain() -> None:
    log = Chains()
    block = log.at_head_only()
    log.silent = {1}
    log.reconfigured()
    assert log.run(resolve(log.projection, block)) == Overtaken()
    assert log.appended(sequence=2).first == block.first  # nobody ever saw the other one


def test_an_append_whose_place_is_given_again_leaves_it_to_the_next_writer() -> None:
    log = Chains()
    old = log.ticket()
    projection = log.reconfigured()
    new = log.ticket()
    assert new.first == old.first
    assert log.run(resolve(projection, batch(old, 2))) == Overtaken()
    assert log.run(append(projection, new, batch(new))) == Appended()


def test_an_append_below_what_the_new_epoch_found_is_filled_when_it_is_resolved() -> None:
    log = Chains(chains=2)
    block = log.at_head_only(2)
    behind = log.appended(sequence=2)
    log.silent = {1}
    log.reconfigured()
    assert log.run(resolve(log.projection, block)) == Overtaken()
    assert log.run(read_at(log.projection, 2)) == Found(junk(1, 2))
    assert log.run(read_at(log.projection, 3)) == Found(behind)


def test_a_fill_that_was_faster_ends_an_append() -> None:
    log = Chains()
    ticket = log.ticket(2)
    assert log.run(fill(log.projection, 1)) == Found(junk(1, 2))
    assert log.run(append(log.projection, ticket, batch(ticket))) == Overtaken()


# ---- trimming


def test_a_trim_reaches_all_replicas_and_cuts_no_block() -> None:
    log = Chains(chains=2)
    log.appended(3)
    block = log.appended(3, sequence=2)
    assert log.run(trim(log.projection, 4)) == Trimmed(4)
    assert log.run(read_at(log.projection, 4)) == Trimmed(4)
    assert log.run(read_at(log.projection, 5)) == Found(block)
    assert log.on(2, chain=1) == []


def test_what_is_not_written_is_not_trimmed() -> None:
    log = Chains()
    log.appended(3)
    assert log.run(trim(log.projection, 4)) == NotWritten()


def test_a_hole_behind_a_trim_that_reached_some_replicas_only_is_filled() -> None:
    log = Chains()
    log.appended(3)
    log.ticket(2)
    log.silent = {1, 2}
    log.run(trim(log.projection, 3))
    log.silent = set()
    assert log.run(resolve(log.projection, Block(4, 2, 9, 7, b"batch"))) == Overtaken()


# ---- words


def test_a_block_is_known_by_its_producer_and_number() -> None:
    block = Block(1, 2, 9, 1, b"batch")
    assert block.is_same(Block(1, 2, 9, 1, memoryview(b"the same")))
    assert not block.is_same(block._replace(sequence=2))
    assert not block.is_same(block._replace(first=2))
    assert not Block(1, 2).is_same(Block(1, 2, batch=b"batch"))
    assert (block.last, block.end) == (2, 3)


def test_a_block_of_a_batch_has_its_positions() -> None:
    made = build(
        b"body",
        codec=CODEC_NONE,
        flags=0,
        count=4,
        raw_size=4,
        producer_id=7,
        sequence=5,
        min_timestamp_us=1,
        max_timestamp_us=2,
    )
    assign_position(made, 11)
    assert block_of(made) == Block(11, 4, 7, 5, made)


def test_a_seal_goes_only_forward() -> None:
    log = Chains()
    replica = log.projection.chains[0][0]
    log.replica_answers(replica, Seal(5))
    log.replica_answers(replica, Seal(3))
    assert log.tables[1].look(replica).standing == (5, 0, 0)


def test_replicas_know_the_last_epoch_that_they_were_written_in() -> None:
    log = Chains()
    before = list(log.projection.replicas)
    log.appended()
    log.reconfigured(Goal(leaving=frozenset([1])))
    log.appended()
    standings = [log.tables[replica.node_id].look(replica).standing for replica in before]
    assert [each and (each.epoch, each.written) for each in standings] == [(2, 1), (2, 2), (2, 2)]


# ---- the tail


def test_the_tail_is_the_end_of_what_is_decided() -> None:
    log = Chains(chains=2)
    assert log.run(find_tail(log.projection)) == 0
    log.appended(3)
    log.at_head_only(2)
    log.ticket(5)
    assert log.run(find_tail(log.projection)) == 3
    log.appended()
    assert log.run(find_tail(log.projection)) == 11


def test_the_tail_costs_one_round_trip() -> None:
    log = Chains(chains=2)
    steps = find_tail(log.projection)
    with pytest.raises(StopIteration) as ended:
        steps.send([log.answer(ask) for ask in next(steps)])
    assert ended.value.value == 0


def test_the_tail_does_not_fall_when_a_sequencer_is_lost() -> None:
    log = Chains()
    log.appended(3)
    log.ticket(4)
    assert log.run(find_tail(log.projection)) == 3
    log.reconfigured()
    assert log.appended().first == 4, "nobody knows what the old one had handed out"
    assert log.run(find_tail(log.projection)) == 4


def test_the_tail_of_a_log_that_is_trimmed_or_closed() -> None:
    log = Chains(chains=2)
    log.appended(3)
    log.run(trim(log.projection, 3))
    assert log.run(find_tail(log.projection)) == 3
    log.reconfigured(Goal(close=True))
    assert log.run(find_tail(log.projection)) == 3


def test_the_tail_is_not_told_by_replicas_that_were_left_behind() -> None:
    log = Chains()
    old = log.projection
    log.silent = {3}
    log.reconfigured()
    log.appended()
    log.silent = set()
    outcome = log.run(find_tail(old))
    assert isinstance(outcome, Interrupted)
    assert outcome.epoch == 2
