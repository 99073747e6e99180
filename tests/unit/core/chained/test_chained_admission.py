"""A newcomer is filled over interruptions and epochs, and joins when little is left."""

from __future__ import annotations

import pytest
from chained_rig import LOG, Chains

from loomlog.core.chained.admission import ATTEMPTS_MAX, CATCH_UP_S, EPOCHS_MAX, Admission
from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import Answer, ChainedAsk, Interrupted, Pull, Trim
from loomlog.core.chained.newcomer import Newcomer, create
from loomlog.core.chained.read import read
from loomlog.core.chained.reconfigure import Goal
from loomlog.core.chained.trim import trim
from loomlog.core.requests import Lost

REPLICA = Replica(4, LOG, 0, 77)


class Interruptions(Chains):
    """Answers a number of copies, and then none."""

    parts = 1000

    def answer(self, ask: ChainedAsk) -> Answer:
        if isinstance(ask.request, Pull):
            self.parts -= 1
            if self.parts < 0:
                return Lost()
        return super().answer(ask)

    def admission(self) -> Admission:
        newcomer = self.run(create(self.projection, REPLICA))
        assert isinstance(newcomer, Newcomer)
        return Admission(newcomer)

    def pulls(self) -> list[int]:
        return [ask.request.position for ask in self.asked if isinstance(ask.request, Pull)]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Interruptions:
    """Return a log with four blocks of an epoch that is over; copies take one block at a time."""
    monkeypatch.setattr("loomlog.core.chained.newcomer.COPY_PART_BYTES", 1)
    log = Interruptions()
    for sequence in range(1, 5):
        log.appended(sequence=sequence)
    log.reconfigured()
    return log


def test_an_interrupted_copy_continues_where_it_ended(log: Interruptions) -> None:
    admission = log.admission()
    log.parts = 2
    assert isinstance(log.run(admission.catch_up(log.projection)), Interrupted)
    assert admission.newcomer.copied == 3
    assert admission.percent(log.projection) == 50
    log.parts = 1000
    log.asked.clear()
    assert log.run(admission.catch_up(log.projection)) is None
    assert log.pulls() == [3, 4]
    assert admission.percent(log.projection) == 100


def test_what_was_open_when_it_was_passed_is_copied_in_a_later_epoch(log: Interruptions) -> None:
    admission = log.admission()
    late = log.at_head_only(sequence=5)
    log.appended(sequence=6)
    assert log.run(admission.catch_up(log.projection)) is None
    assert admission.newcomer.copied == 5
    log.run(read(log.projection, late.first))  # brings it down
    log.reconfigured(Goal(newcomer=admission.newcomer))
    assert [block.first for block in log.on(4)] == [1, 2, 3, 4, 5, 6]


def test_it_is_filled_from_another_replica_than_the_tail_but_for_what_may_be_open() -> None:
    log = Interruptions()
    for sequence in range(1, 5):
        log.appended(sequence=sequence)
    head = log.reconfigured().chains[0][0]
    admission = log.admission()
    log.at_head_only(sequence=5)
    assert log.run(admission.catch_up(log.projection, head)) is None
    assert {ask.request.source for ask in log.asked if isinstance(ask.request, Pull)} == {head}
    copied = log.tables[REPLICA.node_id].look(REPLICA).scan(0, 1 << 20)
    assert [extent.first for extent in copied] == [1, 2, 3, 4], "not what is not decided"
    log.reconfigured(Goal(newcomer=admission.newcomer))
    assert log.projection.chains[0][-1] == REPLICA


def test_a_source_that_left_its_chain_is_not_asked(log: Interruptions) -> None:
    admission = log.admission()
    head = log.projection.chains[0][0]
    log.silent = {head.node_id}
    log.reconfigured()
    log.asked.clear()
    assert log.run(admission.catch_up(log.projection, head)) is None
    assert head not in {ask.request.source for ask in log.asked if isinstance(ask.request, Pull)}


def test_an_interrupted_copy_remembers_what_was_trimmed(log: Interruptions) -> None:
    """The source leaves before it is finished, and the others were not trimmed yet."""
    tail = log.projection.chains[0][-1]
    log.replica_answers(tail, Trim(log.projection.epoch, 2))
    admission = log.admission()
    log.parts = 2
    log.run(admission.catch_up(log.projection))
    log.silent = {tail.node_id}
    log.reconfigured()
    log.parts = 1000
    assert log.run(admission.catch_up(log.projection)) is None
    assert admission.newcomer.trimmed == 2
    log.reconfigured(Goal(newcomer=admission.newcomer))
    assert log.run(read(log.projection, 1)) == log.run(trim(log.projection, 2))


def test_a_trim_that_has_reached_only_some_chains_is_no_obstacle() -> None:
    log = Interruptions(chains=2)
    for sequence in range(1, 5):
        log.appended(sequence=sequence)
    log.reconfigured()
    log.replica_answers(log.projection.chains[1][-1], Trim(log.projection.epoch, 3))
    admission = log.admission()
    assert log.run(admission.catch_up(log.projection)) is None
    log.reconfigured(Goal(newcomer=admission.newcomer))
    assert [block.first for block in log.on(4)] == [2, 4]


def test_it_joins_when_little_is_left() -> None:
    admission = Admission(Newcomer(REPLICA, 1))
    assert admission.next_goal(CATCH_UP_S + 1) == Goal(short=False)
    assert admission.next_goal(CATCH_UP_S).newcomer == admission.newcomer


def test_it_joins_after_a_number_of_epochs_in_any_case() -> None:
    admission = Admission(Newcomer(REPLICA, 1))
    goals = [admission.next_goal(CATCH_UP_S + 1) for _ in range(EPOCHS_MAX + 1)]
    assert goals[:-1] == [Goal(short=False)] * EPOCHS_MAX
    assert goals[-1].newcomer == admission.newcomer


def test_it_is_hopeless_only_if_nothing_more_is_copied() -> None:
    admission = Admission(Newcomer(REPLICA, 1))
    for copied in range(2, 20):
        admission.newcomer = admission.newcomer._replace(copied=copied)
        assert admission.retry_delay_s() is not None
    delays = [admission.retry_delay_s() for _ in range(ATTEMPTS_MAX)]
    assert delays[-1] is None
    assert None not in delays[:-1]
