"""An append from ticket to ticket: what it reports on its way."""

from __future__ import annotations

import pytest
from chained_rig import Chains, batch

from loomlog.core.chained.append import Appended, append_next
from loomlog.core.chained.chain import Block, junk
from loomlog.core.chained.messages import (
    Answer,
    ChainedAsk,
    InForce,
    Interrupted,
    Next,
    Read,
    Renew,
    Ticket,
    Write,
)
from loomlog.core.chained.reconfigure import (
    Goal,
)
from loomlog.core.requests import Ask, Lost, Service
from loomlog.errors import Conflict, Sealed


class Log(Chains):
    """A log that can be asked for the projection in force."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[Interrupted | None] = []

    def answer(self, ask: ChainedAsk) -> Answer:
        if isinstance(ask.request, Renew):
            return InForce(self.projection)
        return super().answer(ask)

    def append(self) -> Ticket:
        steps = append_next(self.projection, 1, self.place, self.reports.append, once=False)
        ticket, outcome = self.run(steps)
        assert outcome == Appended()
        return ticket

    def place(self, ticket: Ticket) -> Block:
        return batch(ticket, sequence=ticket.first)


class Filled(Log):
    """A log in which a reader fills the first position before the writer gets there."""

    def place(self, ticket: Ticket) -> Block:
        if ticket.first == 1:
            head = self.projection.chain_of(1)[0]
            self.replica_answers(head, Write(1, junk(1, 1)))
        assert self.is_untouched()
        return super().place(ticket)

    def is_untouched(self) -> bool:
        return not self.reports or self.reports[-1] is not None


class Ended(Log):
    """A log whose segment ends while the writer gets no answer."""

    def answer(self, ask: ChainedAsk) -> Answer:
        if isinstance(ask.request, Write) and not self.projection.closed:
            self.reconfigured(Goal(close=True))
            return Lost()
        return super().answer(ask)


class Reconfigured(Log):
    """A log whose next epoch begins when the writer has its first ticket."""

    def answer(self, ask: ChainedAsk) -> Answer:
        if isinstance(ask.request, Write) and self.projection.epoch == 1:
            self.reconfigured(Goal())
        return super().answer(ask)


def test_what_was_refused_at_the_head_is_not_looked_for_in_the_next_epoch() -> None:
    """No replica has it, and a writer without read permission could not search for it."""
    log = Reconfigured()
    assert log.append().epoch == 2
    assert not any(isinstance(ask.request, Read) for ask in log.asked)
    assert [report is None for report in log.reports] == [True, False, True]


def test_what_was_overtaken_is_reported_as_not_written() -> None:
    """While it waits for another ticket, it is certain that it was not appended."""
    log = Filled()
    assert log.append().first == 2
    assert [report is None for report in log.reports] == [True, False, True]
    assert log.asked.count(Ask(Service.SEQUENCER, Next(1, 1))) == 2


def test_what_was_overtaken_at_the_end_of_its_segment_is_not_in_doubt() -> None:
    """The append continues in the next segment, so its outcome is never unknown."""
    log = Ended()
    with pytest.raises(Sealed):
        log.append()
    assert [report is None for report in log.reports] == [True, False]


def test_a_ticket_is_given_only_behind_the_expected_tail() -> None:
    log = Log()
    assert log.append().first == 1
    for expected in (0, 2):
        steps = append_next(
            log.projection, 1, log.place, log.reports.append, once=False, expected=expected
        )
        with pytest.raises(Conflict):
            log.run(steps)
    steps = append_next(log.projection, 3, log.place, log.reports.append, once=False, expected=1)
    assert log.run(steps)[0].first == 2


def test_a_conditional_append_that_was_overtaken_takes_no_other_place() -> None:
    log = Filled()
    steps = append_next(log.projection, 1, log.place, log.reports.append, once=False, expected=0)
    with pytest.raises(Conflict):
        log.run(steps)
    assert [report is None for report in log.reports] == [True, False]
