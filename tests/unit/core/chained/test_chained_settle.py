"""Settling a reserved position: it has the block of its writer, or never will."""

from __future__ import annotations

import pytest
from chained_rig import Chains, batch

from loomlog.core.chained.append import Appended, Overtaken, append, settle
from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import Interrupted, NotWritten, Remove, Ticket
from loomlog.core.chained.reconfigure import (
    Goal,
    Reconfigured,
    reconfigure,
)
from loomlog.errors import DataLoss

PRODUCER = 9  # of the rig's batches


def settled(log: Chains, ticket: Ticket, *, fill: bool = False, producer: int = PRODUCER) -> object:
    return log.run(settle(log.projection, ticket, producer, fill=fill))


def written(log: Chains, ticket: Ticket) -> object:
    return log.run(append(log.projection, ticket, batch(ticket)))


def test_a_written_position_counts_for_its_writer_only() -> None:
    log = Chains(chains=2)
    ticket = log.ticket()
    assert settled(log, ticket) == NotWritten()
    assert written(log, ticket) == Appended()
    assert settled(log, ticket) is True
    assert settled(log, ticket, producer=8) is False


def test_a_position_that_was_filled_stays_void() -> None:
    log = Chains(chains=2)
    ticket = log.ticket()
    assert settled(log, ticket, fill=True) is False
    assert written(log, ticket) == Overtaken()


def test_filling_one_position_leaves_those_before_it_to_their_writers() -> None:
    log = Chains(chains=2)
    slow, dead = log.ticket(), log.ticket()
    assert settled(log, dead, fill=True) is False
    assert written(log, slow) == Appended()


def test_a_later_epoch_voids_what_was_not_written_and_nothing_of_its_own() -> None:
    log = Chains(chains=2)
    log.appended()
    old = log.ticket()
    log.reconfigured()
    new = log.ticket()
    assert new.first == old.first
    assert settled(log, old) is False
    assert written(log, new) == Appended()
    assert settled(log, old, producer=8) is False


def test_what_was_written_counts_also_where_a_later_epoch_is_thought_to_begin() -> None:
    """Metadata that went back in time knows the epoch of the replicas, but not where it began."""
    log = Chains(chains=2)
    block = log.appended()
    log.reconfigured()
    log.projection = log.projection._replace(start=1)
    assert settled(log, Ticket(block.first, 1, 1)) is True


def test_below_a_later_epoch_what_the_head_has_is_completed() -> None:
    log = Chains()
    block = log.at_head_only()
    ticket = Ticket(block.first, 1, 1)
    void = Ticket(log.appended().end, 1, 1)
    log.reconfigured()
    assert settled(log, ticket) is True
    assert settled(log, void) is False


def test_a_closed_segment_has_nothing_behind_its_end() -> None:
    log = Chains()
    log.appended()
    ticket = log.ticket()
    log.reconfigured(Goal(close=True))
    assert settled(log, ticket) is False


def test_an_older_projection_decides_nothing() -> None:
    log = Chains()
    before = log.projection
    log.reconfigured()
    ticket = log.ticket()
    assert isinstance(log.run(settle(before, ticket, PRODUCER, fill=True)), Interrupted)


def test_what_is_lost_with_all_its_replicas_is_not_void() -> None:
    log = Chains()
    block = log.appended()
    for replica in log.projection.chains[0]:
        log.replica_answers(replica, Remove())
    goal = Goal(fresh=(Replica(1, 1, 0, 88),))
    ending = log.run(reconfigure(log.projection, goal, 2, lambda _: block.end))
    assert isinstance(ending, Reconfigured)
    with pytest.raises(DataLoss, match="is lost with all its replicas"):
        settled(log, Ticket(block.first, 1, 1))
