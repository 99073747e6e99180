"""Readers never stall on a dead client, and a fill obeys the write-once rule."""

from __future__ import annotations

import pytest
from chained_rig import Chains, batch

from loomlog.core.chained.append import Appended, Overtaken, append
from loomlog.core.chained.chain import Block, first_projection, junk
from loomlog.core.chained.messages import (
    Beyond,
    EpochOver,
    FindEnd,
    FindTicket,
    Forgotten,
    Found,
    HandedOut,
    Interrupted,
    Next,
    NotWritten,
    Refused,
    Ticket,
)
from loomlog.core.chained.newcomer import decide_below
from loomlog.core.chained.read import decide, decide_at, fill
from loomlog.core.chained.sequencer import Sequencer
from loomlog.errors import InvalidArgument


def test_a_hole_is_filled_as_long_as_its_ticket() -> None:
    log = Chains(chains=3)
    log.ticket(4)
    log.appended()
    assert log.run(fill(log.projection, 1)) == Found(junk(1, 4))
    assert log.run(decide(log.projection, 5)) == Found(Block(5, 1, 9, 1, b"batch"))


def test_a_hole_whose_ticket_is_forgotten_is_filled_position_by_position() -> None:
    """The next ticket may begin anywhere behind: on another chain, where nobody would notice."""
    log = Chains(chains=2, remembered=1)
    forgotten = log.ticket(3)
    for _ in range(3):
        log.ticket()
    assert log.run(decide_at(log.projection, 3)) == Found(junk(3, 1))
    assert log.run(append(log.projection, forgotten, batch(forgotten))) == Overtaken()


def test_a_hole_of_an_older_epoch_is_filled_up_to_the_next_block() -> None:
    log = Chains(chains=2)
    log.ticket(4)
    log.ticket(4)
    behind = log.at_head_only(2)
    log.reconfigured()
    assert log.run(decide_at(log.projection, 3)) == Found(junk(1, 8))
    assert log.run(decide(log.projection, 9)) == Found(behind)


def test_a_fill_that_loses_brings_the_writers_block_down() -> None:
    log = Chains()
    block = log.at_head_only(2)
    assert log.run(fill(log.projection, 1)) == Found(block)
    assert log.on(3) == [block]


def test_a_fill_that_was_interrupted_is_finished_by_anybody() -> None:
    log = Chains()
    log.ticket(2)
    log.silent = {3}
    assert isinstance(log.run(fill(log.projection, 1)), Interrupted)
    log.silent = set()
    assert log.run(decide(log.projection, 1)) == Found(junk(1, 2))
    assert log.on(3) == [junk(1, 2)]


def test_what_nobody_was_given_is_not_filled() -> None:
    log = Chains()
    log.appended(2)
    assert log.run(fill(log.projection, 3)) == NotWritten()


def test_without_its_sequencer_an_epoch_fills_nothing() -> None:
    log = Chains()
    log.ticket()
    log.sequencer = None
    assert isinstance(log.run(fill(log.projection, 1)), Interrupted)


def test_only_addresses_are_filled() -> None:
    log = Chains(chains=2)
    log.ticket(3)
    with pytest.raises(InvalidArgument):
        log.run(fill(log.projection, 2))


def test_a_writer_that_writes_less_than_it_was_given_stops_no_reader() -> None:
    """No client does that unless it wants to do harm."""
    log = Chains(chains=2)
    ticket = log.ticket(3)
    short = Block(ticket.first, 1, 9, 1, b"batch")
    assert log.run(append(log.projection, ticket, short)) == Appended()
    after = log.appended(sequence=2)
    assert log.run(decide_at(log.projection, 3)) == Found(junk(2, 2))
    assert log.run(decide_at(log.projection, 4)) == Found(after)


def test_holes_before_a_position_are_filled_on_the_way_to_it() -> None:
    log = Chains(chains=3)
    log.appended(2)
    log.ticket(2)
    log.ticket(2)
    assert log.run(decide_at(log.projection, 6)) == Found(junk(5, 2))
    assert log.run(decide_at(log.projection, 3)) == Found(junk(3, 2))


def test_all_below_the_epoch_is_decided_and_no_writer_disturbed() -> None:
    log = Chains(chains=2)
    log.appended(2)
    log.ticket(3)
    log.at_head_only(2, sequence=2)
    projection = log.reconfigured()
    ticket = log.ticket()
    assert log.run(decide_below(projection, 1)) == 8
    assert sorted(log.on(3, 0) + log.on(3, 1)) == sorted(log.on(1, 0) + log.on(1, 1))
    assert [block.first for block in sorted(log.on(3, 0) + log.on(3, 1))] == [1, 3, 6]
    assert ticket.first == 8


# ---- the sequencer


def test_tickets_follow_on_one_another() -> None:
    sequencer = Sequencer(first_projection(1, [[1]], birth=1, sequencer=1, first=100))
    assert [sequencer.next(count) for count in (3, 1)] == [Ticket(100, 3, 1), Ticket(103, 1, 1)]
    assert sequencer.answer(FindEnd(1)) == Beyond(104)


def test_a_sequencer_remembers_the_newest_tickets() -> None:
    sequencer = Sequencer(first_projection(1, [[1]], birth=1, sequencer=1), remembered=2)
    for _ in range(5):
        sequencer.next(2)
    assert sequencer.answer(FindTicket(1, 4)) == Forgotten()
    assert sequencer.answer(FindTicket(1, 6)) == HandedOut(Ticket(5, 2, 1))
    assert sequencer.answer(FindTicket(1, 10)) == HandedOut(Ticket(9, 2, 1))
    assert sequencer.answer(FindTicket(1, 11)) == Beyond(11)


def test_a_sequencer_remembers_who_shows_no_proof_as_long_as_the_ticket() -> None:
    sequencer = Sequencer(first_projection(1, [[1]], birth=1, sequencer=1), remembered=2)
    old, new = (sequencer.answer(Next(1, 2, proves=proves)) for proves in (False, True))
    assert (old, new) == (HandedOut(Ticket(1, 2, 1)), HandedOut(Ticket(3, 2, 1)))
    assert sequencer.is_unproven(Ticket(1, 2, 1))
    assert not sequencer.is_unproven(Ticket(3, 2, 1))
    for _ in range(5):
        sequencer.next(2)
    assert sequencer.answer(FindTicket(1, 1)) == Forgotten()
    assert not sequencer.is_unproven(Ticket(1, 2, 1))


def test_a_sequencer_answers_for_its_epoch_and_sane_requests_only() -> None:
    sequencer = Sequencer(first_projection(1, [[1]], birth=1, sequencer=1)._replace(epoch=3))
    assert sequencer.answer(Next(2, 1)) == EpochOver(3)
    assert isinstance(sequencer.answer(Next(4, 1)), Refused)
    assert isinstance(sequencer.answer(Next(3, 0)), Refused)
    assert sequencer.end == 1


def test_a_closed_log_has_no_sequencer() -> None:
    closed = first_projection(1, [[1]], birth=1, sequencer=1)._replace(closed=True)
    with pytest.raises(InvalidArgument):
        Sequencer(closed)
