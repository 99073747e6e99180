"""A writer that lives on finds out what all replicas in force have forgotten, and reports it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from chained_rig import LOG, Chains, batch
from forgetful_chains import Forgetful

from loomlog.core.chained import read, replica
from loomlog.core.chained.admission import Admission
from loomlog.core.chained.append import Appended, append
from loomlog.core.chained.chain import Block, Replica
from loomlog.core.chained.comparison import find_lost
from loomlog.core.chained.messages import (
    Acknowledge,
    Answer,
    Done,
    Found,
    Interrupted,
    List,
    Listed,
    Missing,
    Steps,
    Write,
)
from loomlog.core.chained.newcomer import Newcomer, create
from loomlog.core.chained.read import decide_at, read_at
from loomlog.core.chained.reconfigure import Goal, Reconfigured, reconfigure
from loomlog.core.chained.replica import Change, Put
from loomlog.core.chained.trim import trim
from loomlog.types import Glsn, NodeId


def ask(log: Chains, *blocks: Block) -> set[type[Answer]]:
    """Tell all replicas in force of blocks; return their answers."""
    asks = [
        (each, Acknowledge(log.projection.epoch, (block.first,)))
        for block in blocks
        for each in log.projection.chain_of(block.first)
    ]
    return {type(log.replica_answers(*asked)) for asked in asks}


def report(log: Forgetful, *addresses: Glsn) -> list[range]:
    """Begin an epoch that records what is lost of these; return that."""
    lost = log.run(find_lost(log.projection, addresses))
    assert not isinstance(lost, Interrupted)
    if lost:
        log.reconfigured(Goal(forgotten=tuple(lost)))
    return lost


def positions(*blocks: Block) -> set[Glsn]:
    return {position for block in blocks for position in range(block.first, block.end)}


def known(log: Chains, there: Replica) -> set[Glsn]:
    listed = log.replica_answers(there, List(log.projection.epoch, 1, 99, with_acknowledged=True))
    assert isinstance(listed, Listed)
    return {*listed.acknowledged}


# ---- a writer that appends nothing more


@pytest.mark.parametrize("absent", [{1}, {1, 2}, set[NodeId]()])
@pytest.mark.parametrize("is_filled", [False, True])
def test_what_nobody_in_force_has_is_lost(absent: Iterable[NodeId], *, is_filled: bool) -> None:
    log = Forgetful(chains=2)
    log.appended()
    log.remember()
    forgotten = [log.appended(3), log.appended(2)]
    log.lose_power(*({1, 2, 3} - {*absent}), absent=absent)
    log.continue_without()
    later = log.appended(2)
    if is_filled:
        log.run(decide_at(log.projection, forgotten[1].last))
    log.come_back()
    assert log.lost() == set()
    assert ask(log, *forgotten) == {Missing}
    assert len(report(log, *(block.first for block in forgotten))) == 2
    assert positions(*forgotten) <= log.lost()
    assert not log.lost() & positions(later)


def test_what_is_there_trimmed_or_recorded_is_not_lost_again() -> None:
    log = Forgetful()
    kept, trimmed = log.appended(2), log.appended(2)
    log.remember()
    forgotten = log.appended(3)
    log.lose_power(1, 2, 3)
    log.continue_without()
    after = log.appended()
    log.run(trim(log.projection, kept.last))
    assert ask(log, kept, trimmed) == {Done}
    assert report(log, kept.first, trimmed.first) == []
    assert report(log, forgotten.first, kept.first) == [range(forgotten.first, forgotten.end)]
    epoch = log.projection.epoch
    assert report(log, forgotten.first, trimmed.first, after.first) == []
    log.run(trim(log.projection, after.last))
    assert ask(log, trimmed, forgotten) == {Done}
    assert report(log, trimmed.first, forgotten.first) == []
    assert log.projection.epoch == epoch


def test_a_loss_that_is_trimmed_in_part_stays_recorded() -> None:
    """The hole begins before it, and another loss is recorded later."""
    log = Forgetful()
    log.at_head_only(2)
    forgotten = [log.appended(4), log.appended(2)]
    told = forgotten[1].end
    log.lose_power(1, 2, 3)
    log.continue_without()
    assert report(log, forgotten[0].first) != []
    log.remember()
    later = log.appended()
    log.lose_power(1, 2, 3)
    log.continue_without()
    log.run(trim(log.projection, forgotten[0].first + 1))
    assert report(log, later.first) != []
    assert {*range(forgotten[0].first + 2, told)} | positions(later) <= log.lost()


def test_a_lie_makes_only_a_hole_a_loss() -> None:
    log = Forgetful()
    there = log.appended(4)
    hole = log.ticket(3)
    last = log.appended()
    log.reconfigured()
    ahead = log.ticket()
    report(log, *range(1, ahead.end + 9))
    assert log.lost() == {*range(hole.first, hole.end)}
    for block in (there, last):
        found = log.run(read_at(log.projection, block.first))
        assert isinstance(found, Found)
        assert found.block.is_same(block)


def test_what_a_long_gap_hides_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequencer belonged to another term: positions are skipped behind the lost block."""
    monkeypatch.setattr("loomlog.core.chained.reconfigure.HANDED_OUT_MAX", 60)
    log = Forgetful(chains=3)
    forgotten = log.appended(2)
    log.lose_power(2, 3, absent={1})
    log.continue_without(takeover=True)
    later = log.appended()
    report(log, forgotten.first)
    assert positions(forgotten) <= log.lost()
    assert not log.lost() & positions(later)


# ---- blocks that others complete


def reader(log: Chains, block: Block) -> None:
    assert isinstance(log.run(read_at(log.projection, block.first)), Found)


@pytest.mark.parametrize("is_later", [False, True])
def test_a_block_that_a_reader_completes_tells_what_it_told(*, is_later: bool) -> None:
    log = Forgetful()
    forgotten = log.appended(2)
    telling = batch(log.ticket(), 2)._replace(acknowledged=(forgotten.first,))
    log.replica_answers(
        log.projection.chains[0][0], Write(log.projection.epoch, telling)
    )  # and its writer dies
    if is_later:
        log.reconfigured()
    reader(log, telling)
    log.reconfigured(Goal(leaving=frozenset([1])))
    log.lose_power(3, absent={2})
    log.continue_without()
    comparison = log.come_back()
    assert range(forgotten.first, forgotten.end) in comparison.forgotten
    assert positions(forgotten) <= log.report(comparison)


def test_the_writer_of_a_block_that_a_reader_completed_tells_with_it() -> None:
    log = Chains()
    first = log.appended()
    ticket = log.ticket()
    untold = batch(ticket, 2)
    head, *others = log.projection.chains[0]
    log.replica_answers(head, Write(log.projection.epoch, untold))
    reader(log, untold)
    telling = untold._replace(acknowledged=(first.first,))
    assert log.run(append(log.projection, ticket, telling)) == Appended()
    assert [known(log, each) for each in (head, *others)] == [{first.first}] * 3


def test_without_that_nobody_would_know(monkeypatch: pytest.MonkeyPatch) -> None:
    real_write, real_store = read.write_down, replica._store

    def strip(epoch: int, replicas: list[Replica], block: Block) -> Steps[Answer | None]:
        return (yield from real_write(epoch, replicas, block._replace(acknowledged=())))

    def store_only(*arguments: Any) -> tuple[Answer, tuple[Change, ...]]:
        answer, changes = real_store(*arguments)
        return answer, tuple(change for change in changes if isinstance(change, Put))

    monkeypatch.setattr(read, "write_down", strip)
    for is_later in (False, True):
        with pytest.raises(AssertionError):
            test_a_block_that_a_reader_completes_tells_what_it_told(is_later=is_later)
    monkeypatch.setattr(replica, "_store", store_only)
    with pytest.raises(AssertionError):
        test_the_writer_of_a_block_that_a_reader_completed_tells_with_it()


# ---- newcomers that are filled at the same time


def test_newcomers_that_are_filled_together_prove_what_they_got() -> None:
    log = Forgetful()
    log.reconfigured(Goal(leaving=frozenset([2, 3])))
    admissions = [fill(log, Replica(3, LOG, 0, 30)), fill(log, Replica(2, LOG, 0, 20))]
    forgotten = log.appended(2)  # the newcomers get it with the last part
    log.remember()
    for admission in admissions:
        join(log, admission)
    log.reconfigured(Goal(leaving=frozenset([1])))
    assert [each.node_id for each in log.projection.chains[0]] == [3, 2]
    log.lose_power(2, absent={3})
    log.continue_without()
    assert log.on(2) == []
    assert positions(forgotten) <= log.report(log.come_back())


def fill(log: Forgetful, joining: Replica) -> Admission:
    made = log.run(create(log.projection, joining))
    assert isinstance(made, Newcomer)
    admission = Admission(made)
    assert log.run(admission.catch_up(log.projection)) is None
    return admission


def join(log: Forgetful, admission: Admission) -> None:
    """Let a newcomer join; fill it further if another one has joined meanwhile."""
    ending = log.run(reconfigure(log.projection, Goal(newcomer=admission.newcomer), 77))
    if isinstance(ending, Interrupted):
        assert log.run(admission.catch_up(log.projection)) is None
        ending = log.run(reconfigure(log.projection, Goal(newcomer=admission.newcomer), 77))
    assert isinstance(ending, Reconfigured)
