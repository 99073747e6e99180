"""Chains with fewer replicas than appends need: nothing is acknowledged, and all is read."""

from __future__ import annotations

from chained_rig import LOG, Chains, batch

from loomlog.core.chained.admission import Admission
from loomlog.core.chained.append import Appended, append, resolve
from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import (
    Answer,
    ChainedAsk,
    FindEnd,
    Found,
    Interrupted,
    Next,
    Pull,
    Refused,
    Ticket,
)
from loomlog.core.chained.newcomer import Newcomer, create
from loomlog.core.chained.read import read
from loomlog.core.chained.reconfigure import Adopted, Goal, reconfigure

REASON = "appends wait: chain 0 has 1 replica and needs 2"


def filled(log: Chains, node: int) -> Admission:
    """Return a newcomer that may join."""
    newcomer = log.run(create(log.projection, Replica(node, LOG, 0, 70 + node)))
    assert isinstance(newcomer, Newcomer)
    admission = Admission(newcomer)
    assert log.run(admission.catch_up(log.projection)) is None
    return admission


def test_no_position_is_handed_out() -> None:
    log = Chains(nodes=2, least=2)
    log.silent = {2}
    epoch = log.reconfigured().epoch
    assert log.sequencer is not None
    assert log.sequencer.answer(Next(epoch, 1)) == Refused(REASON)
    assert log.sequencer.answer(FindEnd(epoch)) != Refused(REASON)
    log.silent = set()
    log.reconfigured(filled(log, 3).next_goal(0.0))
    assert log.ticket().first == 1


def test_a_ticket_is_of_no_use() -> None:
    log = Chains(nodes=1, least=2)
    ticket = Ticket(1, 1, 1)
    assert log.run(append(log.projection, ticket, batch(ticket))) == Interrupted(
        REASON, untouched=True
    )
    assert not log.on(1)


def test_a_chain_does_not_become_too_short_by_surprise() -> None:
    log = Chains(nodes=3, least=2)
    log.silent = {1, 2}
    ending = log.run(reconfigure(log.projection, Goal(short=False), 9))
    assert ending == Interrupted("fewer replicas of chain 0 answered than are there")
    log.silent = {1}
    assert [r.node_id for r in log.reconfigured(Goal(short=False)).replicas] == [2, 3]
    log.silent = {1, 2}
    assert [r.node_id for r in log.reconfigured().replicas] == [3]
    assert [r.node_id for r in log.reconfigured(Goal(short=False)).replicas] == [3]


def test_one_short_chain_is_enough_to_wait() -> None:
    log = Chains(nodes=2, chains=2, least=2)
    chains = (log.projection.chains[0], log.projection.chains[1][:1])
    short = log.projection._replace(chains=chains)
    assert short.shortage(0) == ""
    assert short.shortage(1) == "chain 1 has 1 replica and needs 2"


def test_a_block_in_doubt_is_acknowledged_when_it_has_enough_copies() -> None:
    log = Chains(nodes=2, least=2)
    block = log.at_head_only()
    log.silent = {2}
    short = log.reconfigured()
    assert log.run(resolve(short, block)) == Interrupted(REASON)
    assert log.run(read(short, block.first)) == Found(block)
    long = log.reconfigured(filled(log, 3).next_goal(0.0))
    assert log.run(resolve(long, block)) == Appended()
    assert log.on(1) == log.on(3) == [block]


class Overtaken(Chains):
    """Lets another newcomer join, and a block be written to the head, while one joins."""

    rival: Admission | None = None

    def answer(self, ask: ChainedAsk) -> Answer:
        rival, self.rival = self.rival, None
        if rival is not None and isinstance(ask.request, Pull):
            self.reconfigured(rival.next_goal(0.0))
            self.at_head_only()
        else:
            self.rival = rival
        return super().answer(ask)


def test_a_newcomer_that_another_epoch_overtook_does_not_join() -> None:
    """The newcomer may have copied a block that only the head of the new epoch has."""
    log = Overtaken(nodes=1)
    rival, admission = filled(log, 2), filled(log, 3)
    log.rival = rival
    ending = log.run(reconfigure(log.projection, admission.next_goal(0.0), 9))
    assert ending == Adopted(log.projection)
    [spoilt] = log.tables[3].replicas()
    assert log.tables[3].look(spoilt).last() is not None
    assert not log.on(2)
    assert admission.retry_delay_s() is None


def test_a_newcomer_may_try_again_before_it_was_given_anything() -> None:
    log = Chains(nodes=2)
    admission = filled(log, 3)
    log.silent = {2}
    ending = log.run(reconfigure(log.projection, admission.next_goal(0.0), 9))
    assert isinstance(ending, Interrupted)
    assert admission.retry_delay_s() is not None
